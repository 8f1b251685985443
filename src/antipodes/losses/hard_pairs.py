"""`HardPairs`: HNSSL's loss, which pulls the two views of a pair closer and pushes the closest negatives away."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from antipodes.distributed import gather, mean_over_anchors
from antipodes.functional.tensors import NotFinite, eager_full_precision
from antipodes.losses.base import LossModule
from antipodes.losses.distances import closest, scale_by_largest, squared_distances
from antipodes.losses.inputs import Ids, check_embeddings, whole_numbers
from antipodes.losses.observation import MinedPairs
from antipodes.losses.shares import check_shares
from antipodes.pairs import normalise

Scale = Literal["largest", "length"]


class HardPairs(LossModule):
    """Distances of positives and of hard negatives (HNSSL, Zhu et al. 2023, Eqs. 2 to 7).

    U_i are the online features of sample i, U'_i its target features, both divided by their largest absolute entry, and
    D(a, b) is the sum of the squared differences. With H_i the hard negatives of sample i in the global batch,

        L1 = mean_i D(U'_i, U_i)      L2 = -mean_i log( epsilon + sum_{k in H_i} D(U'_i, U_k) )

        loss = positive_weight * L1 + negative_weight * L2

    H_i are the negatives of smallest D: the `top_k` closest, the closest share `quantile`, or those of a D of at most
    `threshold`. Give one of the three. The paper's text takes the single closest, its Eq. 5 a threshold of 1. That
    threshold is a margin: at first almost nothing is within it, L1 contracts the features until pairs enter, and then
    L2 pushes them out again. A sample without hard negatives has no second term. With the single closest, L2 is the
    nearest-neighbour estimator of entropy that is known as KoLeo.

    Args:
        top_k: So many of the closest negatives are hard; 1 where none of the three is given.
        quantile: This share of the negatives is hard, the closest, at least one; 1 takes all negatives.
        threshold: Negatives of at most this distance are hard.
        positive_weight: Weight of L1.
        negative_weight: Weight of L2.
        epsilon: Keeps the logarithm of coinciding pairs finite.
        scale: What the features are divided by: `largest`, their largest absolute entry (the paper's Eq. 2), or
            `length`, which puts them on the sphere.

    Example:
        >>> loss_fn = HardPairs(top_k=1)
        >>> loss = loss_fn(torch.randn(8, 16), torch.randn(8, 16), torch.arange(8))
        >>> loss_fn.stats["kept_per_anchor"]
        1.0
    """

    def __init__(
        self,
        top_k: int | None = None,
        quantile: float | None = None,
        threshold: float | None = None,
        positive_weight: float = 0.8,
        negative_weight: float = 0.1,
        epsilon: float = 1e-6,
        scale: Scale = "largest",
    ) -> None:
        super().__init__()
        if sum(given is not None for given in (top_k, quantile, threshold)) > 1:
            raise ValueError("hard negatives are found by top_k, quantile or threshold: give one of them")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}: it is the number of hard negatives")
        if quantile is not None and not 0 < quantile <= 1:
            raise ValueError(f"quantile must be in (0, 1], got {quantile}: it is the share of negatives that are hard")
        if threshold is not None and not threshold >= 0:
            raise ValueError(f"threshold must be at least 0, got {threshold}: it is a distance")
        if not (positive_weight >= 0 and negative_weight >= 0):
            raise ValueError(
                f"positive_weight and negative_weight must be at least 0, got {positive_weight} and {negative_weight}"
            )
        if not epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {epsilon}: it keeps the logarithm finite")
        if scale not in get_args(Scale):
            raise ValueError(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")
        self.scale = scale_by_largest if scale == "largest" else normalise
        self.top_k, self.quantile, self.threshold = top_k, quantile, threshold
        self.positive_weight, self.negative_weight, self.epsilon = positive_weight, negative_weight, epsilon

    @eager_full_precision
    def forward(self, online: Tensor, target: Tensor, ids: Ids, rows: Ids | None = None) -> Tensor:
        """The mean loss over this rank's samples.

        Args:
            online: (b, D) features that are trained, of any length; the negatives are those of all ranks.
            target: (b, D) features of the same samples to compare them with, with or without gradient.
            ids: (b,) dataset indices; samples of the same id are never negatives of each other.
            rows: (b,) where the samples' labels stand, for observers; None takes the ids.

        Raises:
            ValueError: for shapes that do not fit, or features that are not finite.
        """
        check_embeddings(online=online, target=target)
        ids = whole_numbers(ids, online)
        if online.dim() != 2 or online.shape != target.shape or ids.shape != online.shape[:1] or not ids.numel():
            raise ValueError(
                "online and target must be (B, D) and ids (B,), "
                f"got {tuple(online.shape)}, {tuple(target.shape)} and {tuple(ids.shape)}"
            )
        check_shares(online, target, ids, learning=self.learning)
        online, target = self.scale(online), self.scale(target)
        positive = mean_over_anchors((online - target).square().sum(1))
        if not bool(positive.detach().isfinite()):
            raise NotFinite("online or target hold NaN or infinite numbers: check the encoder's output before the loss")
        all_ids = gather(ids)
        others = ids[:, None] != all_ids  # candidates of another sample
        distances = squared_distances(target, gather(online))
        hard = self._mine(distances.detach(), others)
        sums = torch.where(hard, distances, 0.0).sum(1)
        present = hard.any(1)
        negative = -mean_over_anchors(torch.where(present, (self.epsilon + sums).log(), 0.0))
        places = ids if rows is None else whole_numbers(rows, online, "rows")
        self._observe(lambda: MinedPairs(places, gather(places), hard))
        self._report(
            {
                "positive_term": positive.detach(),
                "negative_term": negative.detach(),
                "negative_distance": torch.where(others, distances.detach(), 0.0).sum() / others.sum().clamp(min=1),
                "kept_per_anchor": hard.sum(1).float().mean(),
                "without_negatives": 1 - present.float().mean(),
            }
        )
        return self.positive_weight * positive + self.negative_weight * negative

    def _mine(self, distances: Tensor, others: Tensor) -> Tensor:
        """Which candidates are the hard negatives of every sample, (b, B) bool, among those of other samples."""
        if self.threshold is not None:
            return others & (distances <= self.threshold)
        available = others.sum(1)
        if self.quantile is None:
            return closest(distances, others, torch.full_like(available, self.top_k or 1))
        if self.quantile == 1:
            return others
        return closest(distances, others, (self.quantile * available).round().long().clamp(min=1))
