"""`Temperature`: what divides the similarities, as a number, a schedule, or something that learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, ClassVar, Literal, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.distributed import world_size
from antipodes.functional.tensors import first_order
from antipodes.schedules import Schedule
from antipodes.state import ByRow, check_ids, sample_count

Form = Literal["log", "linear"]


class Temperature(nn.Module):
    """A temperature that is fixed, follows a schedule, is learned, or is learned for every sample.

    In plain terms:

    1. `Temperature(0.1)` is the number 0.1, and `Temperature(schedule=linear(0.2, 0.05))` moves with training.
    2. `Temperature(0.07, learnable=True, floor=0.01)` is CLIP's: one parameter for all pairs, which never falls below
       its floor.
    3. `Temperature(0.07, per_sample=n)` has a parameter for every row of the dataset, as iSogCLR.

    A loss hands its temperature to the optimiser with its own parameters: `optimizer.add_param_group(
    loss_fn.temperature.parameter_group(lr))`. Its gradient is averaged over the ranks, so that it need not be wrapped
    for data-parallel training.

    Args:
        value: Where a number stays and a learned one starts.
        learnable: One learned temperature for all anchors.
        floor: The least value of a learned temperature.
        schedule: Value by progress instead of a number; not with learning.
        per_sample: Rows of the dataset, for one learned temperature each; the gradient is dense, (n,).
        form: What the parameter is: the logarithm of the temperature (CLIP, SigLIP) or itself (FastCLIP, iSogCLR).

    Example:
        >>> Temperature(0.07, learnable=True).current()
        0.07
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"parameter": ByRow()}  # where it has one for every sample
    parameter: nn.Parameter | None

    @checked
    def __init__(
        self,
        value: float = 0.1,
        learnable: bool = False,
        floor: float | None = None,
        schedule: Schedule | None = None,
        per_sample: int | None = None,
        form: Form = "log",
    ) -> None:
        super().__init__()
        check_temperature(value)
        if floor is not None and not 0 < floor <= value:
            raise ValueError(f"floor must be above 0 and at most the value {value}, got {floor}")
        per_sample = None if per_sample is None else sample_count(per_sample, "per_sample")
        if form not in get_args(Form):
            raise ValueError(f"form must be one of {', '.join(get_args(Form))}, got {form!r}")
        learned = learnable or per_sample is not None
        if schedule is not None and learned:
            raise ValueError("a temperature follows a schedule or is learned, not both: leave one of them out")
        if schedule is not None and not all(point > 0 for _, point in schedule.points):
            raise ValueError(f"a schedule of temperatures must stay above 0, got {schedule.points}")
        self.value, self.floor, self.schedule, self.per_sample, self.form = value, floor, schedule, per_sample, form
        start = math.log(value) if form == "log" else value
        shape = () if per_sample is None else (per_sample,)
        self.parameter = nn.Parameter(torch.full(shape, start)) if learned else None

    @property
    def uses_progress(self) -> bool:
        """Whether it moves with the share of training done."""
        return self.schedule is not None and len({value for _, value in self.schedule.points}) > 1

    def forward(self, rows: Tensor, progress: float) -> float | Tensor:
        """The temperature of the anchors in these rows: a number, a scalar tensor, or (A,) with `per_sample`."""
        if self.parameter is None:
            return self.value if self.schedule is None else self.schedule(progress)
        if self.training and torch.is_grad_enabled():
            self._stay_above_floor()
        parameter = averaged_over_ranks(self.parameter)
        if self.per_sample is not None:
            check_ids(rows, self.per_sample)
            parameter = parameter[rows.to(parameter.device)]
        return self._as_temperature(parameter)

    def current(self) -> float:
        """The learned or fixed value as a number; the mean with `per_sample`. For a schedule its start."""
        if self.parameter is None:
            return self.value if self.schedule is None else self.schedule(0.0)
        with torch.no_grad():
            return round(self._as_temperature(self.parameter).double().mean().item(), 7)

    def parameter_group(self, lr: float = 2e-4) -> dict[str, Any]:
        """What an optimiser takes: the parameter with a learning rate of its own and without weight decay."""
        return {"params": list(self.parameters()), "lr": lr, "weight_decay": 0.0}

    def learning_rate(self, base: float = 2e-4, below: float = 0.03, factor: float = 1 / 3) -> float:
        """FastCLIP's learning rate of the temperature: `base`, and a third of it while the temperature is below 0.03.

        Example:
            >>> Temperature(0.07, learnable=True).learning_rate(3e-4)
            0.0003
        """
        return base * factor if self.current() < below else base

    def _as_temperature(self, parameter: Tensor) -> Tensor:
        parameter = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
        tau = parameter.exp() if self.form == "log" else parameter
        return tau if self.floor is None else tau.clamp(min=self.floor)

    def _stay_above_floor(self) -> None:
        """Put the parameter back to its floor after a step that went too far: at the floor it still has a gradient.

        `data`, because another direction's graph may hold the parameter already; its value is above the floor then.
        """
        assert self.parameter is not None
        if self.floor is not None:
            self.parameter.data.clamp_(min=math.log(self.floor) if self.form == "log" else self.floor)
        elif self.form == "linear":
            self.parameter.data.clamp_(min=1e-4)


def check_temperature(value: float) -> None:
    """Refuse what is no number, or one that cannot divide similarities."""
    number = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
    if not isinstance(number, Real) or not 0 < number < math.inf:
        what = number if isinstance(number, Real) else f"a {type(value).__name__}"
        raise ValueError(f"temperature must be above 0 and finite, got {what}: it divides the similarities")


class _Averaged(torch.autograd.Function):
    """The same parameter on every rank; its gradient is the mean over ranks."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor) -> Tensor:
        return parameter.view_as(parameter)

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total)
        return total / world_size()


def averaged_over_ranks(parameter: Tensor) -> Tensor:
    """A parameter of a loss whose gradient is averaged over ranks, as data-parallel training does with a network's."""
    if world_size() == 1 or not torch.is_grad_enabled():
        return parameter
    return cast(Tensor, _Averaged.apply(parameter))  # type: ignore[no-untyped-call]
