"""`Search`: the most similar vectors of a corpus: exactly, in blocks of bounded memory, or by faiss if it is large."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antipodes.auditing.neighbours import LARGE

TILE = 8192
"""Vectors of the corpus that are compared at a time."""

PROBES = 32
"""Lists of faiss's index that a query is compared with."""


class Search:
    """Finds the most similar of many vectors.

    Args:
        vectors: (n, F) float32 of unit length.

    Attributes:
        method: `exact`, or the index of faiss, which is approximate: it is taken above 300,000 vectors, where faiss is
            installed.

    Example:
        >>> search = Search(torch.eye(3))
        >>> search(torch.tensor([[0.0, 0.8, 0.6]]), 2)
        (tensor([[0.8000, 0.6000]]), tensor([[1, 2]]))
    """

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.method = "exact"
        self._index: Any = None
        if len(vectors) > LARGE:
            self._build()

    def __call__(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Similarities and rows (m, k) of the k most similar vectors, the most similar first.

        An approximate search may find fewer, whose rows are then -1 at the end.
        """
        if self._index is not None:
            return tuple(map(torch.from_numpy, self._index.search(queries.numpy(), k)))  # type: ignore[return-value]
        best, rows = queries.new_empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for start in range(0, len(self.vectors), TILE):
            product = queries @ self.vectors[start : start + TILE].T
            found = product.topk(min(k, product.shape[1]))
            both = torch.cat((best, found.values), dim=1)
            names = torch.cat((rows, found.indices + start), dim=1)
            merged = both.topk(min(k, both.shape[1]))
            best, rows = merged.values, names.gather(1, merged.indices)
        return best, rows

    def _build(self) -> None:
        try:
            import faiss
        except ImportError:
            return
        count, width = self.vectors.shape
        name = f"IVF{int(4 * count**0.5)},Flat"
        index = faiss.index_factory(width, name, faiss.METRIC_INNER_PRODUCT)
        index.train(self.vectors[:: max(1, count // 200_000)].numpy())
        index.add(self.vectors.numpy())
        faiss.ParameterSpace().set_index_parameter(index, "nprobe", PROBES)
        self._index, self.method = index, f"faiss {name}, {PROBES} probes"
