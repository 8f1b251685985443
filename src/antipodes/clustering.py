"""Spherical k-means for several numbers of clusters at once, warm-started, sharded over ranks.

1. Start: from the labels of the previous clustering (a cluster keeps its number while the features change), or cold,
   from rows that k-means++ draws from a random sample.
2. Update: a centroid is the direction of the sum of its members' unit vectors.
3. Assign: each sample gets the centroid of the highest cosine. A cluster without members gets the sample that is least
   similar to its own centroid.

Steps 2 and 3 repeat. Rows are read in blocks, once for all numbers of clusters, so in addition to the features only
O(block x clusters) numbers are in memory. Every rank holds a contiguous share of the rows, and only sums are exchanged.
The same features, labels and seed give the same clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from antipodes.distributed import rank, world_size
from antipodes.seeding import generator

BLOCK = 1024
# The largest number of iterations, and the share of changed labels below which they stop. If clusters only drifted, the
# first assignment settles them; features without clusters gain 1 % by the second and third iteration.
COLD, WARM = (20, 0.0), (3, 0.01)
SAMPLE_PER_CLUSTER, TRIES = 16, 16  # of the cold start


@dataclass(frozen=True, eq=False)
class Clustering:
    """The clusters that k-means found for one number of clusters.

    Attributes:
        labels: (n,) int64 in 0..k-1, the centroid of the highest cosine, of this rank's rows.
        centroids: (k, F), of length 1, the same on all ranks. The zero vector where the members cancel out.
        similarity: (n,) cosine of every row of this rank to its own centroid.
        inertia: mean of 1 - cosine over the rows of all ranks: what k-means makes small.
    """

    labels: Tensor
    centroids: Tensor
    similarity: Tensor
    inertia: float


@torch.no_grad()
def spherical_kmeans(
    features: Tensor,
    clusters: Sequence[int],
    *,
    labels: Sequence[Tensor] | None = None,
    iterations: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Clustering]:
    """Cluster the directions of the rows, once for every number of clusters.

    A zero row has cosine 0 to every centroid. If the rows have fewer directions than there are clusters, rows of one
    direction are split among several clusters.

    Args:
        features: (n, F) of any length; with several ranks this rank's rows, the ranks' rows following each other.
        clusters: the numbers of clusters.
        labels: for every number of clusters the (n,) int64 labels to start from; None is a cold start.
        iterations: largest number of updates and assignments. None: 20 cold, 3 warm.
        tolerance: stop when at most this share of the labels changes. None: 0 cold, 0.01 warm.
        seed: seed of the cold start.
        progress: called with the share of the work done, in [0, 1].

    Raises:
        ValueError: for features that are not finite or not a matrix, for more clusters than rows, and for labels of
            another shape or range.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0], [0.1, 3.0]])
        >>> (two,) = spherical_kmeans(features, [2])
        >>> two.labels[0] == two.labels[1], two.labels[1] == two.labels[2]
        (tensor(True), tensor(False))
    """
    if features.dim() != 2 or not features.is_floating_point():
        raise ValueError(f"features must be floating point (n, F), got {features.dtype} {tuple(features.shape)}")
    defaults = COLD if labels is None else WARM
    iterations = defaults[0] if iterations is None else iterations
    tolerance = defaults[1] if tolerance is None else tolerance
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}: labels come from an assignment")
    rows = _Rows(features.detach())
    if not clusters or not all(1 <= k <= rows.count for k in clusters):
        raise ValueError(f"numbers of clusters must be between 1 and the {rows.count} rows, got {tuple(clusters)}")

    # one table holds the centroids for all numbers of clusters; a place is a row of it
    total, offsets = sum(clusters), torch.tensor([0, *clusters], device=features.device).cumsum(0)[:-1, None]
    if labels is None:
        places = torch.full((len(clusters), len(features)), -1, device=features.device)
        centroids = torch.cat([rows.spread(k, generator("clustering", seed, k)) for k in clusters])
        empty = torch.zeros(total, dtype=torch.bool, device=features.device)
    else:
        places = _checked(labels, clusters, len(features)).to(features.device) + offsets

    for iteration in range(iterations):
        if iteration or labels is not None:
            centroids, empty = rows.means(places, total)
        before = places
        on_progress = partial(_report_progress, progress, iteration, iterations)
        places, similarity = rows.nearest(centroids, empty, clusters, on_progress)
        for place, closeness, start, k in zip(places, similarity, offsets[:, 0].tolist(), clusters, strict=True):
            rows.fill_empty(place, closeness, centroids, range(start, start + k))
        if int(summed((places != before).sum(1)).max()) <= tolerance * rows.count:
            break
    _report_progress(progress, 0, 1, 1.0)
    inertia = 1 - summed(similarity.sum(1, dtype=torch.float64)) / rows.count
    parts = zip(places - offsets, centroids.split(list(clusters)), similarity, inertia.tolist(), strict=True)
    return [Clustering(*part) for part in parts]


class _Rows:
    """This rank's rows, read in blocks and normalised block by block; the features are not changed."""

    def __init__(self, features: Tensor) -> None:
        self.features = features
        self.dtype = features.dtype if features.dtype == torch.float64 else torch.float32
        shares = torch.zeros(world_size(), dtype=torch.int64, device=features.device)
        shares[rank()] = len(features)
        shares = summed(shares)
        self.first, self.count = int(shares[: rank()].sum()), int(shares.sum())  # among the rows of all ranks
        self.scale = torch.empty(len(features), dtype=self.dtype, device=features.device)
        broken = torch.zeros((), dtype=torch.int64, device=features.device)
        for start in range(0, len(features), BLOCK):
            part = slice(start, start + BLOCK)
            length = torch.linalg.vector_norm(features[part], dim=1, dtype=torch.float64)  # float32's squares overflow
            broken += (~length.isfinite()).sum()
            short = length < torch.finfo(self.dtype).tiny
            self.scale[part] = length.reciprocal().masked_fill(short, 0.0).to(self.dtype)
        if summed(broken):  # all ranks raise at once: if one stopped alone, the others would wait for it
            raise ValueError(f"{int(broken)} rows of features hold NaN or infinite numbers: check the encoder's output")

    def unit(self, rows: slice | Tensor) -> Tensor:
        """Return these rows with length 1, (rows, F)."""
        return self.features[rows].to(self.dtype) * self.scale[rows, None]

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield all rows with length 1 in blocks, each with its place."""
        for start in range(0, len(self.features), BLOCK):
            part = slice(start, start + BLOCK)
            yield part, self.unit(part)

    def means(self, places: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Return centroids (total, F) of places (G, n), and which centroids have no members (total,)."""
        sums = torch.zeros(total, self.features.shape[1], dtype=self.dtype, device=self.features.device)
        for part, block in self.blocks():
            for place in places:
                sums.index_add_(0, place[part], block)
        members = torch.bincount(places.flatten(), minlength=total)
        sums = summed(sums)
        length = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
        return sums / length.masked_fill(length == 0, torch.inf), summed(members) == 0

    def nearest(
        self, centroids: Tensor, empty: Tensor, clusters: Sequence[int], on_progress: Callable[[float], None]
    ) -> tuple[Tensor, Tensor]:
        """Return the nearest centroid and its cosine, (G, n) each; centroids without members are skipped."""
        places = torch.empty(len(clusters), len(self.features), dtype=torch.int64, device=self.features.device)
        similarity = torch.empty(places.shape, dtype=self.dtype, device=self.features.device)
        # only on a CPU may one look without waiting
        transposed, any_empty = centroids.T, empty.device.type != "cpu" or bool(empty.any())
        for part, block in self.blocks():
            scores = block @ transposed
            if any_empty:
                scores.masked_fill_(empty, -torch.inf)
            offset = 0
            for level, section in enumerate(scores.split(list(clusters), dim=1)):
                best, place = section.max(dim=1)
                places[level, part], similarity[level, part] = place + offset, best
                offset += clusters[level]
            on_progress(min(part.stop / len(self.features), 1.0))
        return places, similarity.clamp_(-1, 1)

    def fill_empty(self, places: Tensor, similarity: Tensor, centroids: Tensor, numbers: range) -> None:
        """Give each centroid without members the row that is least similar to its own; changes the tensors."""
        members = summed(torch.bincount(places, minlength=numbers.stop)[numbers.start : numbers.stop])
        empty = (members == 0).nonzero()[:, 0] + numbers.start
        if not len(empty):
            return
        # every rank proposes its least similar rows; a stable sort gives the same choice on every rank
        order = similarity.masked_fill(self.scale == 0, 2.0)  # zero rows come last: they have no direction
        local = order.argsort(stable=True)[: len(empty)]
        proposed = torch.zeros(world_size(), len(empty), dtype=similarity.dtype, device=places.device)
        proposed[rank()] = 3.0  # for a rank with fewer rows
        proposed[rank(), : len(local)] = order[local]
        proposed = summed(proposed)
        chosen = proposed.flatten().argsort(stable=True)[: len(empty)] - rank() * len(empty)
        ours = (chosen >= 0) & (chosen < len(local))
        taken = local[chosen[ours]]
        moved = torch.zeros(len(empty), centroids.shape[1], dtype=self.dtype, device=places.device)
        moved[ours] = self.unit(taken)
        centroids[empty] = summed(moved)
        places[taken] = empty[ours]
        similarity[taken] = (self.scale[taken] > 0).to(self.dtype)

    def spread(self, k: int, random: torch.Generator) -> Tensor:
        """Return the directions of k rows far apart (k, F), the same on all ranks: greedy k-means++ on a random sample.

        Of several rows drawn in proportion to their distance from the chosen rows, it takes the one that leaves the
        smallest sum of distances.
        """
        size = min(self.count, SAMPLE_PER_CLUSTER * k)
        drawn = torch.randperm(self.count, generator=random)[:size].to(self.features.device) - self.first
        ours = (drawn >= 0) & (drawn < len(self.features))
        sample = torch.zeros(size, self.features.shape[1], dtype=self.dtype, device=self.features.device)
        sample[ours] = self.unit(drawn[ours])
        sample = summed(sample)
        distance = 2.0 * sample.any(1)  # a zero row has no direction
        # one buffer for all draws: fresh ones, with what is kept between them, left up to 2 GB of holes in the heap
        chosen, remaining = torch.empty(k, dtype=torch.int64, device=sample.device), sample.new_empty(TRIES, size)
        draws = torch.rand(k, TRIES, generator=random, dtype=torch.float64).to(sample.device)
        for number, draw in enumerate(draws):
            weight = distance.clamp(min=0).double().cumsum(0)
            # beyond the end if all rows coincide with a chosen one: fill_empty then fills the remaining clusters
            tried = torch.searchsorted(weight, draw * weight[-1], right=True).clamp(max=size - 1)
            torch.mm(sample[tried], sample.T, out=remaining)
            torch.minimum(distance, remaining.neg_().add_(1), out=remaining)
            best = remaining.sum(1).argmin(0, keepdim=True)  # stays a tensor: a device need not be waited for
            chosen[number : number + 1] = tried[best]
            distance = remaining[best].squeeze(0)
        return sample[chosen]


def summed(tensor: Tensor) -> Tensor:
    """Sum a tensor over ranks, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
    return tensor


def _checked(labels: Sequence[Tensor], clusters: Sequence[int], count: int) -> Tensor:
    if len(labels) != len(clusters) or any(label.shape != (count,) for label in labels):
        shapes = [tuple(label.shape) for label in labels]
        raise ValueError(f"labels must be {len(clusters)} tensors of shape ({count},), one per number, got {shapes}")
    for label, k in zip(labels, clusters, strict=True):
        if label.is_floating_point() or bool(((label < 0) | (label >= k)).any()):
            raise ValueError(f"the labels of {k} clusters must be whole numbers in 0..{k - 1}")
    return torch.stack([label.long() for label in labels])


def _report_progress(progress: Callable[[float], None] | None, iteration: int, iterations: int, share: float) -> None:
    if progress is not None:
        progress((iteration + share) / iterations)
