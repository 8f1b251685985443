"""Row selections: which candidates of an anchor are its most similar, and between which bounds a share of them lies.

1. The similarities of 64 anchors (128, if there are at most 65,536 candidates, and more, if there are few) with all
   candidates are computed; the full matrix never exists.
2. Candidates that an anchor may not choose (its own id) are set to -inf at their few positions; candidates of id -1
   (empty queue slots) are left out before the product.
3. Each row is partitioned, not sorted, while it is in the processor's cache: exact, and tens of times faster than a
   sort. Other devices take ``torch.topk`` of the block.

Every function takes ``anchors`` (A, D) and ``candidates`` (C, D), both L2-normalised, with ``anchor_ids`` (A,) and
``candidate_ids`` (C,). Rank 0 is the most similar of the N_i candidates allowed for anchor i. Nothing here has a
gradient. Half precision is computed in float32.

A bound lies midway between the two similarities that it separates, so a kernel that recomputes them with other
rounding selects the same entries. Equal similarities cannot be separated by a bound: a tie across the edge of a
selection is selected as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.errors import NotFinite

ROWS, CELLS = 64, 2**17  # a block has at least so many rows, and more while it has fewer cells
KEPT = 2**23  # blocks have twice the rows up to so many cells, 32 MB in float32, and a CPU keeps that memory


def kth_largest(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, k: int | Tensor
) -> Tensor:
    """The k-th largest similarity of every anchor; k counts from 1 and is one number or (A,).

    Returns:
        (A,); -inf where the anchor has fewer than k candidates.

    Raises:
        ValueError: if k is below 1, or the inputs do not fit together or are not finite.

    Example:
        >>> e = torch.eye(3)
        >>> kth_largest(e[:1], torch.stack([e[0], e[1], -e[0]]), torch.tensor([9]), torch.tensor([0, 1, 2]), 3)
        tensor([-1.])
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    k = allowed.per_anchor(k, "k")
    if bool((k < 1).any()):
        raise ValueError(f"k must be at least 1, got {int(k.min())}: 1 asks for the most similar candidate")
    result = allowed.anchors.new_full((len(anchors),), -torch.inf)
    for rows, similarities in allowed.blocks():
        ranks = k[rows].clamp(max=similarities.shape[1])
        result[rows] = edges(similarities, ranks[:, None])[0][:, 0]
    return result.masked_fill(k > allowed.count, -torch.inf)


def band_by_rank(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    first: int | Tensor,
    last: int | Tensor,
) -> tuple[Tensor, Tensor]:
    """Bounds (low, high) between which exactly the ranks [first, last) of every anchor lie, both ends closed.

    ``first`` and ``last`` are one number or (A,). A bound at the end of the ranks is infinite; an empty range gives
    low = inf and high = -inf, which nothing satisfies.

    Raises:
        ValueError: if first is negative, or the inputs do not fit together or are not finite.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ids = torch.arange(3)
        >>> band_by_rank(points[:1], points, ids[:1], ids, 0, 1)
        (tensor([0.3000]), tensor([inf]))
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    return allowed.band(allowed.per_anchor(first, "first"), allowed.per_anchor(last, "last"))


def ring(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, inner: float, outer: float
) -> tuple[Tensor, Tensor]:
    """Bounds (low, high) of Ring: the ranks [floor(inner * outer * N_i), floor(outer * N_i)) of every anchor.

    ``outer`` is the share of the candidates in the outer ball, ``inner`` the share of that ball which is too close. In
    percentiles of similarity, inner 0.1 keeps [0, 90] at outer 1 and [90, 99] at outer 0.1.

    Raises:
        ValueError: if inner is not in [0, 1) or outer not in (0, 1].
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    return allowed.band(*ring_ranks(allowed.count, inner, outer))


