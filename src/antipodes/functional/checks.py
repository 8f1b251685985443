"""What every classifier of features asks of its input, said once."""

import torch
from torch import Tensor


def check_features(features: Tensor, labels: Tensor, part: str) -> None:
    """Refuse features (n, F) and labels (n,) that no protocol can use; ``part`` names them in the message.

    Raises:
        ValueError: if a shape is wrong, the lengths differ, there is no sample or a feature is not finite.
    """
    if features.ndim != 2 or labels.ndim != 1 or len(features) != len(labels):
        raise ValueError(
            f"{part} features must be (n, F) with labels (n,), "
            f"got features {tuple(features.shape)} and labels {tuple(labels.shape)}"
        )
    if features.numel() == 0:
        raise ValueError(f"{part} features are empty, got shape {tuple(features.shape)}: give at least one sample")
    if not features.is_floating_point() or labels.is_floating_point():
        raise ValueError(
            f"{part} features must be floats and labels integers, got {features.dtype} and {labels.dtype}: convert them"
        )
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ValueError(
            f"{int((~finite).sum())} of {len(features)} {part} features are NaN or infinite (first in row {row}): "
            "the encoder's weights or its input are broken"
        )


def check_pair(train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor) -> None:
    """Refuse a train and a test part that are broken (see `check_features`) or differ in the number of features."""
    check_features(train_features, train_labels, "train")
    check_features(test_features, test_labels, "test")
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            f"train and test must have the same number of features, got {train_features.shape[1]} and "
            f"{test_features.shape[1]}: embed both with the same encoder"
        )


def number_classes(train_labels: Tensor, test_labels: Tensor) -> tuple[Tensor, Tensor, int]:
    """Number the classes of train 0..K-1 without gaps, and test alike; returns both labels and K.

    Raises:
        ValueError: if test has a class that train lacks, since no classifier could ever answer it.

    Example:
        >>> number_classes(torch.tensor([7, 3, 7]), torch.tensor([3]))
        (tensor([1, 0, 1]), tensor([0]), 2)
    """
    classes, train = torch.unique(train_labels, return_inverse=True)
    missing = sorted(set(test_labels.tolist()) - set(classes.tolist()))
    if missing:
        raise ValueError(
            f"test has classes that train lacks ({', '.join(map(str, missing[:10]))}): "
            "train needs at least one labelled sample of every class"
        )
    return train, torch.searchsorted(classes, test_labels.contiguous()), len(classes)
