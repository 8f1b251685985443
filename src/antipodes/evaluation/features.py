"""Features of a dataset with its labels, and their split into train and test."""

from dataclasses import dataclass

import torch
from torch import Tensor

from antipodes.evaluation.splits import stratified_split


@dataclass(frozen=True)
class FeatureSet:
    """Features (n, F) of a dataset with its labels and coarse labels (n,), or None if it has none.

    Labels (n, K) of 0 and 1 stand for several labels for each image.
    """

    features: Tensor
    labels: Tensor | None = None
    coarse_labels: Tensor | None = None

    def subset(self, ids: Tensor) -> "FeatureSet":
        """Return the samples with these ids (m,), in that order."""
        return FeatureSet(
            self.features[ids],
            None if self.labels is None else self.labels[ids],
            None if self.coarse_labels is None else self.coarse_labels[ids],
        )


def split_features(feature_set: FeatureSet, fraction: float = 0.2, seed: int = 0) -> tuple[FeatureSet, FeatureSet]:
    """Split into train and test, class by class, for a dataset without a test split.

    Args:
        feature_set: the features; without labels, or with several labels an image, the split is random.
        fraction: share of every class that goes to test, in (0, 1).
        seed: seed of the split.

    Raises:
        ValueError: if fraction is outside (0, 1), or no class has two samples.
    """
    count = len(feature_set.features)
    labels = feature_set.labels
    if labels is None or labels.ndim > 1:
        labels = torch.zeros(count, dtype=torch.int64)
    kept, held = stratified_split(labels, fraction, seed)
    return feature_set.subset(kept), feature_set.subset(held)