def ring_ranks(count: Tensor, inner: float, outer: float) -> tuple[Tensor, Tensor]:
    """The first rank of the ring and the one after its last, for anchors with so many candidates."""
    if not 0 <= inner < 1:
        raise ValueError(f"inner must be in [0, 1), got {inner}: it is the share of the outer ball that is left out")
    if not 0 < outer <= 1:
        raise ValueError(f"outer must be in (0, 1], got {outer}: it is the share of the candidates in the outer ball")
    number = count.double()
    return (inner * outer * number).floor().long(), (outer * number).floor().long()


def top_share(anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, alpha: float) -> Tensor:
    """The ceiling that exactly the max(1, round(alpha * N_i)) most similar candidates of every anchor exceed (FNC).

    Returns:
        (A,) to be compared with ``similarity > ceiling``; an anchor without candidates gets inf.

    Raises:
        ValueError: if alpha is not in (0, 1].
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    last = allowed.share(alpha)
    low, _ = allowed.band(torch.zeros_like(last), last)
    # s > the number just below low is s >= low, which is what the band promises
    return torch.where(low < torch.inf, low.nextafter(torch.full_like(low, -torch.inf)), low)


def top_pairs(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, alpha: float
) -> tuple[Tensor, Tensor]:
    """The pairs above the ceiling of `top_share`, one by one: positions of anchors and of candidates, (L,) each.

    For callers who rank by other vectors than those that the kernel compares; the list takes alpha * A * C numbers.

    Raises:
        ValueError: if alpha is not in (0, 1].
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    last = allowed.share(alpha)
    rows, columns = [torch.empty_like(last[:0])], [torch.empty_like(last[:0])]
    for part, similarities in allowed.blocks():
        lowest = edges(similarities.clone(), last[part, None])[0]  # of the chosen ones; the selection reorders its rows
        row, column = (similarities >= lowest.clamp(min=torch.finfo(lowest.dtype).min)).nonzero(as_tuple=True)
        rows.append(row + part.start)
        columns.append(column)
    return torch.cat(rows), allowed.original(torch.cat(columns))


def top_k(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k most similar candidates of every anchor, the most similar first.

    Returns:
        similarities (A, k) and their columns in ``candidates`` (A, k); -inf and -1 where there are fewer than k. Equal
        similarities come by column on the CPU, in any order elsewhere.

    Raises:
        ValueError: if k is below 1, or the inputs do not fit together or are not finite.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}: 1 asks for the most similar candidate")
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    values = allowed.anchors.new_full((len(anchors), k), -torch.inf)
    columns = torch.full((len(anchors), k), -1, device=values.device)
    for rows, similarities in allowed.blocks():
        width = min(k, similarities.shape[1])
        values[rows, :width], columns[rows, :width] = _top(similarities, width)
    return values, allowed.original(columns.masked_fill(values == -torch.inf, -1))


def draw_from_band(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    low: Tensor,
    high: Tensor,
    m: int,
    generator: torch.Generator,
    *,
    rank: int = 0,
    world_size: int = 1,
) -> Tensor:
    """Draw m candidates per anchor, uniformly and with replacement, from those with low <= similarity <= high.

    The random numbers are drawn for the anchors of all ranks, and each rank takes its own, so that two ranks of A
    anchors with equal generators draw what one rank of 2A anchors draws.

    Returns:
        columns in ``candidates`` (A, m), int64; a row of -1 where the band of the anchor is empty.

    Raises:
        ValueError: if m is negative, low or high is not (A,), or the inputs do not fit together or are not finite.
    """
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    count = len(anchors)
    if m < 0:
        raise ValueError(f"m must not be negative, got {m}: it is the number of draws per anchor")
    if low.shape != (count,) or high.shape != (count,):
        raise ValueError(f"low and high need one bound per anchor ({count}), got {(*low.shape,)} and {(*high.shape,)}")
    # excluded candidates have the similarity -inf, so an open lower bound is the lowest finite number
    low, high = (bound.detach().to(allowed.anchors) for bound in (low, high))
    low = low.clamp(min=torch.finfo(low.dtype).min)
    numbers = uniform_numbers(generator, (count, m), rank, world_size, allowed.anchors.device)
    columns = torch.full((count, m), -1, device=allowed.anchors.device)
    for rows, similarities in allowed.blocks():
        inside = (similarities >= low[rows, None]) & (similarities <= high[rows, None])
        columns[rows] = draw(inside, numbers[rows])[0]
    return allowed.original(columns)


