"""Which candidates of a step are the partners that a table of the dataset names for an anchor."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.pairs import Listed


def match_partners(
    positions: Tensor, partners: Tensor, candidate_rows: Tensor, weights: Tensor | None = None
) -> Listed:
    """Turn partners by dataset row into listed pairs of this step.

    Args:
        positions: (P,) positions of anchors.
        partners: (P,) dataset rows that these anchors are partnered with; negative for none.
        candidate_rows: (C,) dataset rows of the candidates, several of which may be equal; negative for empty slots.
        weights: (P,) how much each of them is pulled; None says nothing about it.

    Returns:
        Every pair of an anchor and a candidate in one of its partners' rows; to be pulled, if there are weights.

    Example:
        >>> pairs = match_partners(torch.tensor([0, 0, 1]), torch.tensor([7, 5, -1]), torch.tensor([5, 6, 5]))
        >>> pairs.anchors, pairs.candidates
        (tensor([0, 0]), tensor([0, 2]))
    """
    ordered, order = candidate_rows.sort(stable=True)
    wanted = partners.contiguous()
    first = torch.searchsorted(ordered, wanted)
    count = torch.searchsorted(ordered, wanted, right=True) - first
    count = torch.where(partners >= 0, count, 0)
    source = torch.repeat_interleave(count)  # which of the P partners every found pair comes from
    number = torch.arange(len(source), device=source.device) - (count.cumsum(0) - count)[source]
    found = positions[source], order[first[source] + number]
    return Listed(*found) if weights is None else Listed(*found, "pull", weights[source])
