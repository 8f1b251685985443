"""The nearest neighbours of every vector among all of them, exactly, in half of the products.

In plain terms:
1. The vectors are cut into blocks. A block with itself gives every row k first neighbours, and with the k-th of them a
   bar that later candidates have to pass.
2. Every other pair of blocks is one product. What passes the bar of its row is a candidate of the row; what passes the
   bar of its column is one of the column. So a product serves both, and no product is computed twice.
3. Candidates are merged into the lists and the bars rise: soon next to nothing passes. Whether anything does is seen
   from the highest of every row and column, so a product costs little more than itself.
Memory is the vectors, the lists and one product of two blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.progress import Progress

BLOCK = 1024
LARGE = 300_000
"""Vectors from which faiss's approximate search is taken, where it is installed."""


@dataclass(frozen=True)
class NearestRows:
    """Similarities (m, k) float32 and rows (m, k) int64 of the nearest vectors of m queries, nearest first."""

    similarities: Tensor
    rows: Tensor
    exact: bool = True


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
    unit = normalize(vectors.float())
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


def nearest_of(
    queries: Tensor, vectors: Tensor, k: int, own_rows: Tensor | None = None, progress: Progress | None = None
) -> NearestRows:
    """The k nearest vectors of every query, by cosine.

    Args:
        queries: (m, F) float.
        vectors: (n, F) float.
        k: number of neighbours; all vectors where there are fewer.
        own_rows: (m,) int64, the row among `vectors` that a query is itself, which is no neighbour of it; -1 for none.
        progress: called with (queries done, queries in all).

    Raises:
        ValueError: if k is below 1, or the vectors differ in length.
    """
    _check(vectors, k)
    if queries.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} numbers and the vectors {vectors.shape[1]}: embed both with one encoder"
        )
    unit = normalize(vectors.float())
    k = min(k, len(unit) - (own_rows is not None and bool((own_rows >= 0).any())))
    if k < 1:
        raise ValueError("there is no other vector to be a neighbour: add samples")
    similarities, rows = [], []
    size = max(1, 2**22 // len(unit))
    for start in range(0, len(queries), size):
        product = normalize(queries[start : start + size].float()) @ unit.T
        if own_rows is not None:
            mine = own_rows[start : start + size]
            product[mine >= 0, mine[mine >= 0]] = -torch.inf
        best = product.topk(k)
        similarities.append(best.values)
        rows.append(best.indices)
        if progress is not None:
            progress(min(start + size, len(queries)), len(queries))
    return NearestRows(torch.cat(similarities), torch.cat(rows))


def nearest_large(vectors: Tensor, k: int, progress: Progress | None = None) -> NearestRows:
    """The k nearest other vectors: exact up to `LARGE` vectors, by faiss's inverted lists above, where it is installed.

    Of the approximate lists a query looks at 32 of about 4 sqrt(n). `exact` of the answer says which it was.
    """
    if len(vectors) <= LARGE:
        return nearest(vectors, k, progress)
    try:
        import faiss
    except ImportError:
        return nearest(vectors, k, progress)
    _check(vectors, k)
    unit = normalize(vectors.float()).numpy()
    n, width = unit.shape
    index = faiss.index_factory(width, f"IVF{int(4 * n**0.5)},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(unit[:: max(1, n // 200_000)])
    index.add(unit)
    faiss.ParameterSpace().set_index_parameter(index, "nprobe", 32)
    similarities, rows = torch.full((n, k), -torch.inf), torch.full((n, k), -1)
    for start in range(0, n, BLOCK):
        values, found = map(torch.from_numpy, index.search(unit[start : start + BLOCK], k + 1))
        others = found != torch.arange(start, start + len(found))[:, None]
        others[others.all(1), -1] = False  # a sample that did not find itself among many equals
        similarities[start : start + BLOCK] = values[others].view(-1, k)
        rows[start : start + BLOCK] = found[others].view(-1, k)
        if progress is not None:
            progress(start + len(found), n)
    return NearestRows(similarities, rows, exact=False)


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
