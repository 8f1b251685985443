"""The nearest neighbours of large sets: exact up to 300,000 vectors, and by faiss above, where it is installed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.functional.neighbours import BLOCK, NearestRows, nearest
from antipodes.progress import Progress

LARGE = 300_000
"""Vectors from which faiss's approximate search is taken, where it is installed."""


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
