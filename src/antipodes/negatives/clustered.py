"""`Clustered`, what policies by clusters of the training set share, and `Cave`: negatives from the own cluster only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from antipodes.clustering import Clustering, spherical_kmeans, summed
from antipodes.distributed import gather, rank, world_size
from antipodes.negatives.policy import Needs, Policy, Space, check_rows
from antipodes.pairs import Group, Pairs, Rule, normalise
from antipodes.state import ByRow, sample_count


class Clustered(Policy):
    """A policy with the number of every sample's cluster, once per number of clusters, taken again every few epochs.

    Labels are looked up by row at use, since a queue outlives a clustering. A clustering starts from the labels of the
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

    row_state: ClassVar[Mapping[str, ByRow]] = {"labels": ByRow(1), "seen": ByRow()}
    needs = Needs(learn=True, fits=True)
    num_samples: int
    labels: Tensor
    centroids: Tensor
    fitted_at: Tensor
    seen: Tensor

    def __init__(
        self, num_samples: int, clusters: Sequence[int], every: int = 1, space: Space = "features", seed: int = 0
    ) -> None:
        super().__init__()
        num_samples = sample_count(num_samples)
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
        self.needs = replace(self.needs, space=space, guide=space == "guide")
        self.seed = seed
        self.register_buffer("labels", torch.full((len(self.clusters), num_samples), -1, dtype=torch.int32))
        self.register_buffer("centroids", torch.zeros(sum(self.clusters), 0))
        self.register_buffer("fitted_at", torch.tensor(-1.0))
        self.register_buffer("seen", torch.zeros(num_samples if space == "seen" else 0, 0))
        self._is_fitted: bool | None = None
        self._asked = False  # whether the training loop asks when `fit` is due, and so is going to call it

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0; not before the first, as nothing is learned yet."""
        self._asked = True
        return epoch > 0 and epoch % self.every == 0

    @torch.no_grad()
    def fit(
        self, features: Tensor | None, progress: float = 1.0, report: Callable[[float], None] | None = None
    ) -> None:
        """Cluster the training set and take over what comes of it; the same call on every rank.

        Args:
            features: (n, F) of the whole training set in the order of its rows, without augmentation; any length.
                Of several ranks each clusters its share, rows n * rank // ranks up to n * (rank + 1) // ranks, and may
                also give these rows alone. None takes what `judge` has seen, with `space` "seen".
            progress: Share of training done; kept as `fitted_at`.
            report: Called with the share of the clustering that is done.

        Raises:
            ValueError: for another number of rows, for features that are not finite, and for none where none were
                seen; the old labels stay then.
        """
        if features is None and not self.seen.shape[1]:
            raise ValueError(
                f"there is nothing to cluster: {type(self).__name__} has seen no step yet, train first or give features"
                if self.needs.space == "seen"
                else f"fit needs the features of the training set: {type(self).__name__} has space {self.needs.space!r}"
            )
        features = self.seen if features is None else features
        n = self.num_samples
        share = slice(n * rank() // world_size(), n * (rank() + 1) // world_size())
        if features.dim() != 2 or len(features) not in (n, share.stop - share.start):
            raise ValueError(f"features must be ({n}, F), a row for every sample, got {tuple(features.shape)}")
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}: it is the share of training done")
        rows = features[share] if len(features) == n else features
        last = self._last(rows, share) if self.fitted_at >= 0 else None
        levels = spherical_kmeans(rows, self.clusters, labels=last, seed=self.seed, progress=report)
        for level, found in enumerate(levels):
            labels = self.labels[level].zero_()
            labels[share] = found.labels.to(labels)
            summed(labels)
            self.keep_more(level, found, rows, share)
        self.centroids = torch.cat([found.centroids for found in levels]).to(self.centroids)
        self.fitted_at.fill_(progress)
        self._is_fitted = True

    def _last(self, rows: Tensor, share: slice) -> list[Tensor]:
        """The labels of the last time; a sample that came since then has that of the most similar centroid."""
        found = [labels[share].long() for labels in self.labels]
        for labels, centroids in zip(found, self.centroids.split(self.clusters), strict=True):
            new = labels < 0
            if new.any():
                labels[new] = (rows[new].to(centroids) @ centroids.T).argmax(1)
        return found

    def keep_more(self, level: int, found: Clustering, rows: Tensor, share: slice) -> None:
        """Keep more of a clustering than its labels and centroids.

        Args:
            level: Which of the numbers of clusters.
            found: The clustering of this rank's rows.
            rows: (b, F) the features that were clustered, of this rank's samples.
            share: The rows of these samples in the tables.
        """

    def fitted(self) -> bool:
        """Whether there are clusters; where no training loop calls `fit`, say once that there are none."""
        if self._is_fitted is None:  # read once, as a device would have to be waited for in every step
            self._is_fitted = bool(self.fitted_at >= 0)
        if self._is_fitted:
            return True
        if not self._asked:
            self.warn_once(
                f"{type(self).__name__} has no clusters yet and leaves all candidates as they are: "
                "call its fit(features, progress) now and then"
            )
        return False

    def groups(self, rows: Tensor) -> Tensor:
        """The clusters (G, len(rows)) of these rows; -1 for empty slots, and for all before the first `fit`."""
        return self.labels.index_select(1, rows.clamp(min=0)).long().masked_fill_(rows < 0, -1)

    def observe(self, pairs: Pairs, learn: bool = True) -> None:
        """Refuse rows outside of the dataset, and keep what `fit` may want to see."""
        check_rows(pairs, self.num_samples)
        if self.needs.space == "seen" and learn and self.training:
            self._see(pairs)

    def same_cluster(self, pairs: Pairs) -> Sequence[Rule]:
        """Rules that keep pairs of the same cluster, one per number of clusters; before the first `fit` no pair."""
        anchor_rows, candidate_rows = pairs.rows()
        groups = zip(self.groups(anchor_rows), self.groups(candidate_rows), strict=True)
        return [Rule(groups=(Group(anchors, candidates, "only"),)) for anchors, candidates in groups]

    def _see(self, pairs: Pairs) -> None:
        """Keep the mean direction of every sample's anchors in the global batch."""
        rows, anchors = gather(pairs.rows()[0]), gather(pairs.anchors.detach())
        if not self.seen.shape[1]:  # the embeddings' width is known from the first step on
            self.seen = anchors.new_zeros(self.num_samples, anchors.shape[1], dtype=torch.float32)
        samples, owner = rows.unique(return_inverse=True)
        total = torch.zeros(len(samples), anchors.shape[1], device=rows.device).index_add_(0, owner, anchors.float())
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
            saved, current = state_dict.get(prefix + name), getattr(self, name)
            if saved is not None and len(saved) == len(current):
                setattr(self, name, current.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        self._is_fitted = None


class Cave(Clustered):
    """Cave discrimination (Wu et al. 2021, appendix F): only samples of the anchor's k-means cluster are negatives.

    The clusters take the place of Ring's ball: hard, because they are the anchor's neighbourhood, and cheap, because
    nothing is ranked. Before the first `fit`, which comes after the first `every` epochs, all candidates count.

    Args:
        num_samples: Size of the dataset.
        clusters: Number of clusters; several take the mean of their losses. The paper gives none: 10 leave about the
            tenth of the candidates that Ring ends with.
        every: Epochs between two fits.
        space: What is clustered. `seen`, the embeddings that came by since the last time, is the bank of the paper on
            every base and costs nothing; `features` of the encoder and `embeddings` of its head take a pass over the
            training images.
        seed: Of the first clustering; later ones start from the labels of the last.

    Raises:
        ValueError: for more clusters than samples, and for numbers out of their range.

    Example:
        >>> import torch
        >>> policy = Cave(num_samples=4, clusters=(2,))
        >>> policy.fit(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), progress=0.5)
        >>> sorted(policy.labels[0].tolist())
        [0, 0, 1, 1]
    """

    def __init__(
        self,
        num_samples: int,
        clusters: Sequence[int] = (10,),
        every: int = 1,
        space: Space = "seen",
        seed: int = 0,
    ) -> None:
        super().__init__(num_samples, clusters, every, space, seed)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Ignore what is in another cluster, one rule per number of clusters."""
        self.observe(pairs, learn)
        if not self.fitted():
            return [Rule()]
        return self.same_cluster(pairs)
