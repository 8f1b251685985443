"""`LossModule`: what every loss offers in addition to its value, whatever it compares."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.losses.observation import Observation
from antipodes.negatives.policy import Numbers, Policy


@dataclass
class CallRecord:
    """What a loss remembers from call to call and no checkpoint holds.

    It is an object of its own because setting an attribute of a module takes longer than a small operation.

    Attributes:
        numbers: Of the last call, for the log.
        lazy: What works more of them out, once they are read.
        warned: Sentences that were said.
        calls: Until now.
        rankings: Calls in which the order of similarities decided.
        local_ids: Calls in a row whose ids were 0..B-1.
        skipped: Mined negatives that did not count, once there were some.
        ignored: How many given negatives of this call have their anchor's own document.
    """

    numbers: Numbers = field(default_factory=dict)
    lazy: list[Callable[[], Numbers]] = field(default_factory=list)
    warned: set[str] = field(default_factory=set)
    calls: int = 0
    rankings: int = 0
    local_ids: int = 0
    skipped: int = 0
    ignored: Tensor | None = None


class LossModule(nn.Module):
    """A loss with statistics, policies and an observer.

    Attributes:
        negatives: The policy that decides which candidates count, if there is one.
        observer: Called with the `Observation` of every step, for those who want to judge it by labels.
    """

    negatives: Policy | None
    observer: Callable[[Observation], None] | None

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Check the arguments of every constructor."""
        super().__init_subclass__(**arguments)
        if "__init__" in cls.__dict__:
            cls.__init__ = checked(cls.__init__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()
        self.negatives = None
        self.observer = None
        self._record = CallRecord()

    @property
    def stats(self) -> dict[str, float]:
        """Numbers of the last call by name. They are read from their tensors here, not in the call."""
        return self._work_out()

    def _work_out(self) -> dict[str, float]:
        """Read the numbers of this loss itself, and let go of what they were worked out from."""
        record = self._record
        for numbers in record.lazy:
            record.numbers = {**numbers(), **record.numbers}
        record.lazy = []
        tensors = {name: value for name, value in record.numbers.items() if isinstance(value, Tensor)}
        if tensors:
            values = torch.stack([value.detach().double() for value in tensors.values()]).tolist()
            record.numbers |= dict(zip(tensors, values, strict=True))
        return dict(record.numbers)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        """What is copied or pickled: everything, with statistics as numbers."""
        self._work_out()
        return self.__dict__.copy()

    def policies(self) -> list[Policy]:
        """The policies of this loss, each part of a joined one by itself."""
        return [] if self.negatives is None else self.negatives.parts()

    @property
    def learning(self) -> bool:
        """Whether a call may move tables: in training mode, and where gradients are wanted."""
        return self.training and torch.is_grad_enabled()

    def _report(self, numbers: Numbers, lazy: Callable[[], Numbers] | None = None) -> None:
        """Replace the statistics by these numbers, and by those that are worked out when they are read."""
        self._record.numbers, self._record.lazy = numbers, [] if lazy is None else [lazy]

    def _report_later(self, lazy: Callable[[], Numbers]) -> None:
        """Add numbers to the statistics of this call that are worked out when they are read."""
        self._record.lazy.append(lazy)

    def _observe(self, observation: Callable[[], Observation]) -> None:
        if self.observer is not None:
            self.observer(observation())

    def warn_once(self, sentence: str) -> None:
        """Warn with this sentence unless this loss has done so before."""
        if sentence not in self._record.warned:
            self._record.warned.add(sentence)
            warnings.warn(sentence, stacklevel=5)
