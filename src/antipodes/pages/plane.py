"""A map of vectors: two dimensions by t-SNE after PCA, or by PCA where scikit-learn is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.pages.page import Facts, Map, Point

MOST_GROUPS = 12
SPREAD = 1e-6  # least difference of features, relative to the largest number: about the rounding of float32


def choose(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Draw at most so many of `count` rows at random; they come in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def flatten(vectors: NDArray[np.float32], seed: int = 0) -> tuple[NDArray[np.float64], str]:
    """Points (n, 2) in [0, 1] of vectors (n, F), and by which method."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    centred = (unit - unit.mean(0)).astype(np.float64)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    points, how = centred @ directions[:2].T, "PCA"
    if len(vectors) >= 20:
        try:
            from sklearn.manifold import TSNE

            reduced = (centred @ directions[:50].T).astype(np.float32)
            perplexity = min(30.0, (len(reduced) - 1) / 3)
            points = TSNE(perplexity=perplexity, random_state=seed, init="pca").fit_transform(reduced)
            how = "t-SNE after PCA"
        except ImportError:
            pass
    if points.shape[1] < 2:  # vectors of one number
        points = np.concatenate([points, np.zeros_like(points)], axis=1)
    low, high = points.min(0), points.max(0)
    scaled: NDArray[np.float64] = (points - low) / np.maximum(high - low, 1e-12)
    return scaled, how


def have_spread(features: Tensor) -> bool:
    """Return True if features (n, F) differ by more than rounding; t-SNE of equal features ends the process.

    Example:
        >>> have_spread(torch.ones(30, 8)), have_spread(torch.eye(8))
        (False, True)
    """
    return bool((features - features.mean(0)).abs().max() > SPREAD * features.abs().max())


def map_of(
    title: str,
    vectors: NDArray[np.float32],
    names: Sequence[str],
    labels: Sequence[int],
    classes: Mapping[int, str],
    images: Sequence[int],
    note: str,
) -> Map | Facts:
    """Make a map of samples, coloured by their class if there are at most `MOST_GROUPS` classes.

    Args:
        title: of the section.
        vectors: (m, F), one for each sample on the map.
        names: m names.
        labels: m labels, negative where unknown.
        classes: the name of each label.
        images: m numbers of pictures on the page, -1 for none.
        note: which samples these are; the method that made the map is added.

    Returns:
        The map, or a sentence where all vectors are equal and there is nothing to map.
    """
    if not have_spread(torch.from_numpy(vectors)):
        return Facts(title, [], "There is no map: all vectors are equal, so the encoder has collapsed.")
    points, how = flatten(vectors)
    present = sorted({label for label in labels if label >= 0})
    groups = {label: number for number, label in enumerate(present)} if len(present) <= MOST_GROUPS else {}
    shown = [
        Point(float(x), float(y), groups.get(label, -1), image, name + (f" ({classes[label]})" if label >= 0 else ""))
        for (x, y), label, image, name in zip(points, labels, images, names, strict=True)
    ]
    return Map(title, shown, [classes[label] for label in groups], f"{note}, {how}. Point at one to see it.")
