"""Row selections: which candidates of an anchor are its most similar, and between which bounds a share of them lies.

`RowBlocks` computes the similarities of 64 anchors (more, if there are few candidates) with all candidates; the full
matrix never exists. What an anchor may not choose (its own id) is set to -inf, and candidates of a negative id (empty
queue slots) are left out before the product. Each row is partitioned, not sorted, while it is in cache: exact,
and tens of times faster than a sort. Other devices take ``torch.topk`` of the block.

Every function takes ``anchors`` (A, D) and ``candidates`` (C, D), both L2-normalised, with ``anchor_ids`` (A,) and
``candidate_ids`` (C,). Rank 0 is the most similar of the N_i candidates allowed for anchor i. Nothing here has a
gradient. Half precision is computed in float32.

A bound lies midway between the two similarities that it separates, so a kernel that recomputes them with other
rounding selects the same entries. Equal similarities cannot be separated by a bound: a tie across the edge of a
selection is selected as a whole.

`bounded` turns a rule's ranks into such bounds, after which every kernel can apply the rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.rule import Bounds, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.tensors import NotFinite, on_host

SLACK = 1e-6
"""A product such as 0.46 * 100 may come out as 45.99999999999999. What misses a whole number by no more than this is
taken for it, in one place, so that all who round a share agree."""


def whole_below(share: float | Tensor, count: Tensor) -> Tensor:
    """So many of `count` (A,) are a share, rounded down, int64.

    Example:
        >>> import torch
        >>> whole_below(0.9 - 0.44, torch.tensor([100, 10]))  # the difference is 0.45999999999999996
        tensor([46,  4])
    """
    return (share * count.double() + SLACK).floor().long()


def whole_above(share: float | Tensor, count: Tensor) -> Tensor:
    """So many of `count` (A,) are a share, rounded up, int64.

    Example:
        >>> import torch
        >>> whole_above(0.07, torch.tensor([100, 10]))  # 0.07 * 100 is 7.000000000000001
        tensor([7, 1])
    """
    return (share * count.double() - SLACK).ceil().long()


ROWS, CELLS = 64, 2**17  # a block has so many rows, and more while it has fewer cells, which stay in a CPU's cache
DEVICE_CELLS = 2**27  # on other devices every block costs launches and a read-back: few blocks, of up to 0.5 GB


class RowBlocks:
    """The candidates that every anchor may choose from: their number, and their similarities in blocks of rows.

    Args:
        anchors: (A, D).
        candidates: (C, D).
        anchor_ids: (A,) integers.
        candidate_ids: (C,) integers, negative for empty slots.
        same_sample: which candidates are of the anchors' own samples, if the caller has found them already.
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
        cells = CELLS if on_host(self.anchors) else DEVICE_CELLS
        height = min(max(ROWS, cells // width), len(self.anchors))
        buffer = self.anchors.new_empty(height * width)
        for start in range(0, len(self.anchors), max(height, 1)):
            rows = slice(start, min(start + height, len(self.anchors)))
            similarities = buffer[: (rows.stop - start) * width].view(-1, width)
            torch.mm(self.anchors[rows], self.candidates.T, out=similarities)
            yield rows, self.same_sample.exclude(similarities, rows)

    def places(self, first: Tensor, last: Tensor) -> Tensor:
        """Where the ranks [first, last) of every anchor end and begin; 0, 0 if nowhere.

        Args:
            first: (A,) or (A, R).
            last: likewise.

        Returns:
            (A, 2) or (A, R, 2).
        """
        if bool((first < 0).any()):
            raise ValueError(f"first must not be negative, got {int(first.min())}: rank 0 is the most similar")
        count = self.count if first.ndim == 1 else self.count[:, None]
        last = last.minimum(count)
        # nothing is below the last allowed rank: all columns, so that the row need not be partitioned there
        places = torch.stack([last.masked_fill(last == count, len(self.candidates)), first], dim=-1)
        return places.masked_fill_((first >= last)[..., None], 0)

    def original(self, columns: Tensor) -> Tensor:
        """Columns of the kept candidates as columns of all candidates; -1 stays."""
        if self.columns is None or len(self.columns) == 0:
            return columns
        return torch.where(columns < 0, columns, self.columns[columns])


def kth_largest(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, k: int | Tensor
) -> Tensor:
    """The k-th largest similarity of every anchor; k counts from 1 and is one number or (A,).

    Returns:
        (A,); -inf where the anchor has fewer than k candidates.

    Raises:
        ValueError: if k is below 1, or the inputs do not match or are not finite.

    Example:
        >>> e = torch.eye(3)
        >>> kth_largest(e[:1], torch.stack([e[0], e[1], -e[0]]), torch.tensor([9]), torch.tensor([0, 1, 2]), 3)
        tensor([-1.])
    """
    blocks = RowBlocks(anchors, candidates, anchor_ids, candidate_ids)
    k = blocks.per_anchor(k, "k")
    if bool((k < 1).any()):
        raise ValueError(f"k must be at least 1, got {int(k.min())}: 1 asks for the most similar candidate")
    result = blocks.anchors.new_full((len(anchors),), -torch.inf)
    for rows, similarities in blocks.blocks():
        ranks = k[rows].clamp(max=similarities.shape[1])
        result[rows] = edges(similarities, ranks[:, None])[0][:, 0]
    return result.masked_fill(k > blocks.count, -torch.inf)


def band_by_rank(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    first: float | Tensor,
    last: float | Tensor,
    same_sample: SameSample | None = None,
) -> tuple[Tensor, Tensor]:
    """Bounds (low, high) between which exactly the ranks [first, last) of every anchor lie, both ends closed.

    ``first`` and ``last`` are one rank or (A,), or a float, which is a share of N_i, rounded down. A bound at the end
    of the ranks is infinite; an empty range gives low = inf and high = -inf, which nothing satisfies. ``same_sample``
    says which pairs never count, where that is known already or more than ids say it.

    Raises:
        ValueError: if first is negative, or the inputs do not match or are not finite.

    Example:
        >>> points = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> ids = torch.arange(3)
        >>> band_by_rank(points[:1], points, ids[:1], ids, 0, 1)
        (tensor([0.3000]), tensor([inf]))
    """
    blocks = RowBlocks(anchors, candidates, anchor_ids, candidate_ids, same_sample)
    return band(blocks, blocks.per_anchor(first, "first"), blocks.per_anchor(last, "last"))


def band(blocks: RowBlocks, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """What `band_by_rank` returns, of candidates that are known already and ranks (A,)."""
    low, high = bands(blocks, first[:, None], last[:, None])
    return low[:, 0], high[:, 0]


def bands(blocks: RowBlocks, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of several bands of ranks [first, last), (A, R) each, in one pass over the similarities."""
    places = blocks.places(first, last)
    low = blocks.anchors.new_full(first.shape, torch.inf)
    high = -low
    for rows, similarities in blocks.blocks():
        low[rows], high[rows] = bounds(similarities, places[rows])
    return low, high


def top_share(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    alpha: float | Tensor,
    same_sample: SameSample | None = None,
) -> Tensor:
    """The ceiling that exactly the max(1, round(alpha * N_i)) most similar candidates of every anchor exceed (FNC).

    Alpha may be (A,), one for every anchor, of which 0 asks for none.

    Returns:
        (A,) to be compared with ``similarity > ceiling``; an anchor without candidates gets inf.

    Raises:
        ValueError: if alpha is not in (0, 1].
    """
    blocks = RowBlocks(anchors, candidates, anchor_ids, candidate_ids, same_sample)
    last = blocks.share(alpha)
    low, _ = band(blocks, torch.zeros_like(last), last)
    # s > the number just below low is s >= low, which is what the band promises
    return torch.where(low < torch.inf, low.nextafter(torch.full_like(low, -torch.inf)), low)


def top_pairs(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    alpha: float | Tensor,
    same_sample: SameSample | None = None,
) -> tuple[Tensor, Tensor]:
    """The pairs above the ceiling of `top_share`, one by one: positions of anchors and of candidates, (L,) each.

    For callers who rank by other vectors than those that the kernel compares; the list takes alpha * A * C numbers.

    Raises:
        ValueError: if alpha is not in (0, 1].
    """
    blocks = RowBlocks(anchors, candidates, anchor_ids, candidate_ids, same_sample)
    last = blocks.share(alpha)
    rows, columns = [torch.empty_like(last[:0])], [torch.empty_like(last[:0])]
    for part, similarities in blocks.blocks():
        lowest = edges(similarities.clone(), last[part, None])[0]  # of the chosen ones; the selection reorders its rows
        row, column = (similarities >= lowest.clamp(min=torch.finfo(lowest.dtype).min)).nonzero(as_tuple=True)
        rows.append(row + part.start)
        columns.append(column)
    return torch.cat(rows), blocks.original(torch.cat(columns))


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
    """Which of the very similarities (A, C) have the ranks of `RowBlocks.places`; the rows stay in order."""
    above, below = edges(similarities.clone(), places)
    return (similarities >= above[:, :1]) & (similarities <= below[:, 1:])


def bounds(similarities: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return bounds (low, high), (A, R) each, between which the ranks of `RowBlocks.places` (A, R, 2) lie.

    The rows of the similarities (A, C) are reordered as in `edges`, which takes the places of a row in falling order.
    """
    if places.shape[1] == 1:  # the two places of one band fall already
        above, below = (each[:, None] for each in edges(similarities, places[:, 0]))
    else:
        falling, order = places.flatten(1).sort(dim=1, descending=True)
        back = order.argsort(1)
        above, below = (each.gather(1, back).view(places.shape) for each in edges(similarities, falling))
    middle = (above + below) / 2
    # between neighbouring floats there is no middle: then the bound is the similarity inside the band
    low = torch.where(middle[..., 0] > below[..., 0], middle[..., 0], above[..., 0])
    high = torch.where(middle[..., 1] < above[..., 1], middle[..., 1], below[..., 1])
    last, first = places.unbind(-1)
    low.masked_fill_(last == similarities.shape[1], -torch.inf)
    high.masked_fill_(first == 0, torch.inf)
    return low, high.masked_fill_(last == 0, -torch.inf)


def partition(rows: np.ndarray, place: int) -> None:
    """Partition rows (..., C) of floats in place: what is in front of the place is no larger, the rest no smaller.

    As integers their bits take less than half the time, and they are in the order of the floats from zero on.
    """
    bits = rows.view(f"i{rows.itemsize}")
    bits.partition(place, axis=-1)
    if (bits[..., place] < 0).any():  # what is below zero has the opposite order
        rows.partition(place, axis=-1)


def _edges_by_partition(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    values = similarities.numpy()
    above = np.full(ranks.shape, np.inf, dtype=values.dtype)
    below = np.full_like(above, -np.inf)
    alike = bool((ranks == ranks[:1]).all())  # rows of the same ranks are partitioned by one call: no loop for a batch
    for rows in [slice(None)] if alike else [slice(i, i + 1) for i in range(len(values))]:
        block = values[rows]
        known: int | None = None  # the rank to the left
        for j, rank in enumerate(ranks[rows][0].tolist()):
            split = block.shape[1] - rank
            if rank == known:
                above[rows, j], below[rows, j] = above[rows, j - 1], below[rows, j - 1]
            elif rank and split:
                partition(block, split)  # one scalar at a time: a tuple of places takes numpy's slow path
                above[rows, j], below[rows, j] = block[:, split], block[:, :split].max(axis=1)
            elif rank:
                above[rows, j] = block.min(axis=1)
            elif split:
                below[rows, j] = block.max(axis=1)
            block, known = block[:, split:], rank
    return torch.from_numpy(above), torch.from_numpy(below)


def _edges_by_top_k(similarities: Tensor, ranks: Tensor) -> tuple[Tensor, Tensor]:
    width = min(int(ranks.max()) + 1, similarities.shape[1])
    end = similarities.new_full((len(similarities), 1), torch.inf)
    largest = torch.cat([end, similarities.topk(width).values, -end], dim=1)
    return largest.gather(1, ranks), largest.gather(1, ranks + 1)


def checked(ranks: Ranks, blocks: RowBlocks) -> tuple[Tensor, Tensor]:
    """The first and last ranks of every anchor, (A,) each.

    Raises:
        ValueError: if they are something else.
    """
    return blocks.per_anchor(ranks.first, "Ranks.first"), blocks.per_anchor(ranks.last, "Ranks.last")


def bounded(
    rules: Sequence[Rule],
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    *,
    guide: tuple[Tensor, Tensor] | None = None,
    same_sample: SameSample | None = None,
) -> tuple[Rule, ...]:
    """Return the same rules with their ranks as bounds of similarities.

    Args:
        rules: with or without ranks.
        anchors: (A, D).
        candidates: (C, D).
        anchor_ids: (A,).
        candidate_ids: (C,).
        guide: the guide's vectors (A, G) and (C, G), for ranks in its space.
        same_sample: which candidates are of the anchors' own samples, if that is known.

    Raises:
        ValueError: for ranks that are neither numbers nor one integer per anchor, or inputs that are not finite.
    """
    if not any(rule.ranks for rule in rules):
        return tuple(rules)
    result = [replace(rule, ranks=()) for rule in rules]
    for space, vectors in (("own", (anchors, candidates)), ("guide", guide)):
        asked = [(place, ranks) for place, rule in enumerate(rules) for ranks in rule.ranks if ranks.space == space]
        if not asked:
            continue
        if vectors is None:
            raise ValueError("a rule ranks by the guide's space: give guide=(anchor_guides, candidate_guides)")
        blocks = RowBlocks(*vectors, anchor_ids, candidate_ids, same_sample)
        first, last = zip(*(checked(ranks, blocks) for _, ranks in asked), strict=True)
        lows, highs = bands(blocks, torch.stack(first, 1), torch.stack(last, 1))
        for (place, _), low, high in zip(asked, lows.unbind(1), highs.unbind(1), strict=True):
            result[place] &= Rule(low=low, high=high) if space == "own" else Rule(guide=Bounds(low, high))
    return tuple(result)
