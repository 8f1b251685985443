"""Embeddings on a plane: t-SNE after PCA, or PCA where scikit-learn is missing."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from antipodes.auditing.embeddings import Embeddings
from antipodes.evaluation.maps import have_spread
from antipodes.reporting.page import Facts, Map, Point

MOST_GROUPS = 12


def choose(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Draw at most so many of `count` rows at random; they come in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def flatten(vectors: NDArray[np.float32], seed: int = 0) -> tuple[NDArray[np.float64], str]:
    """Points (n, 2) in [0, 1] of vectors (n, F), and how they came about."""
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


def map_of(
    title: str, embeddings: Embeddings, rows: NDArray[np.int64], images: list[int], note: str = ""
) -> Map | Facts:
    """A map of some rows; `images` are their numbers in the album. Where all vectors are equal, a sentence says so."""
    if not have_spread(torch.from_numpy(embeddings.vectors[rows])):
        return Facts(title, [], "There is no map: all vectors are equal, so the encoder has collapsed.")
    points, how = flatten(embeddings.vectors[rows])
    labels = np.full(len(embeddings), -1) if embeddings.labels is None else embeddings.labels
    present = [label for label in np.unique(labels[rows]).tolist() if label >= 0]
    few = {label: number for number, label in enumerate(present)} if len(present) <= MOST_GROUPS else {}
    names = [embeddings.class_of(int(np.flatnonzero(labels == label)[0])) for label in few]
    shown = [
        Point(float(x), float(y), few.get(int(labels[row]), -1), image, _name(embeddings, int(row)))
        for (x, y), row, image in zip(points, rows, images, strict=True)
    ]
    return Map(title, shown, names, f"{len(rows):,} of {len(embeddings):,} samples, {how}. {note}".strip())


def _name(embeddings: Embeddings, row: int) -> str:
    label = embeddings.class_of(row)
    return embeddings.paths[row] + (f" ({label})" if label else "")
