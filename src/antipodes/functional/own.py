"""Which candidates show an anchor's own sample: in another view, or as a stale copy in a queue or bank."""

from __future__ import annotations

import torch
from torch import Tensor


class Own:
    """The candidates with the id of an anchor, found without comparing all pairs or sorting the candidates.

    Args:
        anchor_ids: (A,) integers.
        candidate_ids: (C,) integers.

    Attributes:
        count: (A,) how many candidates have the anchor's id.

    Example:
        >>> Own(torch.tensor([7, 5]), torch.tensor([5, 6, 7, 5])).pairs()
        (tensor([0, 1, 1]), tensor([2, 0, 3]))
    """

    def __init__(self, anchor_ids: Tensor, candidate_ids: Tensor) -> None:
        anchor_ids, candidate_ids = anchor_ids.long(), candidate_ids.long().contiguous()
        samples, sample = anchor_ids.unique(return_inverse=True)
        place = torch.searchsorted(samples, candidate_ids)
        ends = torch.cat([samples, samples.new_full((1,), -1)])  # for ids above all of the samples
        columns = (ends[place] == candidate_ids).nonzero().squeeze(1)
        place = place[columns]
        counts = torch.bincount(place, minlength=len(samples))
        self.count = counts[sample]
        # those of anchor i: _columns[_start[i] : _start[i] + count[i]]
        self._columns = columns[place.argsort(stable=True)]
        self._start = (counts.cumsum(0) - counts)[sample]

    def pairs(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """The pairs of the same id one by one, of the anchors in these rows: rows, from their first on, and columns."""
        count = self.count[rows]
        row = torch.repeat_interleave(count)
        number = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
        return row, self._columns[self._start[rows][row] + number]
