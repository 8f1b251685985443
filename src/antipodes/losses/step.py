"""One call of a loss: what is known between the policy's judging and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

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

    def linked(self, anchors: Tensor, candidates: Tensor | None = None) -> Step:
        """The same step with pairs whose gradients reach these embeddings; see `Pairs.linked`."""
        return replace(self, pairs=self.pairs.linked(anchors, candidates))

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
