"""`Clustered`: what policies share that go by clusters of the training set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from antipodes.distributed import gather, rank, world_size
from antipodes.negatives.clustering import Clustering, spherical_kmeans, summed
from antipodes.negatives.policy import Policy, Space
from antipodes.pairs import Group, Pairs, Rule, normalise
from antipodes.state import check_ids


class Clustered(Policy):
    """A policy with the number of every sample's cluster, once per number of clusters, taken anew every few epochs.

    Labels are looked up by id at use, since a queue outlives a clustering. A clustering starts from the labels of the
    last, so a cluster keeps its number while the features drift.

    Args:
        num_samples: Size of the dataset.
        clusters: Numbers of clusters.
        every: Epochs between two fits.
        space: What is clustered. `features` of the encoder and `embeddings` of its head take a pass over the training
            images; `seen` takes the embeddings that came by since the last time, which costs nothing.
        seed: Of the first clustering; later ones start from the labels of the last.

    Raises:
        ValueError: for more clusters than samples, and for numbers out of their range.
    """

    labels: Tensor
    centroids: Tensor
    fitted_at: Tensor
    seen: Tensor

    def __init__(
        self, num_samples: int, clusters: Sequence[int], every: int = 1, space: Space = "features", seed: int = 0
    ) -> None:
        super().__init__()
        if not clusters or len(set(clusters)) < len(clusters) or not all(1 <= k <= num_samples for k in clusters):
            raise ValueError(
                f"clusters must be different numbers between 1 and the {num_samples} samples, got {tuple(clusters)}"
            )
        if space not in get_args(Space):
            raise ValueError(f"space must be one of {', '.join(get_args(Space))}, got {space!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}: it counts epochs")
        self.num_samples = num_samples
        self.clusters = tuple(clusters)
        self.every = every
        self.space = space
        self.seed = seed
        self.register_buffer("labels", torch.full((len(self.clusters), num_samples), -1, dtype=torch.int32))
        self.register_buffer("centroids", torch.zeros(sum(self.clusters), 0))
        self.register_buffer("fitted_at", torch.tensor(-1.0))
        self.register_buffer("seen", torch.zeros(num_samples if space == "seen" else 0, 0))

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0; not before the first, as nothing is learned yet."""
        return epoch > 0 and epoch % self.every == 0

    @torch.no_grad()
    def fit(
        self, features: Tensor | None, progress: float = 1.0, report: Callable[[float], None] | None = None
    ) -> None:
        """Cluster the training set and take over what comes of it; the same call on every rank.

        Args:
            features: (n, F) of the whole training set in the order of its ids, without augmentation; any length.
                Of several ranks each clusters its share, ids n * rank // ranks up to n * (rank + 1) // ranks, and may
                also give these rows alone. None takes what `judge` has seen, with `space` "seen".
            progress: Share of training done; kept as `fitted_at`.
            report: Called with the share of the clustering that is done.

        Raises:
            ValueError: for another number of rows, or features that are not finite; the old labels stay then.
        """
        features = self.seen if features is None else features
        n = self.num_samples
        share = slice(n * rank() // world_size(), n * (rank() + 1) // world_size())
        if features.dim() != 2 or len(features) not in (n, share.stop - share.start):
            raise ValueError(f"features must be ({n}, F), a row for every id, got {tuple(features.shape)}")
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}: it is the share of training done")
        rows = features[share] if len(features) == n else features
        last = [labels[share].long() for labels in self.labels] if self.fitted_at >= 0 else None
        levels = spherical_kmeans(rows, self.clusters, labels=last, seed=self.seed, progress=report)
        for level, found in enumerate(levels):
            labels = self.labels[level].zero_()
            labels[share] = found.labels.to(labels)
            summed(labels)
            self.take(level, found, rows, share)
        self.centroids = torch.cat([found.centroids for found in levels]).to(self.centroids)
        self.fitted_at.fill_(progress)

    def take(self, level: int, found: Clustering, rows: Tensor, share: slice) -> None:
        """Take in more of a clustering than its labels and centroids.

        Args:
            level: Which of the numbers of clusters.
            found: The clustering of this rank's rows.
            rows: (b, F) the features that were clustered, of this rank's samples.
            share: The ids of these samples.
        """

    def groups(self, ids: Tensor) -> Tensor:
        """The clusters (G, len(ids)) of these ids; -1 for empty slots, and for all before the first `fit`."""
        return self.labels.index_select(1, ids.clamp(min=0)).long().masked_fill_(ids < 0, -1)

    def look(self, pairs: Pairs) -> None:
        """Refuse ids outside of the dataset, and keep what `fit` may want to see."""
        ids = pairs.keys()[1]
        check_ids(pairs.anchor_ids, self.num_samples)
        check_ids(ids[ids >= 0], self.num_samples)  # -1 is an empty slot of a queue
        if self.space == "seen":
            self._see(pairs)

    def together(self, pairs: Pairs) -> Sequence[Rule]:
        """Rules that keep pairs of the same cluster, one per number of clusters; before the first `fit` no pair."""
        groups = zip(self.groups(pairs.anchor_ids), self.groups(pairs.keys()[1]), strict=True)
        return [Rule(groups=(Group(anchors, candidates, "only"),)) for anchors, candidates in groups]

    def _see(self, pairs: Pairs) -> None:
        """Keep the mean direction of every sample's anchors in the global batch."""
        ids, anchors = gather(pairs.anchor_ids), gather(pairs.anchors.detach())
        if not self.seen.shape[1]:  # the embeddings' width is known from the first step on
            self.seen = anchors.new_zeros(self.num_samples, anchors.shape[1], dtype=torch.float32)
        samples, owner = ids.unique(return_inverse=True)
        total = torch.zeros(len(samples), anchors.shape[1], device=ids.device).index_add_(0, owner, anchors.float())
        self.seen[samples] = normalise(total)

    def export(self) -> dict[str, Tensor]:
        """The pseudo labels (n,) and centroids (k, F) of every number of clusters k.

        Returns:
            `labels_k` and `centroids_k` for every k.

        Raises:
            ValueError: before the first `fit`.
        """
        if self.fitted_at < 0:
            raise ValueError("there are no pseudo labels to export: call fit first")
        result = {}
        for level, (k, centroids) in enumerate(zip(self.clusters, self.centroids.split(self.clusters), strict=True)):
            result[f"labels_{k}"] = self.labels[level].long()
            result[f"centroids_{k}"] = centroids.clone()
        return result

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in ("centroids", "seen"):  # their width is known from `fit` and from the first step on
            saved, own = state_dict.get(prefix + name), getattr(self, name)
            if saved is not None and len(saved) == len(own):
                setattr(self, name, own.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
