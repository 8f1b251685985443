"""The exact nearest neighbours of vectors by cosine: of every vector among all of them, or of queries among vectors.

`nearest_of` computes the similarities of blocks of queries with blocks of vectors and keeps the largest of every row.
Where the vectors are their own queries, `nearest` needs half of the products:

1. The vectors are cut into blocks. A block with itself gives every row k first neighbours, and with the k-th of them a
   bar that later candidates have to pass.
2. Every other pair of blocks is one product. What passes the bar of its row is a candidate of the row; what passes the
   bar of its column is one of the column. So a product serves both, and no product is computed twice.
3. Candidates are merged into the lists and the bars rise: soon next to nothing passes. Whether anything does is seen
   from the highest of every row and column, so a product costs little more than itself.
Memory is the vectors, the lists and one product of two blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.normalise import normalise
from antipodes.functional.same_sample import SameSample
from antipodes.functional.tensors import NotFinite

Progress = Callable[[int, int], None]
BLOCK, WIDE, CELLS = 1024, 2**16, 2**22
"""Vectors in a block of all pairs; the most vectors, and the most similarities, of a block of queries."""

_NOT_FINITE = "vectors hold NaN or infinite numbers: check the encoder's output"


class NearestRows(NamedTuple):
    """Similarities (m, k) and rows (m, k) int64 of the nearest vectors of m queries, nearest first."""

    similarities: Tensor
    rows: Tensor
    recall: float = 1.0  # the share of true neighbours that an approximate search has found in a sample

    @property
    def exact(self) -> bool:
        """Whether the search was exact."""
        return self.recall == 1.0


@torch.no_grad()
def nearest(vectors: Tensor, k: int, progress: Progress | None = None, block: int = BLOCK) -> NearestRows:
    """The k nearest other vectors of every vector, by cosine.

    Args:
        vectors: (n, F) float, n at least 2; need not be normalised. A zero vector has similarity 0 to all.
        k: number of neighbours; all others where there are fewer.
        progress: called with (products done, products in all).
        block: vectors in a block.

    Raises:
        ValueError: if k is below 1, or there are fewer than two vectors.

    Example:
        >>> found = nearest(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1)
        >>> found.rows
        tensor([[1],
                [0],
                [1]])
    """
    _check(vectors, k)
    n = len(vectors)
    if n < 2:
        raise ValueError("neighbours need at least two vectors, there is one: add samples")
    k = min(k, n - 1)
    unit = _unit(vectors)
    similarities = unit.new_full((n, k), -torch.inf)
    rows = torch.full((n, k), -1)
    blocks = [slice(start, min(start + block, n)) for start in range(0, n, block)]
    total, done = len(blocks) * (len(blocks) + 1) // 2, 0
    for span in blocks:
        product = unit[span] @ unit[span].T
        product.fill_diagonal_(-torch.inf)
        width = min(k, product.shape[1])
        similarities[span, :width], rows[span, :width] = product.topk(width)
        rows[span, :width] += span.start
        done += 1
        if progress is not None:
            progress(done, total)
    for number, first in enumerate(blocks):
        for second in blocks[number + 1 :]:
            product = unit[first] @ unit[second].T
            _merge(product, 0, first, second.start, similarities, rows)
            _merge(product, 1, second, first.start, similarities, rows)
            done += 1
            if progress is not None:
                progress(done, total)
    return NearestRows(similarities, rows)


@torch.no_grad()
def nearest_of(
    queries: Tensor,
    vectors: Tensor,
    k: int,
    own: Tensor | None = None,
    ids: Tensor | None = None,
    progress: Progress | None = None,
) -> NearestRows:
    """The k nearest vectors of every query, by cosine.

    1. The similarities of a block of queries with a block of vectors are computed, about 4 million at a time.
    2. Those of a query with its own vectors are set to -inf.
    3. The k largest of every row, of all blocks, are the answer.

    Args:
        queries: (m, F) float; need not be normalised.
        vectors: (n, F) float, likewise.
        k: number of neighbours; all vectors where there are fewer.
        own: (m,) int64, the number of what every query shows; vectors of that number are no neighbours of it. -1: none.
        ids: (n,) int64, the numbers of the vectors; None takes their rows.
        progress: called with (queries done, queries in all).

    Returns:
        Similarities and rows, (m, k); -inf and -1 where a query has fewer neighbours.

    Raises:
        ValueError: if k is below 1, the vectors differ in length, or a number is not finite.

    Example:
        >>> vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> nearest_of(vectors[:1], vectors, k=1, own=torch.tensor([0])).rows
        tensor([[1]])
    """
    _check(vectors, k)
    if queries.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} numbers and the vectors {vectors.shape[1]}: embed both with one encoder"
        )
    k = min(k, len(vectors) - (ids is None and own is not None and bool((own >= 0).any())))
    if k < 1:
        raise ValueError("there is no other vector to be a neighbour: add samples")
    if ids is None:
        ids = torch.arange(len(vectors), device=vectors.device)
    values, rows = largest_cosines(queries, vectors, k, None if own is None else SameSample(own, ids), progress)
    if bool(values.isnan().any()):
        raise NotFinite(_NOT_FINITE)
    return NearestRows(values, rows.masked_fill_(values == -torch.inf, -1))


@torch.no_grad()
def largest_cosines(
    queries: Tensor, vectors: Tensor, k: int, same: SameSample | None = None, progress: Progress | None = None
) -> tuple[Tensor, Tensor]:
    """The k largest cosines of every query and the rows of the vectors, both (m, min(k, n)); nothing is checked.

    Blocks are scaled to length 1 when they are multiplied, so that no copy of all vectors is made. NaN counts as larger
    than any number, so that it is among the answers.

    Args:
        queries: (m, F) float; need not be normalised.
        vectors: (n, F) float, likewise.
        k: how many.
        same: which pairs have -inf and come last.
        progress: called with (products done, products in all).
    """
    width = max(1, min(len(vectors), WIDE))
    size = CELLS // width
    k = min(k, len(vectors))
    # what stays is written into tensors that are there: between products, new ones would leave holes in the heap
    values = normalise(vectors[:0]).new_full((len(queries), k), -torch.inf)
    rows = torch.full(values.shape, -1, device=values.device)
    total = -(-len(vectors) // width) * -(-len(queries) // size)
    done = 0
    for start in range(0, len(vectors), width):
        block = normalise(vectors[start : start + width])
        for first in range(0, len(queries), size):
            part = slice(first, first + size)
            product = normalise(queries[part]) @ block.T
            if same is not None:
                lines, columns = same.pairs(part)
                if len(block) < len(vectors):
                    inside = (columns >= start) & (columns < start + width)
                    lines, columns = lines[inside], columns[inside] - start
                product[lines, columns] = -torch.inf
            found = product.topk(min(k, len(block)))
            _keep_best(values[part], rows[part], found.values, found.indices.add_(start), start == 0)
            done += 1
            if progress is not None:
                progress(done, total)
    return values, rows


def _keep_best(values: Tensor, rows: Tensor, more: Tensor, their_rows: Tensor, empty: bool) -> None:
    """Join answers (b, <= k) with the best so far (b, k), in place; these may still be empty."""
    if empty:
        values[:, : more.shape[1]], rows[:, : more.shape[1]] = more, their_rows
        return
    joined = torch.cat((values, more), 1)
    kept = joined.topk(values.shape[1])
    rows.copy_(torch.cat((rows, their_rows), 1).gather(1, kept.indices))
    values.copy_(kept.values)


def _merge(product: Tensor, axis: int, span: slice, offset: int, similarities: Tensor, rows: Tensor) -> None:
    """Take what passes the bars of some rows into their lists, in place.

    Args:
        product: similarities of these rows to others.
        axis: which dimension of it counts these rows.
        span: which rows they are.
        offset: the row of the first of the others.
        similarities: (n, k) the lists of all rows.
        rows: (n, k) whose they are.
    """
    values, indices = similarities[span], rows[span]
    k = values.shape[1]
    touched = (product.amax(1 - axis) > values[:, -1]).nonzero().flatten()
    if len(touched) == 0:
        return
    looked = product.index_select(axis, touched).movedim(axis, 0).contiguous()
    line, column = (looked > values[touched, -1:]).nonzero(as_tuple=True)  # sorted by line
    counts = torch.bincount(line, minlength=len(touched))
    place = torch.arange(len(line)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    joined = values.new_full((len(touched), k + int(counts.max())), -torch.inf)
    names = torch.full(joined.shape, -1)
    joined[:, :k], names[:, :k] = values[touched], indices[touched]
    joined[line, k + place] = looked[line, column]
    names[line, k + place] = column + offset
    best = joined.topk(k)
    values[touched], indices[touched] = best.values, names.gather(1, best.indices)


def _check(vectors: Tensor, k: int) -> None:
    if vectors.ndim != 2:
        raise ValueError(f"vectors must be (n, F), got {tuple(vectors.shape)}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}: it is the number of neighbours of every sample")


def _unit(vectors: Tensor) -> Tensor:
    """Return the vectors at length 1; refuse what is not finite."""
    unit = normalise(vectors)
    if not bool(unit.sum().isfinite()):
        raise NotFinite(_NOT_FINITE)
    return unit
