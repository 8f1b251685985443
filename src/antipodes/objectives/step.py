"""One call of an objective: what is known between the policy's judging and the loss, and what a log shows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antipodes.functional.sums import Sums
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


def statistics(pairs: Pairs, sums: Sums, rules: Sequence[Rule]) -> tuple[Numbers, Callable[[], Numbers] | None]:
    """What a log shows of one call; flagged are the candidates that the rules dropped or pull as false negatives.

    Returns:
        Numbers, and a function for those that are worked out when somebody reads them: of a batch the flagged share. Of
        a queue it is worked out at once, since the queue's ids will have changed by then.
    """
    kept, pulled = sums.kept.float().mean(), sums.pulled.float().mean()
    numbers: Numbers = {
        "positive_similarity": pairs.positives.detach().mean(),
        "kept_per_anchor": kept,
        "pulled_per_anchor": pulled,
        "without_negatives": (sums.kept == 0).float().mean(),
    }
    if any(rule.ignores for rule in rules):
        return numbers, None
    if pairs.candidates is not None:
        return numbers | _flagged_share(pairs.available(), kept, pulled), None
    same_sample = pairs.same_sample  # not the pairs, whose embeddings hold on to the graph
    return numbers, lambda: _flagged_share(same_sample.available, kept, pulled)


def _flagged_share(available: Tensor, kept: Tensor, pulled: Tensor) -> Numbers:
    mean = available.float().mean()
    share = (mean - kept + pulled) / mean.clamp(min=1e-9)
    return {"flagged_share": torch.where(mean > 0, share, 0.0)}
