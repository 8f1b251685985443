"""Row selections: which candidates of an anchor are its most similar, and between which bounds a share of them lies.

`RowBlocks` computes the similarities block by block. Each row is partitioned, not sorted, while it is in cache: exact,
and tens of times faster than a sort. Other devices take ``torch.topk`` of the block.

Every function takes ``anchors`` (A, D) and ``candidates`` (C, D), both L2-normalised, with ``anchor_ids`` (A,) and
``candidate_ids`` (C,). Rank 0 is the most similar of the N_i candidates allowed for anchor i. Nothing here has a
gradient. Half precision is computed in float32.

A bound lies midway between the two similarities that it separates, so a kernel that recomputes them with other
rounding selects the same entries. Equal similarities cannot be separated by a bound: a tie across the edge of a
selection is selected as a whole.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.row_blocks import RowBlocks
from antipodes.functional.same_sample import SameSample


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
        ValueError: if first is negative, or the inputs do not fit together or are not finite.

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
    places = blocks.places(first, last)
    low = blocks.anchors.new_full((len(places),), torch.inf)
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
    """Bounds (low, high) between which the ranks of `RowBlocks.places` lie; the rows are reordered as in `edges`."""
    above, below = edges(similarities, places)
    middle = (above + below) / 2
    # between neighbouring floats there is no middle: then the bound is the similarity inside the band
    low = torch.where(middle[:, 0] > below[:, 0], middle[:, 0], above[:, 0])
    high = torch.where(middle[:, 1] < above[:, 1], middle[:, 1], below[:, 1])
    last, first = places.unbind(1)
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
        for j, rank in enumerate(ranks[rows][0].tolist()):
            split = block.shape[1] - rank
            if rank and split:
                partition(block, split)  # one scalar at a time: a tuple of places takes numpy's slow path
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
