"""What a loss shows to those who watch it: one event a step, which labels can score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from antipodes.negatives.flags import count_flags, same_class_mass, same_label_share
from antipodes.pairs import Pairs, Rule


class Observation(Protocol):
    """One step of a loss, as an observer sees it."""

    def score(self, labels: Tensor, prefix: str = "") -> dict[str, float]:
        """Numbers on how right the step's decisions were, judged by true labels.

        Args:
            labels: (n,) by row; a negative label is unknown.
            prefix: In front of every name.
        """


@dataclass(frozen=True)
class FlaggedPairs:
    """A policy's decisions about the pairs of a step."""

    pairs: Pairs
    rules: Sequence[Rule]

    def score(self, labels: Tensor, prefix: str = "") -> dict[str, float]:
        """Count true, flagged and found false negatives; see `antipodes.negatives.flags.FlagCounts`."""
        return count_flags(self.pairs, self.rules, labels.to(self.pairs.anchors.device)).means(prefix)


@dataclass(frozen=True)
class MinedPairs:
    """The pairs (A, C) that were chosen as hard negatives, with the rows of both sides."""

    rows: Tensor
    candidate_rows: Tensor
    chosen: Tensor

    def score(self, labels: Tensor, prefix: str = "") -> dict[str, float]:
        """The share of hard negatives that have the anchor's label; nothing where none was chosen."""
        if not bool(self.chosen.any()):
            return {}
        share = same_label_share(self.rows, self.candidate_rows, self.chosen, labels.to(self.rows.device))
        return {f"{prefix}hard_same_label": share}


@dataclass(frozen=True)
class RefinedLabels:
    """Labels with mass (A,) off the one-hot, spread by a softmax of the teachers' similarities."""

    pairs: Pairs
    mass: Tensor
    temperature: float

    def score(self, labels: Tensor, prefix: str = "") -> dict[str, float]:
        """The share of that mass which lies on samples of the same class."""
        share = same_class_mass(self.pairs, self.mass, self.temperature, labels.to(self.mass.device))
        return {f"{prefix}refined_mass_same_class": share}
