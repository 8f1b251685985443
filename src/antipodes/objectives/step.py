"""One call of an objective: what is known between the policy's judging and the loss, and what a log shows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antipodes.functional.sums import Sums
from antipodes.negatives import cone
from antipodes.negatives.policy import Numbers
from antipodes.pairs import Pairs, Rule


@dataclass(frozen=True)
class Step:
    """One call of an objective between its judging and its value.

    Attributes:
        pairs: What is compared.
        progress: Share of training done.
        learn: Whether tables may move.
        temperature: A number, a scalar, or (A,).
        rules: What the policy answered, treated.
        extra_rules: Rules whose sums the loss needs as well; they come last.
    """

    pairs: Pairs
    progress: float
    learn: bool
    temperature: float | Tensor
    rules: Sequence[Rule]
    extra_rules: Sequence[Rule]

    @property
    def all_rules(self) -> list[Rule]:
        """The rules in the order in which the kernel's sums come."""
        return [*self.rules, *self.extra_rules]

    @property
    def positive_logits(self) -> Tensor:
        """The logits of the positives, (A,): similarity over temperature, raised by their log weights if they have."""
        logits = self.pairs.positives / self.temperature
        weights = self.pairs.positive_log_weights
        return logits if weights is None else logits + weights.to(logits)


def statistics(pairs: Pairs, sums: Sums, rules: Sequence[Rule]) -> Callable[[], Numbers]:
    """What a log shows of one call; flagged are the candidates that the rules dropped or pull as false negatives.

    Returns:
        A function that works the numbers out, for whoever reads them. It holds no graph, and does not look at a queue,
        whose ids will have changed by then.
    """
    kept, pulled, positives = sums.kept.detach(), sums.pulled.detach(), pairs.positives.detach()
    similarity = cone.later(pairs)
    flags = not any(rule.ignores for rule in rules)
    same_sample = pairs.same_sample  # of a batch: not the pairs, whose embeddings hold on to the graph
    available = same_sample.available if flags and pairs.candidates is not None else None

    def numbers() -> Numbers:
        found: Numbers = {
            "positive_similarity": positives.mean(),
            "negative_similarity": similarity().nan_to_num(0.0),  # one NaN would spoil the mean of an epoch
            "kept_per_anchor": kept.float().mean(),
            "pulled_per_anchor": pulled.float().mean(),
            "without_negatives": (kept == 0).float().mean(),
        }
        if flags:
            mean = (same_sample.available if available is None else available).float().mean()
            share = (mean - kept.float().mean() + pulled.float().mean()) / mean.clamp(min=1e-9)
            found["flagged_share"] = torch.where(mean > 0, share, 0.0)
        return found

    return numbers
