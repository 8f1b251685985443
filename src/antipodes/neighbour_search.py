"""`Search`: the nearest of many vectors by cosine: exact up to `LARGE` of them, through an inverted file above.

The inverted file, by faiss where it is installed and the device is the CPU, and otherwise here:

1. k-means on a sample of the vectors gives about 4 sqrt(n) centroids. A list holds the vectors nearest to a centroid.
2. A query is compared with the vectors of the lists whose centroids are nearest to it (`probes`): every list by one
   product with all queries that probe it.
3. A sample of the vectors is searched exactly as well. The probes are doubled, up to 128, until the share of true
   neighbours that the lists find, the recall, is `RECALL`. `Search.method` says which search it was, and the recall.

Of several ranks, each may hold a share of the vectors (`shared=True`): they have the centroids in common, the queries
of every rank visit all ranks, and no rank holds more than its own share and that of one other rank at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from antipodes.clustering import spherical_kmeans, summed
from antipodes.distributed import rank, world_size
from antipodes.functional.neighbours import NearestRows, Progress, largest_cosines, nearest
from antipodes.functional.normalise import normalise
from antipodes.functional.tensors import NotFinite

LARGE = 100_000
"""Vectors above which an inverted file is made."""

RECALL, CHECKED = 0.98, 1024
"""The share of the true neighbours that is to be found, and the number of vectors for which it is measured."""

_SAMPLE_PER_LIST, _ITERATIONS, _PROBES = 32, 5, (4, 128)
_BLOCK, _ROWS, _CELLS = 4096, 512, 2**22


class Search:
    """Finds the most similar of many vectors.

    Args:
        vectors: (n, F) float, of any length; with `shared` those of this rank.
        ids: (n,) int64 the numbers of the vectors, which several may have in common; None numbers them over all ranks.
        shared: Whether every rank holds a share of the vectors. All ranks then make the same calls.
        seed: Of the k-means.

    Attributes:
        method: `exact`, or the inverted file with its recall.
        recall: The share of true neighbours that was found in a sample; 1 if the search is exact.

    Example:
        >>> search = Search(torch.eye(3))
        >>> search(torch.tensor([[0.0, 0.8, 0.6]]), 2).rows
        tensor([[1, 2]])
    """

    def __init__(self, vectors: Tensor, ids: Tensor | None = None, shared: bool = False, seed: int = 0) -> None:
        self.ranks = world_size() if shared else 1
        self.vectors = vectors
        facts = torch.zeros(2, self.ranks, dtype=torch.int64, device=vectors.device)
        facts[0, self._rank], facts[1, self._rank] = len(vectors), _broken(vectors)
        lengths, broken = (summed(facts) if shared else facts).tolist()
        if any(broken):  # all ranks raise at once: if one stopped alone, the others would wait for it
            raise NotFinite("vectors hold NaN or infinite numbers: check the encoder's output")
        self._lengths: list[int] = lengths
        self.first = sum(self._lengths[: self._rank])
        rows = torch.arange(self.first, self.first + len(vectors), device=vectors.device)
        self.ids = rows if ids is None else ids.to(rows)
        self.method, self.recall = "exact", 1.0
        repeated = torch.ones((), dtype=torch.int64, device=vectors.device)
        if ids is not None and len(ids):
            repeated = self.ids.unique(return_counts=True)[1].max()
        self._most_alike = int(repeated)  # vectors of one number on this rank
        self._lists: _Lists | _Faiss | None = None
        if sum(self._lengths) > LARGE:
            self._build(seed)

    def __call__(
        self, queries: Tensor, k: int, own: Tensor | None = None, progress: Progress | None = None
    ) -> NearestRows:
        """Return the k nearest vectors of every query, the most similar first.

        Args:
            queries: (m, F) of any length.
            k: How many.
            own: (m,) the number of what every query shows: vectors of that number are no neighbours of it.
            progress: Called with (queries done, queries in all).

        Returns:
            Similarities and rows among the vectors of all ranks, (m, k); -inf and -1 where fewer were found.
        """
        if self.ranks == 1:
            found = self._here(queries, k, own, progress)
            return NearestRows(*found, self.recall)
        own = torch.full((len(queries),), -1, device=queries.device) if own is None else own
        counts = torch.zeros(self.ranks, dtype=torch.int64, device=queries.device)
        counts[self._rank] = len(queries)
        parts = []
        for source, count in enumerate(summed(counts).tolist()):
            asked, numbers = queries.new_empty(count, queries.shape[1]), own.new_empty(count)
            if source == self._rank:
                asked, numbers = queries.contiguous(), own.contiguous()
            dist.broadcast(asked, source)
            dist.broadcast(numbers, source)
            for each in self._here(asked, k, numbers, None):
                answers = [torch.empty_like(each) for _ in range(self.ranks)] if source == self._rank else None
                dist.gather(each.contiguous(), answers, source)
                parts += [torch.cat(answers, dim=1)] if answers is not None else []
            if progress is not None:
                progress(source + 1, self.ranks)
        best = parts[0].topk(min(k, parts[0].shape[1]))
        return NearestRows(best.values, parts[1].gather(1, best.indices), self.recall)

    @property
    def _rank(self) -> int:
        return rank() if self.ranks > 1 else 0

    def _here(self, queries: Tensor, k: int, own: Tensor | None, progress: Progress | None) -> tuple[Tensor, Tensor]:
        """Return the nearest of this rank's vectors, (m, k), filled up with -inf and -1."""
        wide = min(len(self.vectors), k + (0 if own is None else self._most_alike))
        if self._lists is not None:
            found, rows = self._lists.search(queries, wide, progress)
        else:
            found, rows = largest_cosines(queries, self.vectors, wide, progress=progress)
        if own is not None and wide:
            found = found.masked_fill(self.ids[rows.clamp(min=0)] == own[:, None], -torch.inf)
        best = found.topk(min(k, wide))
        rows = (rows.gather(1, best.indices) + self.first).masked_fill_(best.values == -torch.inf, -1)
        missing = (0, k - best.values.shape[1])
        return pad(best.values, missing, value=-torch.inf), pad(rows, missing, value=-1)

    def _build(self, seed: int) -> None:
        """Make the lists, and double the probes until the recall is reached on a sample of every rank."""
        total, device = sum(self._lengths), self.vectors.device
        step = max(1, total // (_SAMPLE_PER_LIST * (count := int(4 * total**0.5))))
        faiss = _faiss() if device.type == "cpu" and self.ranks == 1 else None
        if faiss is not None:
            self._lists = _Faiss(faiss, self.vectors, count, step)
        else:
            sample = self.vectors[::step]
            (found,) = spherical_kmeans(sample, [count], iterations=_ITERATIONS, tolerance=0.02, seed=seed)
            self._lists = _Lists(self.vectors, found.centroids)
        sample = self.vectors[:: max(1, total // CHECKED)]
        wide = min(11, len(self.vectors))  # ten neighbours, and the vector itself
        expected = largest_cosines(sample, self.vectors, wide)[1]
        while True:
            here = self._lists.search(sample, wide)[1]
            counts = torch.tensor([(expected[:, :, None] == here[:, None, :]).any(2).sum(), expected.numel()])
            hits, asked = (summed(counts.to(device)) if self.ranks > 1 else counts).tolist()
            self.recall = hits / max(asked, 1)
            if self.recall >= RECALL or self._lists.probes >= min(_PROBES[1], count):
                break
            self._lists.probes = min(2 * self._lists.probes, _PROBES[1], count)
        self.method = f"{self._lists.name}, {count} lists, {self._lists.probes} probes, recall {self.recall:.3f}"


class _Lists:
    """The vectors of one rank in lists by their nearest centroid."""

    name = "inverted file"

    def __init__(self, vectors: Tensor, centroids: Tensor) -> None:
        self.centroids, self.probes = centroids, min(_PROBES[0], len(centroids))
        home = _nearest_centroids(vectors, centroids, 1)[:, 0]
        self.order = home.argsort(stable=True)
        self.unit = centroids.new_empty(vectors.shape)
        for start in range(0, len(vectors), _BLOCK):
            part = slice(start, start + _BLOCK)
            self.unit[part] = normalise(vectors[self.order[part]])
        self.ends = [0, *torch.bincount(home, minlength=len(centroids)).cumsum(0).tolist()]

    def search(self, queries: Tensor, k: int, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Return similarities and rows (m, k) of the nearest vectors in the lists that are probed; -1 for none."""
        size = max(1, _CELLS // (self.probes * k))
        values, rows = self.unit.new_empty(len(queries), k), self.order.new_empty(len(queries), k)
        for start in range(0, len(queries), size):
            part = slice(start, start + size)
            values[part], rows[part] = self._some(normalise(queries[part]), k)
            if progress is not None:
                progress(min(part.stop, len(queries)), len(queries))
        return values, rows

    def _some(self, unit: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Compare every list with those of the queries that probe it, and join what the lists of a query have given."""
        probed = _nearest_centroids(unit, self.centroids, self.probes).flatten()
        order = probed.argsort(stable=True)  # the places in (queries x probes), list by list
        values, rows = unit.new_full((len(probed), k), -torch.inf), torch.full((len(probed), k), -1, device=unit.device)
        asked, counts = torch.unique_consecutive(probed[order], return_counts=True)
        for number, places in zip(asked.tolist(), order.split(counts.tolist()), strict=True):
            span = slice(self.ends[number], self.ends[number + 1])
            product = unit[places // self.probes] @ self.unit[span].T
            found = product.topk(min(k, product.shape[1]))
            values[places, : found.values.shape[1]] = found.values
            rows[places, : found.values.shape[1]] = self.order[span][found.indices]
        best = values.view(len(unit), -1).topk(k)
        return best.values, rows.view(len(unit), -1).gather(1, best.indices)


class _Faiss:
    """The same by faiss."""

    name = "faiss's inverted file"

    def __init__(self, faiss: Any, vectors: Tensor, count: int, step: int) -> None:
        self._set = faiss.ParameterSpace().set_index_parameter
        self._index = faiss.index_factory(vectors.shape[1], f"IVF{count},Flat", faiss.METRIC_INNER_PRODUCT)
        self._index.train(_single(vectors[::step]))
        for part in vectors.split(_BLOCK):
            self._index.add(_single(part))
        self.probes = _PROBES[0]

    def search(self, queries: Tensor, k: int, progress: Progress | None = None) -> tuple[Tensor, Tensor]:
        """Return similarities and rows (m, k), as `_Lists.search` does."""
        self._set(self._index, "nprobe", self.probes)
        parts: list[tuple[Tensor, ...]] = []
        for start in range(0, max(1, len(queries)), _BLOCK):
            part = _single(queries[start : start + _BLOCK])
            parts.append(tuple(map(torch.from_numpy, self._index.search(part, k))))
            if progress is not None:
                progress(min(start + _BLOCK, len(queries)), len(queries))
        values, rows = (torch.cat(column) for column in zip(*parts, strict=True))
        return values.masked_fill(rows < 0, -torch.inf), rows


def nearest_others(vectors: Tensor, k: int, progress: Progress | None = None) -> NearestRows:
    """Return the k nearest other vectors of every vector; `recall` of the answer is below 1 if it is approximate."""
    if len(vectors) <= LARGE:
        return nearest(vectors, k, progress)
    search = Search(vectors)
    return search(vectors, k, search.ids, progress)


def _faiss() -> Any:
    """Return the module faiss, None where it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


def _nearest_centroids(vectors: Tensor, centroids: Tensor, count: int) -> Tensor:
    """Return the nearest centroids of every vector, (n, count)."""
    found = torch.empty(len(vectors), count, dtype=torch.int64, device=vectors.device)  # filled: no holes in the heap
    for start in range(0, len(vectors), _ROWS):
        part = slice(start, start + _ROWS)
        found[part] = (normalise(vectors[part]) @ centroids.T).topk(count).indices
    return found


def _single(vectors: Tensor) -> NDArray[np.float32]:
    """Return vectors of length 1 as faiss takes them."""
    unit: NDArray[np.float32] = normalise(vectors).float().numpy()
    return unit


def _broken(vectors: Tensor) -> Tensor:
    """Return whether any number is NaN or infinite, as 0 or 1."""
    sums = torch.stack([normalise(part).sum() for part in vectors.split(_BLOCK)])
    return (~sums.isfinite().all()).long()
