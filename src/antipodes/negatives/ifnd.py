"""`IFND`: false negatives from pseudo labels that are trusted more and more (Chen et al. 2022).

1. Now and then, `fit` clusters the features of the whole training set, once per granularity. The cluster's number is a
   sample's pseudo label y_i, and its confidence is the softmax over all centroids (Eq. 2)

       kappa_i = exp(cos(f_i, c_{y_i}) / tau) / sum_j exp(cos(f_i, c_j) / tau)

2. In every step, `judge` accepts the most confident share of all samples; the share rises with training. Confidences
   are ranked by log(1 - kappa) in float64, since many of them are 1 to the last digit.
3. Two accepted samples of one label are false negatives of each other. A sample that is not accepted is alone.

Each granularity is a rule of its own: the loss is the mean over their losses, not the loss of the joined masks.
Labels are looked up by row at use, since a queue outlives a clustering.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from antipodes import schedules
from antipodes.clustering import BLOCK, Clustering, summed
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.policy import Space
from antipodes.pairs import Group, Pairs, Rule, normalise
from antipodes.state import ByRow

Acceptance = Literal["linear", "step", "constant"]


class IFND(Clustered):
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
        every: Epochs between two fits, of which the last may come after the last epoch; the paper takes 1 on ImageNet
            and 20 of 1000 on CIFAR.
        temperature: tau of the confidence.
        space: What is clustered. `features` of the encoder and `embeddings` of its head take a pass over the training
            images; `seen` takes the embeddings that came by since the last time, which costs nothing.
        seed: Of the first clustering; later ones start from the labels of the last.
        towers: Whose features are clustered where a method has several: `anchor`, those of the tower that makes the
            direction's anchors; or names, such as `image`, `text`, or `image+text` for clusters of both, which serve
            both directions.

    Raises:
        ValueError: for more clusters than samples, and for numbers out of their range.

    Example:
        >>> policy = IFND(num_samples=4, clusters=(2,))
        >>> policy.fit(torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]), progress=0.5)
        >>> sorted(policy.labels[0].tolist()), policy.rate(0.5)
        ([0, 0, 1, 1], 0.5)
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {**Clustered.row_state, "confidence": ByRow(1), "standing": ByRow(1)}
    confidence: Tensor
    standing: Tensor

    def __init__(
        self,
        num_samples: int,
        clusters: Sequence[int] = (10, 20, 50),
        acceptance: Acceptance = "linear",
        final_rate: float = 1.0,
        step_at: float = 0.1,
        every: int = 1,
        temperature: float = 0.4,
        space: Space = "features",
        seed: int = 0,
        towers: str = "anchor",
    ) -> None:
        super().__init__(num_samples, clusters, every, space, seed)
        if not all(towers.split("+")):
            raise ValueError(f"towers must be anchor, or names joined by + such as image+text, got {towers!r}")
        if towers != "anchor" and space == "seen":
            raise ValueError(f"space 'seen' knows the anchors' embeddings only: leave towers at anchor, got {towers!r}")
        self.needs = replace(self.needs, towers=towers)
        if acceptance not in get_args(Acceptance):
            raise ValueError(f"acceptance must be one of {', '.join(get_args(Acceptance))}, got {acceptance!r}")
        if not 0 <= final_rate <= 1:
            raise ValueError(f"final_rate must be in [0, 1], got {final_rate}: it is a share of the samples")
        if not 0 < step_at <= 1:
            raise ValueError(f"step_at must be in (0, 1], got {step_at}: it is a share of training")
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {temperature}: it divides the similarities")
        self.temperature = temperature
        self.rate = {
            "linear": schedules.linear(0.0, final_rate),
            "step": schedules.step((0.0, 0.0), (step_at, final_rate)),
            "constant": schedules.constant(final_rate),
        }[acceptance]
        shape = (len(self.clusters), num_samples)
        self.register_buffer("confidence", torch.zeros(shape))
        # the share of samples that are more confident, counting half of the sample itself
        self.register_buffer("standing", torch.ones(shape))

    def due(self, epoch: int) -> bool:
        """Whether it wants `fit` before this epoch, counted from 0.

        Before the first epoch only if labels would be accepted at once: nothing has been learned yet.
        """
        self._asked = True
        return epoch % self.every == 0 and (epoch > 0 or (self.rate(0.0) > 0 and self.needs.space != "seen"))

    def keep_more(self, level: int, found: Clustering, rows: Tensor, share: slice) -> None:
        """Keep the confidences in the new labels, and where each stands among all."""
        labels = self.labels[level]
        doubt = torch.zeros(self.num_samples, dtype=torch.float64, device=labels.device)
        doubt[share] = doubts(rows, found.centroids, found.labels, self.temperature).to(doubt)
        summed(doubt)
        self.confidence[level] = -torch.expm1(doubt)
        self.standing[level] = standing(-doubt, self._ranked_within(labels))

    @property
    def uses_progress(self) -> bool:
        """Whether the accepted share moves with training."""
        return len({value for _, value in self.rate.points}) > 1

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's pseudo label, one rule per granularity."""
        self.observe(pairs, learn)
        rate = self._rate(progress)
        if rate == 0 or not self.fitted():
            return [Rule()]
        anchor_rows, candidate_rows = pairs.rows()
        groups = zip(self._accepted(anchor_rows, rate), self._accepted(candidate_rows, rate), strict=True)
        return [Rule(groups=(Group(anchors, candidates, "drop"),)) for anchors, candidates in groups]

    def accepted(self, rows: Tensor, progress: float) -> Tensor:
        """The pseudo labels of these rows that are accepted at this share of training, else -1, (G, len(rows))."""
        return self._accepted(rows, self._rate(progress))

    def _rate(self, progress: float) -> float:
        """The share of the samples that is accepted at this share of training."""
        return self.rate(progress)

    def _ranked_within(self, labels: Tensor) -> Tensor:
        """The group (n,) within which every sample's confidence is ranked: one group of all samples."""
        return torch.zeros_like(labels)

    def _accepted(self, rows: Tensor, rate: float) -> Tensor:
        """The accepted labels of these rows and -1 for the others, (G, len(rows))."""
        return self.groups(rows).masked_fill_(self.standing.index_select(1, rows.clamp(min=0)) > rate, -1)

    def export(self) -> dict[str, Tensor]:
        """The pseudo labels (n,), confidences (n,) and centroids (k, F) of every number of clusters k.

        Returns:
            `labels_k`, `confidence_k` and `centroids_k` for every k.

        Raises:
            ValueError: before the first `fit`.
        """
        result = super().export()
        return result | {f"confidence_{k}": self.confidence[level].clone() for level, k in enumerate(self.clusters)}


