"""`Policy`: decides which candidates of an anchor count, by answering a step's pairs with a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from antipodes.functional.sums import Sums
from antipodes.pairs import Pairs, Rule

Space = Literal["features", "embeddings", "seen"]
Hears = Literal["loss", "score"]


class Policy(nn.Module, ABC):
    """What every policy does: look at the pairs of a step, return a few vectors that say which of them count.

    A policy owns its per-sample state (in `SampleTable` buffers, hence in the checkpoint), never the loss or the base
    it serves. It is not part of the module that data-parallel training wraps.
    """

    space: Space = "features"  # what `fit` takes: the encoder's features, the projected embeddings, or nothing
    supports: int = 0  # further views of every anchor's sample that it wants to see in the pairs
    ranks: bool = False  # whether it goes by the order of similarities, which means nothing in a narrow cone
    reweighs: bool = False  # whether `reweigh` changes the sums
    hears: Hears | None = None  # what `hear` is told: every step's loss, or the validation scores between epochs

    @abstractmethod
    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Say which candidates count for every anchor.

        Args:
            pairs: This step's anchors and candidates; a policy looks at them without gradient.
            progress: Share of training done, in [0, 1].

        Returns:
            One rule, or several whose losses are averaged (granularities of a clustering).
        """

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float) -> Sums:
        """Correct what the kernel summed, for policies that answer with weights instead of a rule.

        Args:
            pairs: As in `judge`, with gradient.
            rules: What was applied to them.
            sums: The kernel's, one row per rule.
            temperature: By which similarities were divided.
        """
        return sums

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0."""
        return False

    def fit(self, features: Tensor | None, progress: float) -> None:
        """Take in features of the whole training set, (n, F) in the order of ids, or of this rank's share of it.

        With `space` "seen" there are none to take in: the policy goes by what it has seen in `judge`.
        """

    def hear(self, value: float, progress: float) -> None:
        """Take in a number that training came to, the same on every rank; which one is said by `hears`.

        Args:
            value: The loss of the step, averaged over ranks, or the validation score, where more is better.
            progress: Share of training done.
        """

    def statistics(self) -> dict[str, float]:
        """Numbers about the policy's state for the log."""
        return {}

    def __and__(self, other: Policy) -> Both:
        return Both(self, other)


class Both(Policy):
    """Two policies at once: a candidate counts when both keep it."""

    def __init__(self, first: Policy, second: Policy) -> None:
        super().__init__()
        if first.reweighs and second.reweighs:
            raise ValueError("two policies that reweigh the sum of negatives, such as dcl and hcl, cannot be joined")
        self.first = first
        self.second = second
        self.supports = max(first.supports, second.supports)
        self.ranks = first.ranks or second.ranks
        self.reweighs = first.reweighs or second.reweighs

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Every rule of the first policy with every rule of the second."""
        ours, theirs = self.first.judge(pairs, progress), self.second.judge(pairs, progress)
        return [a & b for a in ours for b in theirs]

    def reweigh(self, pairs: Pairs, rules: Sequence[Rule], sums: Sums, temperature: float) -> Sums:
        """By the one that does."""
        return self.second.reweigh(pairs, rules, self.first.reweigh(pairs, rules, sums, temperature), temperature)

    def due(self, epoch: int) -> bool:
        """Whether one of them wants `fit`."""
        return self.first.due(epoch) or self.second.due(epoch)

    def fit(self, features: Tensor | None, progress: float) -> None:
        """Hand the features to both."""
        self.first.fit(features, progress)
        self.second.fit(features, progress)

    def statistics(self) -> dict[str, float]:
        """Those of both."""
        return self.first.statistics() | self.second.statistics()


def check_shares(alpha: float, start: float) -> None:
    """Refuse a share of false negatives, or of training before the first flag, that is none."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}: it is the share of negatives treated as false")
    if not 0 <= start <= 1:
        raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training before the first flag")
