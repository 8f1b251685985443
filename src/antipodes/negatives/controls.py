"""`Oracle` and `Chance`, the controls of every detector: flags by true labels, and flags at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from antipodes.negatives.policy import Needs, Policy, check_rows, check_shares
from antipodes.pairs import Group, Pairs, Rule
from antipodes.seeding import generator
from antipodes.state import ByRow


class Oracle(Policy):
    """A candidate with the anchor's own label is a false negative.

    With elimination this is the ceiling that any detector of false negatives can reach, with attraction it is SupCon's
    loss (Khosla et al. 2020, its L_out). It is the only policy that reads labels.

    Args:
        labels: (n,) whole numbers, one per row of the dataset; a negative label is unknown and matches nothing.

    Example:
        >>> Oracle(torch.tensor([0, 1, 0]))
        Oracle()
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"labels": ByRow(holds="data")}
    labels: Tensor

    def __init__(self, labels: Tensor | Any) -> None:
        super().__init__()
        try:
            labels = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"labels must be whole numbers, one per row, got a {type(labels).__name__}") from error
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
            raise ValueError(f"labels must be whole numbers of shape (n,), got {labels.dtype} {tuple(labels.shape)}")
        self.num_samples = len(labels)
        self.register_buffer("labels", labels.to(torch.int64, copy=True))

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's label."""
        anchor_rows, candidate_rows = pairs.rows()
        check_rows(pairs, len(self.labels))
        of_anchors = of_candidates = self.labels[anchor_rows]
        if candidate_rows is not anchor_rows:
            of_candidates = self.labels[candidate_rows.clamp(min=0)].masked_fill_(candidate_rows < 0, -1)
        return [Rule(groups=(Group(of_anchors, of_candidates, "drop"),))]


# of the finaliser of SplitMix64, as signed numbers
_MOST_GROUPS = 2**40  # so that their numbers are exact; a share below its inverse is as good as none
_MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)


class Chance(Policy):
    """Flags a share of the candidates at random: what a detector of that share must beat.

    Every anchor draws one of G groups, every candidate one of them or none, and candidates of an anchor's group are
    flagged. Each candidate of an anchor is so flagged with probability `alpha`, independently of the others, and no
    mask exists. Anchors of one group flag the same candidates in a step; the next step draws again.

    The draws follow from the seed, the step and the samples' rows, hence not from the number of ranks.

    Args:
        alpha: Share of the negatives that is flagged.
        start: Share of training before the first flag.
        seed: Of the draws.

    Example:
        >>> policy = Chance(alpha=0.1)
        >>> (rule,) = policy.judge(Pairs(torch.eye(3), torch.arange(3), torch.ones(3)), progress=1.0)
        >>> rule.groups[0].anchors.shape
        torch.Size([3])
    """

    needs = Needs(learn=True)
    steps: Tensor

    def __init__(self, alpha: float, start: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        check_shares(alpha, start)
        self.alpha, self.start, self.seed = alpha, start, seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Flag by the draws of this step."""
        step = int(self.steps)
        if learn and self.training:
            self.steps += 1
        if progress < self.start:
            return [Rule()]
        return [Rule(groups=(random_group(pairs, self.alpha, self.seed, step),))]


def random_group(pairs: Pairs, share: float, *seeds: int) -> Group:
    """A comparison of groups that flags every pair with this probability, by the rows of its samples.

    With G = floor(1 / share) groups, an anchor is in each with probability 1 / G and a candidate with probability
    `share`, so two are in the same one with probability `share`.

    Args:
        pairs: What is compared.
        share: In (0, 1).
        *seeds: The draws follow from them and the rows.
    """
    count = int(min(1 / share, _MOST_GROUPS))
    anchor_rows, candidate_rows = pairs.rows()
    anchors = (count * uniform_by_row(anchor_rows, 0, *seeds)).long()
    candidates = (uniform_by_row(candidate_rows, 1, *seeds) / share).clamp(max=count).long()
    none = (candidates >= count) | (candidate_rows < 0)
    return Group(anchors, candidates.masked_fill(none, -1), "drop")


def uniform_by_row(rows: Tensor, *seeds: int) -> Tensor:
    """A number in [0, 1) for every row (n,), which depends on the row and the seeds alone."""
    key = int(torch.randint(2**62, (1,), generator=generator("chance", *seeds)))
    mixed = rows * 2654435769 + key
    for factor, shift in zip(_MIX, (30, 27), strict=True):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 11).double() / 2**53


def _shifted(numbers: Tensor, places: int) -> Tensor:
    """The bits of int64 numbers shifted right as if they had no sign."""
    shifted: Tensor = (numbers >> places) & (2 ** (64 - places) - 1)
    return shifted
