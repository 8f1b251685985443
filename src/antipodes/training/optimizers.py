"""Optimisers by name, with biases and normalisation in a group without weight decay; and LARS, which torch lacks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

NAMES = ("sgd", "adamw", "lars")


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017): a learning rate for every weight tensor w.

        local = trust * |w| / (|g| + weight_decay * |w|)
        v <- momentum * v + learning_rate * local * (g + weight_decay * w)
        w <- w - v

    As in SimCLR, tensors of at most one dimension (biases, batch norm) have local = 1, and `optimizer` gives them no
    weight decay. A tensor whose w or g is all zero also has local = 1: the formula would divide by zero or keep w at 0.

    Args:
        parameters: parameters or parameter groups.
        lr: learning rate, for example 0.3 * batch / 256.
        momentum: in [0, 1).
        weight_decay: at least 0.
        trust: the trust coefficient, eta in the paper.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        if trust <= 0:
            raise ValueError(f"trust must be above 0, got {trust}: it scales every local learning rate")
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; return what `closure` returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        weight_decay = group["weight_decay"]
        update = gradient.add(parameter, alpha=weight_decay)
        if parameter.ndim > 1:
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            local = group["trust"] * weight_norm / (gradient_norm + weight_decay * weight_norm)
            # torch.where, not an if: reading the norms here would stall a GPU once per tensor.
            update *= torch.where((weight_norm > 0) & (gradient_norm > 0), local, 1.0)
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
        parameter.sub_(velocity)


def parameter_groups(
    parameters: nn.Module | Iterable[nn.Parameter],
    weight_decay: float,
    *,
    decay_vectors: bool = False,
    shares: Mapping[nn.Parameter, float] | None = None,
) -> list[dict[str, Any]]:
    """Split trainable parameters into matrices, with weight decay, and vectors (biases, normalisation), without.

    Args:
        parameters: a module, or parameters; each is taken once and frozen ones are left out.
        weight_decay: of the first group.
        decay_vectors: let parameters of at most one dimension decay too, as MoCo's code does.
        shares: a parameter's factor on the learning rate; 1 if it is not named. Parameters with the same factor form
            groups with the key `share`, by which the learning rate of a step is multiplied.

    Raises:
        ValueError: nothing is trainable.
    """
    shares = {} if shares is None else shares
    given = parameters.parameters() if isinstance(parameters, nn.Module) else parameters
    trainable = [parameter for parameter in dict.fromkeys(given) if parameter.requires_grad]
    if not trainable:
        raise ValueError("there is nothing to optimise: every parameter is frozen, or there is none")
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter in trainable:
        groups.setdefault((shares.get(parameter, 1.0), parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": members,
            "weight_decay": weight_decay if matrices or decay_vectors else 0.0,
            **({"share": share} if share != 1 else {}),
        }
        for (share, matrices), members in sorted(groups.items(), key=lambda each: (-each[0][0], not each[0][1]))
    ]


def optimizer(
    name: str,
    parameters: nn.Module | Iterable[nn.Parameter],
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.9,
    nesterov: bool = False,
    betas: tuple[float, float] = (0.9, 0.999),
    trust: float = 0.001,
    decay_vectors: bool = False,
    shares: Mapping[nn.Parameter, float] | None = None,
) -> Optimizer:
    """Build an optimiser over a module or its parameters.

    Args:
        name: "sgd" (uses momentum, nesterov), "adamw" (uses betas) or "lars" (uses momentum, trust).
        parameters: see `parameter_groups`.
        learning_rate: at least 0; a schedule may set it before every step.
        weight_decay: at least 0; not applied to biases and normalisation unless `decay_vectors` is set.
        momentum: in [0, 1).
        nesterov: Nesterov's form of momentum.
        betas: decay rates of AdamW's two moments.
        trust: LARS's trust coefficient.
        decay_vectors: see `parameter_groups`.
        shares: see `parameter_groups`; a group starts with its share of `learning_rate`.

    Raises:
        ValueError: the name is unknown, a number is out of range, or nothing is trainable.

    Example:
        >>> [len(group["params"]) for group in optimizer("sgd", nn.Linear(3, 2), 0.1, weight_decay=1e-4).param_groups]
        [1, 1]
    """
    if name not in NAMES:
        raise ValueError(f"unknown optimizer {name!r}: choose one of {', '.join(NAMES)}")
    if not learning_rate >= 0 or not weight_decay >= 0:
        raise ValueError(f"learning_rate and weight_decay must be at least 0, got {learning_rate} and {weight_decay}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be in [0, 1), got {momentum}")
    groups = parameter_groups(parameters, weight_decay, decay_vectors=decay_vectors, shares=shares)
    for group in groups:
        group["lr"] = learning_rate * group.get("share", 1.0)
    if name == "sgd":
        return SGD(groups, learning_rate, momentum=momentum, nesterov=nesterov)
    if name == "adamw":
        return AdamW(groups, learning_rate, betas=betas)
    return LARS(groups, learning_rate, momentum=momentum, trust=trust)