def uniform_numbers(
    generator: torch.Generator, shape: tuple[int, ...], rank: int, world_size: int, device: torch.device
) -> Tensor:
    """Numbers in [0, 1) for the anchors of all ranks, of which each rank takes its own.

    Two ranks of A anchors with equal generators get what one rank of 2A anchors gets.

    Args:
        generator: In the same state on all ranks.
        shape: (..., A, m) of this rank.
        rank: Whose numbers to take.
        world_size: How many ranks.
        device: Where to put them.

    Returns:
        float64, 53 random bits, so that floor(number * size) is uniform for a bank of any size.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}: it says whose random numbers to take")
    *outer, count, m = shape
    numbers = torch.rand(
        *outer, world_size * count, m, dtype=torch.float64, generator=generator, device=generator.device
    )
    return numbers[..., rank * count : (rank + 1) * count, :].to(device)


def draw(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Choose by numbers (A, m) in [0, 1) among the columns inside (A, C).

    Returns:
        the columns (A, m), -1 where there are none, and the number that there were to choose from (A,).
    """
    return _draw_by_rows(inside, numbers) if inside.device.type == "cpu" else _draw_by_counts(inside, numbers)


def edges(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    """The similarities on both sides of every rank: the smallest of the ``rank`` largest, and the largest of the rest.

    Args:
        similarities: (A, C); on the CPU the rows are reordered in place.
        ranks: (A, E) in 0..C, falling from left to right in every row, which leaves less and less to partition.

    Returns:
        two (A, E) tensors; inf above rank 0 and -inf below rank C.
    """
    if similarities.device.type == "cpu":
        return _edges_by_partition(similarities, ranks)
    return _edges_by_top_k(similarities, ranks)


def within(similarities: Tensor, places: Tensor) -> Tensor:
    """Which of the very similarities (A, C) have the ranks of `Allowed.places`; the rows stay in order."""
    above, below = edges(similarities.clone(), places)
    return (similarities >= above[:, :1]) & (similarities <= below[:, 1:])


def bounds(similarities: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds (low, high) between which the ranks of `Allowed.places` lie; the rows are reordered as in `edges`."""
    above, below = edges(similarities, places)
    middle = (above + below) / 2
    # between neighbouring floats there is no middle: then the bound is the similarity inside the band
    low = torch.where(middle[:, 0] > below[:, 0], middle[:, 0], above[:, 0])
    high = torch.where(middle[:, 1] < above[:, 1], middle[:, 1], below[:, 1])
    last, first = places.unbind(1)
    low.masked_fill_(last == similarities.shape[1], -torch.inf)
    high.masked_fill_(first == 0, torch.inf)
    return low, high.masked_fill_(last == 0, -torch.inf)


def _edges_by_partition(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    values = similarities.numpy()
    above = np.full(ranks.shape, np.inf, dtype=values.dtype)
    below = np.full_like(above, -np.inf)
    alike = bool((ranks == ranks[:1]).all())  # rows of the same ranks are partitioned by one call: no loop for a batch
    for rows in [slice(None)] if alike else [slice(i, i + 1) for i in range(len(values))]:
        block = values[rows]
        for j, rank in enumerate(ranks[rows][0].tolist()):
            split = block.shape[1] - rank
            if rank and split:
                block.partition(split, axis=1)  # one scalar at a time: a tuple of places takes numpy's slow path
                above[rows, j], below[rows, j] = block[:, split], block[:, :split].max(axis=1)
            elif rank:
                above[rows, j] = block.min(axis=1)
            elif split:
                below[rows, j] = block.max(axis=1)
            block = block[:, split:]
    return torch.from_numpy(above), torch.from_numpy(below)


def _edges_by_top_k(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    width = min(int(ranks.max()) + 1, similarities.shape[1])
    end = similarities.new_full((len(similarities), 1), torch.inf)
    largest = torch.cat([end, similarities.topk(width).values, -end], dim=1)
    return largest.gather(1, ranks), largest.gather(1, ranks + 1)


def _top(similarities: Tensor, k: int) -> tuple[Tensor, Tensor]:
    if similarities.device.type != "cpu":
        values, columns = similarities.topk(k)
        return values, columns
    columns = torch.empty(len(similarities), k, dtype=torch.int64)
    for row, chosen in zip(similarities.numpy(), columns.numpy(), strict=True):
        at_least = np.flatnonzero(row >= np.partition(row, len(row) - k)[len(row) - k])
        chosen[:] = at_least[np.argsort(-row[at_least], kind="stable")[:k]]
    return similarities.gather(1, columns), columns


def _draw_by_rows(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    columns, sizes = torch.full(numbers.shape, -1), torch.zeros(len(numbers), dtype=torch.int64)
    rows = zip(inside.numpy(), numbers.numpy(), columns.numpy(), strict=True)
    for place, (row, number, chosen) in enumerate(rows):
        places = np.flatnonzero(row)
        sizes[place] = len(places)
        if len(places):
            chosen[:] = places[(number * len(places)).astype(np.int64)]
    return columns, sizes


def _draw_by_counts(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    counts = inside.cumsum(1)
    size = counts[:, -1:].contiguous()
    return torch.searchsorted(counts, (numbers * size).long() + 1).masked_fill(size == 0, -1), size[:, 0]


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
        # anchor i may not choose by_id[same_from[i] : same_from[i] + same[i]]
        ids, self.by_id = candidate_ids.long().sort()
        anchor_ids = anchor_ids.long().contiguous()
        self.same_from = torch.searchsorted(ids, anchor_ids)
        self.same = torch.searchsorted(ids, anchor_ids, right=True) - self.same_from
        self.count = len(candidates) - self.same

    def per_anchor(self, number: int | Tensor, name: str) -> Tensor:
        """The number for every anchor, (A,)."""
        if isinstance(number, int):
            return torch.full_like(self.count, number)
        if number.shape != self.count.shape or number.is_floating_point():
            what = f"{(*number.shape,)} of {number.dtype}"
            raise ValueError(f"{name} must be an integer or one integer per anchor ({len(self.count)}), got {what}")
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
                same = self.same[rows]
                row = torch.arange(len(same), device=same.device).repeat_interleave(same)
                within = torch.arange(len(row), device=same.device) - (same.cumsum(0) - same)[row]
                similarities[row, self.by_id[self.same_from[rows][row] + within]] = -torch.inf
                yield rows, similarities

    def places(self, first: Tensor, last: Tensor) -> Tensor:
        """Where the ranks [first, last) of every anchor end and begin, (A, 2) as `edges` takes it; 0, 0 if nowhere."""
        if bool((first < 0).any()):
            raise ValueError(f"first must not be negative, got {int(first.min())}: rank 0 is the most similar")
        last = last.minimum(self.count)
        # nothing is below the last allowed rank: all columns, so that the row need not be partitioned there
        places = torch.stack([last.masked_fill(last == self.count, len(self.candidates)), first], dim=1)
        return places.masked_fill_((first >= last)[:, None], 0)

    def band(self, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds between which exactly the ranks [first, last) of every anchor lie."""
        places = self.places(first, last)
        low = self.anchors.new_full((len(places),), torch.inf)
        high = -low
        for rows, similarities in self.blocks():
            low[rows], high[rows] = bounds(similarities, places[rows])
        return low, high

    def original(self, columns: Tensor) -> Tensor:
        """Columns of the kept candidates as columns of all candidates; -1 stays."""
        if self.columns is None or len(self.columns) == 0:
            return columns
        return torch.where(columns < 0, columns, self.columns[columns])
