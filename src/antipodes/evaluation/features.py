"""Features with labels: given in `.npy` files or embedded from a run, and their split class by class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antipodes.runs.towers import PairedFeatures


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split sample ids into a kept and a held-out part, class by class.

    Args:
        labels: (n,) class of every sample; with several labels for each (n, K) the split is random.
        fraction: share of every class to hold out, in (0, 1). At least one sample of a class is held out and at least
            one is kept, so a class with a single sample is only in the kept part.
        seed: seed of the split.

    Returns:
        Ids kept and ids held out, each in rising order.

    Raises:
        ValueError: if fraction is outside (0, 1), or no class has two samples.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be in (0, 1), got {fraction}: it is the share of samples to hold out")
    place, size = _places(labels, seed)
    held = place < (fraction * size).round().clamp(min=1).minimum(size - 1)
    if not held.any():
        raise ValueError(f"none of {len(labels)} samples can be held out: at least one class needs two samples")
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


def class_balanced_subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Draw the ids of a labelled share of the data, with the same share of every class and at least one sample of each.

    With the same seed, a smaller share is a subset of every larger one, as semi-supervised comparisons need.

    Args:
        labels: (n,) class of every sample.
        fraction: share to draw, in (0, 1].
        seed: seed of the draw.

    Returns:
        Ids in rising order.

    Raises:
        ValueError: if fraction is outside (0, 1].

    Example:
        >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
        >>> labels[class_balanced_subset(labels, 0.5, seed=0)]
        tensor([0, 0, 1])
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            f"fraction must be in (0, 1], got {fraction}: it is the share of samples that keep their label"
        )
    place, size = _places(labels, seed)
    return (place < (fraction * size).round().clamp(min=1)).nonzero()[:, 0]


def _places(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Shuffle within each class: the place (n,) of every sample in its class, and the class's size (n,)."""
    labels = labels.cpu() if labels.ndim == 1 else torch.zeros(len(labels), dtype=torch.int64)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = shuffled[labels[shuffled].argsort(stable=True)]  # grouped by class, in random order inside
    _, members, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    first = (counts.cumsum(0) - counts)[members]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels))
    return place - first, counts[members].double()


@dataclass(frozen=True)
class ClassifiedFeatures:
    """Features of images (n, D) and of the texts of classes (K, D) in one space, and the images' classes (n,)."""

    images: Tensor
    classes: Tensor
    labels: Tensor


@dataclass(frozen=True)
class FeatureSet:
    """Features (n, F) of a dataset with its labels and coarse labels (n,), or None if it has none.

    Labels (n, K) of 0 and 1 stand for several labels for each image.
    """

    features: Tensor
    labels: Tensor | None = None
    coarse_labels: Tensor | None = None

    def subset(self, ids: Tensor) -> FeatureSet:
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
    labels = feature_set.labels
    if labels is None:
        labels = torch.zeros(len(feature_set.features), dtype=torch.int64)
    kept, held = stratified_split(labels, fraction, seed)
    return feature_set.subset(kept), feature_set.subset(held)


def read_pairs(images: str, texts: str, owners: str | None = None) -> PairedFeatures:
    """Read features of images and texts.

    Args:
        images: File with (n, D) floats.
        texts: File with (m, D) floats.
        owners: File with (m,) integers, the image's row for each text; None if every image has the same number of
            texts, in the order of the images.

    Raises:
        ValueError: if a file cannot be read, or the shapes do not fit.
    """
    pictures, words = _read_both(images, texts)
    if owners is None:
        each, rest = divmod(len(words), len(pictures))
        if rest:
            raise ValueError(
                f"{len(words)} texts do not divide by {len(pictures)} images: give --owners, the image of each text"
            )
        return PairedFeatures(pictures, words, torch.arange(len(pictures)).repeat_interleave(each))
    return PairedFeatures(pictures, words, _read_numbers(owners, len(words), len(pictures), "rows of the images"))


def read_classified(images: str, classes: str, labels: str) -> ClassifiedFeatures:
    """Read features of images and of the texts that describe their classes.

    Args:
        images: File with (n, D) floats.
        classes: File with (K, D) floats, one vector for each class.
        labels: File with (n,) integers, the class's row for each image.

    Raises:
        ValueError: if a file cannot be read, or the shapes do not fit.
    """
    pictures, words = _read_both(images, classes)
    return ClassifiedFeatures(pictures, words, _read_numbers(labels, len(pictures), len(words), "rows of the classes"))


def _read_both(images: str, texts: str) -> tuple[Tensor, Tensor]:
    pictures, words = (_read_vectors(path) for path in (images, texts))
    if pictures.shape[1] != words.shape[1]:
        raise ValueError(f"images and texts must have the same width, got {pictures.shape[1]} and {words.shape[1]}")
    return pictures, words


def _read_vectors(path: str) -> Tensor:
    array = _read(path)
    if array.ndim != 2 or not len(array) or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(f"{path} must hold (n, D) finite floats, got {array.shape} of {array.dtype}")
    return torch.from_numpy(array).float()


def _read_numbers(path: str, count: int, below: int, what: str) -> Tensor:
    array = _read(path)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"{path} must hold {count} integers, got {array.shape} of {array.dtype}")
    numbers = torch.from_numpy(array.astype(np.int64))
    if count and not (int(numbers.min()) >= 0 and int(numbers.max()) < below):
        raise ValueError(f"{path} must hold {what}, 0..{below - 1}")
    return numbers


def _read(path: str) -> np.ndarray:
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist")
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as an .npy file: {error}") from error
    return found
