"""One call of a loss: what is known between the policy's judging and the loss, and what a log shows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from antipodes.functional.dense import Views
from antipodes.negatives.policy import Numbers
from antipodes.negatives.ranked import later
from antipodes.pairs import Pairs, Rule


@dataclass(frozen=True)
class Part:
    """More pairs of the same anchors' samples that belong to the one denominator.

    Attributes:
        pairs: What is compared.
        rules: What applies to them, in the order of `Step.all_rules`.
        hardness: Strength of the log weight that raises their logits by strength times their similarity.
    """

    pairs: Pairs
    rules: Sequence[Rule]
    hardness: float = 0.0


@dataclass(frozen=True)
class Step:
    """One call of a loss between its judging and its value.

    Attributes:
        pairs: What is compared.
        progress: Share of training done.
        learn: Whether tables may move.
        temperature: A number, a scalar, or (A,).
        rules: What the policy answered, treated.
        extra_rules: Rules whose sums the loss needs as well; they come last.
        parts: Further pairs of the one denominator.
        hardness: As in `Part`, of `pairs`.
        positive_again: Whether the positive stands in the denominator once more.
        scale: What embeddings were divided by to compare dot products; see `antipodes.losses.dot`.
    """

    pairs: Pairs
    progress: float
    learn: bool
    temperature: float | Tensor
    rules: Sequence[Rule]
    extra_rules: Sequence[Rule]
    parts: Sequence[Part] = ()
    hardness: float = 0.0
    positive_again: bool = False
    scale: float = 1.0

    def linked(self, views: Views) -> Step:
        """The same step with pairs whose gradients reach these views."""
        return replace(self, pairs=self.pairs.linked(views.linked()))

    @property
    def all_rules(self) -> Sequence[Rule]:
        """The rules in the order in which the kernel's sums come."""
        return [*self.rules, *self.extra_rules]

    @property
    def positive_logits(self) -> Tensor:
        """The logits of the positives, (A,): similarity over temperature, raised by their log weights if they have."""
        logits = self.pairs.positives / self.temperature
        weights = self.pairs.positive_log_weights
        return logits if weights is None else logits + weights.to(logits)


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
    if pairs.candidates is None and not pairs.anchors.requires_grad:  # holds nothing of either: all of it can wait
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
