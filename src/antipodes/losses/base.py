"""`LossModule`: what every loss offers in addition to its value, whatever it compares; the statistics of one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.losses.observation import Observation
from antipodes.negatives.policy import Numbers, Policy
from antipodes.negatives.ranked import later
from antipodes.pairs import Pairs, Rule


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
            values = torch.stack([value.detach().double().mean() for value in tensors.values()]).tolist()
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


def statistics(
    pairs: Pairs,
    rules: Sequence[Rule],
    kept: Tensor | None,
    pulled: Tensor | None = None,
    blocks: Sequence[Pairs] = (),
    scale: float = 1.0,
) -> Callable[[], Numbers]:
    """What a log shows of one call; flagged are the candidates that the rules dropped or pull as false negatives.

    Args:
        pairs: What was compared.
        rules: What the policy said.
        kept: How many candidates are, by rule and anchor; None if all of other samples are.
        pulled: Likewise; None if none is.
        blocks: Further pairs in the same denominator.
        scale: What similarities were divided by.

    Returns:
        A function that works the numbers out once they are read. It holds no graph, and does not read from a queue,
        whose ids will have changed by then.
    """
    of_batch = pairs.candidates is None or pairs.block is not None
    if of_batch and not pairs.anchors.requires_grad:  # neither of a queue nor of a graph: all of it can wait
        return lambda: _snapshot(pairs, rules, kept, pulled, blocks, scale)()
    return _snapshot(pairs, rules, kept, pulled, blocks, scale)


def _snapshot(
    pairs: Pairs,
    rules: Sequence[Rule],
    kept: Tensor | None,
    pulled: Tensor | None,
    blocks: Sequence[Pairs],
    scale: float,
) -> Callable[[], Numbers]:
    """Take out of the pairs what the statistics need."""
    positives, similarity = pairs.positives.detach(), later(pairs)
    flags = not any(rule.ignores for rule in rules)
    same_sample = pairs.same_sample  # of a batch: not the pairs, whose embeddings hold on to the graph
    of_queue = pairs.candidates is not None and (flags or kept is None)
    available = same_sample.available if of_queue else None
    further = [each.same_sample for each in blocks]

    def numbers() -> Numbers:
        offered = (same_sample.available if available is None else available).float()
        for each in further:
            offered = offered + each.available
        of_anchor = offered if kept is None else kept.detach().float()
        pulled_mean = of_anchor.new_zeros(()) if pulled is None else pulled.detach().float().mean()
        found: Numbers = {
            "positive_similarity": positives.mean() * scale,
            "negative_similarity": similarity().nan_to_num(0.0) * scale,  # one NaN would spoil the mean of an epoch
            "kept_per_anchor": of_anchor.mean(),
            "pulled_per_anchor": pulled_mean,
            "without_negatives": (of_anchor == 0).float().mean(),
        }
        if flags:
            mean = offered.mean()
            share = (mean - of_anchor.mean() + pulled_mean) / mean.clamp(min=1e-9)
            found["flagged_share"] = torch.where(mean > 0, share, 0.0)
        return found

    return numbers
