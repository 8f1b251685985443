"""Which candidates an anchor may choose from, and their similarities in blocks of rows.

1. The similarities of 64 anchors (128, if there are at most 65,536 candidates, and more, if there are few) with all
   candidates are computed; the full matrix never exists.
2. Candidates that an anchor may not choose (its own id) are set to -inf at their few positions; candidates of id -1
   (empty queue slots) are left out before the product.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from antipodes.functional.errors import NotFinite
from antipodes.functional.own import Own

ROWS, CELLS = 64, 2**17  # a block has at least so many rows, and more while it has fewer cells
KEPT = 2**23  # blocks have twice the rows up to so many cells, 32 MB in float32, and a CPU keeps that memory


class _Workspace(threading.local):
    """The memory of a block, kept between calls: fresh pages take nearly as long as the product that fills them."""

    kept: Tensor | None = None

    @contextmanager
    def lend(self, cells: int, like: Tensor) -> Iterator[Tensor]:
        """Lend memory for so many numbers; whoever asks while it is out gets some of their own."""
        buffer, self.kept = self.kept, None
        if buffer is None or len(buffer) < cells or (buffer.dtype, buffer.device) != (like.dtype, like.device):
            with torch.inference_mode(mode=False):
                buffer = torch.empty(cells, dtype=like.dtype, device=like.device)
        try:
            yield buffer
        finally:
            if buffer.device.type == "cpu" and len(buffer) <= KEPT:  # other devices have their own way to do this
                self.kept = buffer


_workspace = _Workspace()


class Allowed:
    """The candidates that every anchor may choose from: their number, and their similarities in blocks of rows."""

    def __init__(self, anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor) -> None:
        if anchors.ndim != 2 or candidates.ndim != 2 or anchors.shape[1] != candidates.shape[1]:
            shapes = f"{(*anchors.shape,)} and {(*candidates.shape,)}"
            raise ValueError(f"anchors (A, D) and candidates (C, D) must be matrices of one width, got {shapes}")
        if anchor_ids.shape != anchors.shape[:1] or candidate_ids.shape != candidates.shape[:1]:
            shapes = f"{(*anchor_ids.shape,)} for {len(anchors)} and {(*candidate_ids.shape,)} for {len(candidates)}"
            raise ValueError(f"every anchor and every candidate needs one id, got {shapes}")
        self.columns: Tensor | None = None
        if bool((candidate_ids == -1).any()):
            self.columns = (candidate_ids != -1).nonzero().squeeze(1)
            candidates, candidate_ids = candidates[self.columns], candidate_ids[self.columns]
        dtype = torch.promote_types(torch.promote_types(anchors.dtype, candidates.dtype), torch.float32)
        self.anchors, self.candidates = anchors.detach().to(dtype), candidates.detach().to(dtype)
        for name, embeddings in (("anchors", self.anchors), ("candidates", self.candidates)):
            if not bool(embeddings.sum().isfinite()):  # one pass and no mask: a NaN or an infinity reaches the sum
                raise NotFinite(f"{name} contain a value that is not finite: check the encoder's output")
        self.own = Own(anchor_ids, candidate_ids)
        self.count = len(candidates) - self.own.count

    def per_anchor(self, number: float | Tensor, name: str) -> Tensor:
        """The number for every anchor, (A,); a float is a share of its candidates."""
        if isinstance(number, int):
            return torch.full_like(self.count, number)
        if isinstance(number, float):
            if not 0 <= number <= 1:
                raise ValueError(f"{name} must be in [0, 1] as a share of the candidates, got {number}")
            return (number * self.count.double()).floor().long()
        if number.shape != self.count.shape or number.is_floating_point():
            what = f"{(*number.shape,)} of {number.dtype}"
            raise ValueError(f"{name} must be one integer, or one per anchor ({len(self.count)}), got {what}")
        return number.to(self.count)

    def share(self, alpha: float) -> Tensor:
        """How many candidates of every anchor are its top share, at least one."""
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha}: it is the share of candidates treated as false")
        return (alpha * self.count.double()).round().long().clamp(min=1)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of anchors and their similarities, excluded ones -inf, in a buffer that is reused."""
        if len(self.candidates) == 0:
            return
        width = len(self.candidates)
        height = min(max(ROWS, min(KEPT // width, 2 * ROWS), CELLS // width), len(self.anchors))
        with _workspace.lend(height * width, self.anchors) as buffer:
            for start in range(0, len(self.anchors), max(height, 1)):
                rows = slice(start, min(start + height, len(self.anchors)))
                similarities = buffer[: (rows.stop - start) * width].view(-1, width)
                torch.mm(self.anchors[rows], self.candidates.T, out=similarities)
                similarities[self.own.pairs(rows)] = -torch.inf
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
