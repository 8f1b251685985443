"""`IFND`: false negatives from pseudo labels that are trusted more and more (Chen et al. 2022).

1. Now and then, `fit` clusters the features of the whole training set, once per granularity. The cluster's number is a
   sample's pseudo label y_i, and its confidence is the softmax over all centroids (Eq. 2)

       kappa_i = exp(cos(f_i, c_{y_i}) / tau) / sum_j exp(cos(f_i, c_j) / tau)

2. In every step, `judge` accepts the most confident share of all samples; the share rises with training.
3. Two accepted samples of one label are false negatives of each other. A sample that is not accepted is alone.

Each granularity is a rule of its own: the loss is the mean over their losses, not the loss of all masks together.
Labels are looked up by id at use, since a queue outlives a clustering.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from antipodes import schedules
from antipodes.clustering import BLOCK, spherical_kmeans, summed
from antipodes.distributed import gather, rank, world_size
from antipodes.negatives.policy import Policy, Space
from antipodes.pairs import Group, Pairs, Rule, normalise
from antipodes.state import check_ids

Acceptance = Literal["linear", "step", "constant"]


class IFND(Policy):
    """Candidates with the anchor's pseudo label are false negatives, if both labels are accepted.

    Before the first `fit` nothing is flagged.

    Args:
        num_samples: Size of the dataset.
        clusters: Numbers of clusters, coarse to fine; the paper takes 1, 2 and 5 times the number of classes.
        acceptance: How the accepted share moves with training (Table 4): `linear` from 0 to the final rate;
            `step` 0 before `step_at` and the final rate from there on (as PCL); `constant` the final rate from the
            first clustering on (as DeepCluster).
        final_rate: The share of samples accepted at the end.
        step_at: Where the step is, as a share of training; the paper has it at epoch 100 of 1000.
        every: Epochs between two fits; the paper takes 1 on ImageNet and 20 of 1000 on CIFAR.
        per_cluster: Accept the most confident share of every cluster instead of all samples.
        temperature: tau of the confidence.
        space: What is clustered. `features` of the encoder and `embeddings` of its head take a pass over the training
            images; `seen` takes the embeddings that came by since the last time, which costs nothing.
        seed: Of the first clustering; later ones start from the labels of the last.

    Raises:
        ValueError: for more clusters than samples, and for numbers out of their range.

    Example:
        >>> policy = IFND(num_samples=4, clusters=(2,))
        >>> policy.fit(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), progress=0.5)
        >>> sorted(policy.labels[0].tolist()), policy.rate(0.5)
        ([0, 0, 1, 1], 0.5)
    """

    labels: Tensor
    confidence: Tensor
    standing: Tensor
    centroids: Tensor
    fitted_at: Tensor
    seen: Tensor

    def __init__(
        self,
        num_samples: int,
        clusters: Sequence[int] = (10, 20, 50),
        acceptance: Acceptance = "linear",
        final_rate: float = 1.0,
        step_at: float = 0.1,
        every: int = 1,
        per_cluster: bool = False,
        temperature: float = 0.4,
        space: Space = "features",
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not clusters or len(set(clusters)) < len(clusters) or not all(1 <= k <= num_samples for k in clusters):
            raise ValueError(
                f"clusters must be different numbers between 1 and the {num_samples} samples, got {tuple(clusters)}"
            )
        if acceptance not in get_args(Acceptance):
            raise ValueError(f"acceptance must be one of {', '.join(get_args(Acceptance))}, got {acceptance!r}")
        if not 0 <= final_rate <= 1:
            raise ValueError(f"final_rate must be in [0, 1], got {final_rate}: it is a share of the samples")
        if not 0 < step_at <= 1:
            raise ValueError(f"step_at must be in (0, 1], got {step_at}: it is a share of training")
        if space not in get_args(Space):
            raise ValueError(f"space must be one of {', '.join(get_args(Space))}, got {space!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}: it counts epochs")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {temperature}: it divides the similarities")
        self.num_samples = num_samples
        self.clusters = tuple(clusters)
        self.every = every
        self.per_cluster = per_cluster
        self.temperature = temperature
        self.space = space
        self.seed = seed
        self.rate = {
            "linear": schedules.linear(0.0, final_rate),
            "step": schedules.step((0.0, 0.0), (step_at, final_rate)),
            "constant": schedules.constant(final_rate),
        }[acceptance]
        shape = (len(self.clusters), num_samples)
        self.register_buffer("labels", torch.full(shape, -1, dtype=torch.int32))
        self.register_buffer("confidence", torch.zeros(shape))
        # the share of samples that are more confident, counting half of the sample itself
        self.register_buffer("standing", torch.ones(shape))
        self.register_buffer("centroids", torch.zeros(sum(self.clusters), 0))
        self.register_buffer("fitted_at", torch.tensor(-1.0))
        self.register_buffer("seen", torch.zeros(num_samples if space == "seen" else 0, 0))

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0.

        Before the first epoch only if labels would be accepted at once: nothing has been learned yet.
        """
        return epoch % self.every == 0 and (epoch > 0 or (self.rate(0.0) > 0 and self.space != "seen"))

    @torch.no_grad()
    def fit(
        self, features: Tensor | None, progress: float = 1.0, report: Callable[[float], None] | None = None
    ) -> None:
        """Cluster the training set and take over its labels and confidences; the same call on every rank.

        Args:
            features: (n, F) of the whole training set in the order of its ids, without augmentation; any length.
                Of several ranks each clusters its share, ids n * rank // ranks up to n * (rank + 1) // ranks, and may
                also give these rows alone. None takes what `judge` has seen, with `space` "seen".
            progress: Share of training done; kept as `fitted_at`. The accepted share goes by the progress of `judge`.
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
            labels, confidence = self.labels[level].zero_(), self.confidence[level].zero_()
            labels[share] = found.labels.to(labels)
            confidence[share] = confidences(rows, found.centroids, found.labels, self.temperature).to(confidence)
            summed(labels)
            summed(confidence)
            self.standing[level] = standing(confidence, labels.long() if self.per_cluster else torch.zeros_like(labels))
        self.centroids = torch.cat([found.centroids for found in levels]).to(self.centroids)
        self.fitted_at.fill_(progress)

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Drop what shares the anchor's pseudo label, one rule per granularity."""
        ids = pairs.keys()[1]
        check_ids(pairs.anchor_ids, self.num_samples)
        check_ids(ids[ids >= 0], self.num_samples)  # -1 is an empty slot of a queue
        if self.space == "seen":
            self._see(pairs)
        rate = self.rate(progress)
        if rate == 0 or self.fitted_at < 0:
            return [Rule()]
        groups = zip(self._groups(pairs.anchor_ids, rate), self._groups(ids, rate), strict=True)
        return [Rule(groups=(Group(anchors, candidates, "drop"),)) for anchors, candidates in groups]

    def accepted(self, ids: Tensor, progress: float) -> Tensor:
        """The pseudo labels of these ids that are accepted at this share of training, -1 for others, (G, len(ids))."""
        return self._groups(ids, self.rate(progress))

    def _see(self, pairs: Pairs) -> None:
        """Keep the mean direction of every sample's anchors in the global batch."""
        ids, anchors = gather(pairs.anchor_ids), gather(pairs.anchors.detach())
        if not self.seen.shape[1]:  # the embeddings' width is known from the first step on
            self.seen = anchors.new_zeros(self.num_samples, anchors.shape[1], dtype=torch.float32)
        samples, owner = ids.unique(return_inverse=True)
        total = torch.zeros(len(samples), anchors.shape[1], device=ids.device).index_add_(0, owner, anchors.float())
        self.seen[samples] = normalise(total)

    def _groups(self, ids: Tensor, rate: float) -> Tensor:
        """The accepted labels of these ids and -1 for the others, (G, len(ids))."""
        rows = ids.clamp(min=0)
        accepted = (self.standing.index_select(1, rows) <= rate) & (ids >= 0)
        return self.labels.index_select(1, rows).long().masked_fill_(~accepted, -1)

    def export(self) -> dict[str, Tensor]:
        """The pseudo labels (n,), confidences (n,) and centroids (k, F) of every number of clusters k.

        Returns:
            `labels_k`, `confidence_k` and `centroids_k` for every k.

        Raises:
            ValueError: before the first `fit`.
        """
        if self.fitted_at < 0:
            raise ValueError("there are no pseudo labels to export: call fit first")
        result = {}
        for level, (k, centroids) in enumerate(zip(self.clusters, self.centroids.split(self.clusters), strict=True)):
            result[f"labels_{k}"] = self.labels[level].long()
            result[f"confidence_{k}"] = self.confidence[level].clone()
            result[f"centroids_{k}"] = centroids.clone()
        return result

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        for name in ("centroids", "seen"):  # their width is known from `fit` and from the first step on
            saved, own = state_dict.get(prefix + name), getattr(self, name)
            if saved is not None and len(saved) == len(own):
                setattr(self, name, own.new_zeros(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def confidences(features: Tensor, centroids: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """The softmax of a row's cosines to all centroids, at its own centroid (Eq. 2), in blocks.

    Args:
        features: (n, F) of any length.
        centroids: (k, F) of length 1.
        labels: (n,) int64 in 0..k-1.
        temperature: divides the cosines.

    Returns:
        (n,) in (0, 1].
    """
    result = torch.empty(len(features), dtype=centroids.dtype, device=features.device)
    for start in range(0, len(features), BLOCK):
        part = slice(start, start + BLOCK)
        logits = normalise(features[part]) @ centroids.T / temperature
        result[part] = logits.log_softmax(1).gather(1, labels[part, None])[:, 0].exp()
    return result


def standing(confidence: Tensor, groups: Tensor) -> Tensor:
    """The share of a row's group that is more confident, counting half of the row itself.

    What stands at or below a rate is the most confident `rate` of its group, rounded to whole rows. Of equals, the
    first row comes first.

    Args:
        confidence: (n,)
        groups: (n,) whole numbers; all 0 to rank all rows together.

    Returns:
        (n,) in (0, 1).
    """
    order = confidence.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]  # group by group, each from its most confident row on
    sizes = torch.bincount(groups)
    firsts = sizes.cumsum(0) - sizes
    own = groups[order]
    place = torch.arange(len(order), device=order.device) - firsts[own]
    result = torch.empty_like(confidence)
    result[order] = ((place.double() + 0.5) / sizes[own]).to(result)
    return result
