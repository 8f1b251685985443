"""Which candidates an anchor may choose from, and their similarities in blocks of rows.

1. The similarities of 64 anchors (more, if there are few candidates) with all candidates are computed; the full matrix
   never exists.
2. Candidates that an anchor may not choose (its own id) are set to -inf at their few positions; candidates of a
   negative id (empty queue slots) are left out before the product.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from antipodes.functional.errors import NotFinite
from antipodes.functional.same_sample import SameSample
from antipodes.functional.shares import whole_below

ROWS, CELLS = 64, 2**17  # a block has so many rows, and more while it has fewer cells


class RowBlocks:
    """The candidates that every anchor may choose from: their number, and their similarities in blocks of rows.

    Args:
        anchors: (A, D).
        candidates: (C, D).
        anchor_ids: (A,) integers.
        candidate_ids: (C,) integers, negative for empty slots.
        same_sample: which candidates are of the anchors' own samples, if somebody found them already.
    """

    def __init__(
        self,
        anchors: Tensor,
        candidates: Tensor,
        anchor_ids: Tensor,
        candidate_ids: Tensor,
        same_sample: SameSample | None = None,
    ) -> None:
        if anchors.ndim != 2 or candidates.ndim != 2 or anchors.shape[1] != candidates.shape[1]:
            shapes = f"{(*anchors.shape,)} and {(*candidates.shape,)}"
            raise ValueError(f"anchors (A, D) and candidates (C, D) must be matrices of one width, got {shapes}")
        if anchor_ids.shape != anchors.shape[:1] or candidate_ids.shape != candidates.shape[:1]:
            shapes = f"{(*anchor_ids.shape,)} for {len(anchors)} and {(*candidate_ids.shape,)} for {len(candidates)}"
            raise ValueError(f"every anchor and every candidate needs one id, got {shapes}")
        self.same_sample = SameSample(anchor_ids, candidate_ids) if same_sample is None else same_sample
        dtype = torch.promote_types(torch.promote_types(anchors.dtype, candidates.dtype), torch.float32)
        self.anchors, self.candidates = anchors.detach().to(dtype), candidates.detach().to(dtype)
        filled = self.same_sample.filled
        # one pass and no mask: a NaN or an infinity of a candidate that counts reaches the sum
        broken = [
            ~self.anchors.sum().isfinite(),
            ~torch.where(filled, self.candidates.sum(1), 0.0).sum().isfinite(),
        ]
        empty, *not_finite = torch.stack([~filled.all(), *broken]).tolist()
        for name, refused in zip(("anchors", "candidates"), not_finite, strict=True):
            if refused:
                raise NotFinite(f"{name} hold NaN or infinite numbers: check the encoder's output before the loss")
        self.columns: Tensor | None = None
        if empty:
            self.columns = filled.nonzero().squeeze(1)
            self.candidates = self.candidates[self.columns]
            self.same_sample = self.same_sample.of_candidates(self.columns)
        self.count = len(self.candidates) - self.same_sample.count

    def per_anchor(self, number: float | Tensor, name: str) -> Tensor:
        """The number for every anchor, (A,); a float is a share of its candidates."""
        if isinstance(number, int):
            return torch.full_like(self.count, number)
        if isinstance(number, float):
            if not 0 <= number <= 1:
                raise ValueError(f"{name} must be in [0, 1] as a share of the candidates, got {number}")
            return whole_below(number, self.count)
        if number.shape != self.count.shape or number.is_floating_point():
            what = f"{(*number.shape,)} of {number.dtype}"
            raise ValueError(f"{name} must be one integer, or one per anchor ({len(self.count)}), got {what}")
        return number.to(self.count)

    def share(self, alpha: float | Tensor) -> Tensor:
        """How many candidates of every anchor are its top share, at least one; none where an anchor's own is 0."""
        if isinstance(alpha, Tensor):
            if alpha.shape != self.count.shape or not bool(((alpha >= 0) & (alpha <= 1)).all()):
                raise ValueError(f"alpha must be one share in [0, 1] per anchor ({len(self.count)}), got {alpha.shape}")
            return (alpha * self.count.double()).round().long().clamp(min=1).masked_fill(alpha == 0, 0)
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha}: it is the share of candidates treated as false")
        return (alpha * self.count.double()).round().long().clamp(min=1)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of anchors and their similarities, excluded ones -inf, in a buffer that is reused."""
        if len(self.candidates) == 0:
            return
        width = len(self.candidates)
        height = min(max(ROWS, CELLS // width), len(self.anchors))
        buffer = self.anchors.new_empty(height * width)
        for start in range(0, len(self.anchors), max(height, 1)):
            rows = slice(start, min(start + height, len(self.anchors)))
            similarities = buffer[: (rows.stop - start) * width].view(-1, width)
            torch.mm(self.anchors[rows], self.candidates.T, out=similarities)
            similarities[self.same_sample.pairs(rows)] = -torch.inf
            yield rows, similarities

    def places(self, first: Tensor, last: Tensor) -> Tensor:
        """Where the ranks [first, last) of every anchor end and begin, (A, 2) as `edges` takes it; 0, 0 if nowhere."""
        if bool((first < 0).any()):
            raise ValueError(f"first must not be negative, got {int(first.min())}: rank 0 is the most similar")
        last = last.minimum(self.count)
        # nothing is below the last allowed rank: all columns, so that the row need not be partitioned there
        places = torch.stack([last.masked_fill(last == self.count, len(self.candidates)), first], dim=1)
        return places.masked_fill_((first >= last)[:, None], 0)

    def original(self, columns: Tensor) -> Tensor:
        """Columns of the kept candidates as columns of all candidates; -1 stays."""
        if self.columns is None or len(self.columns) == 0:
            return columns
        return torch.where(columns < 0, columns, self.columns[columns])