def doubts(features: Tensor, centroids: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """log(1 - kappa), kappa the softmax of a row's cosines to all centroids at its own centroid (Eq. 2), in blocks.

    Near kappa = 1 it still separates rows where kappa itself has no digits left.

    Args:
        features: (n, F) of any length.
        centroids: (k, F) of length 1.
        labels: (n,) int64 in 0..k-1.
        temperature: divides the cosines.

    Returns:
        (n,) float64, at most 0; -inf with a single centroid.
    """
    result = torch.empty(len(features), dtype=torch.float64, device=features.device)
    for start in range(0, len(features), BLOCK):
        part = slice(start, start + BLOCK)
        logits = normalise(features[part].double()) @ centroids.double().T / temperature
        others = logits.scatter(1, labels[part, None], -math.inf)
        result[part] = others.logsumexp(1) - logits.logsumexp(1)
    return result


def standing(confidence: Tensor, groups: Tensor) -> Tensor:
    """The share of a row's group that is more confident, counting half of the row itself.

    What stands at or below a rate is the most confident `rate` of its group, rounded to whole rows. Of equals, the
    first row comes first.

    Args:
        confidence: (n,)
        groups: (n,) whole numbers; all 0 to rank all rows as one group.

    Returns:
        (n,) in (0, 1).
    """
    order = confidence.argsort(descending=True, stable=True)
    order = order[groups[order].argsort(stable=True)]  # group by group, each from its most confident row on
    sizes = torch.bincount(groups)
    firsts = sizes.cumsum(0) - sizes
    ordered = groups[order]
    place = torch.arange(len(order), device=order.device) - firsts[ordered]
    result = torch.empty_like(confidence)
    result[order] = ((place.double() + 0.5) / sizes[ordered]).to(result)
    return result
