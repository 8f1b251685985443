"""A map of vectors: two dimensions by t-SNE (van der Maaten and Hinton 2008) after PCA, or by PCA for few."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.pages.page import Facts, Map, Point
from antipodes.threads import one_thread

MOST_GROUPS = 12
SPREAD = 1e-6  # least difference of features, relative to the largest number: about the rounding of float32


def choose(count: int, most: int, seed: int = 0) -> NDArray[np.int64]:
    """Draw at most so many of `count` rows at random; they come in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


@one_thread()  # of so few points, more threads take more processor time and hardly less by the clock
def flatten(vectors: NDArray[np.float32], seed: int = 0) -> tuple[NDArray[np.float64], str]:
    """Points (n, 2) in [0, 1] of vectors (n, F), and by which method."""
    unit = torch.nn.functional.normalize(torch.from_numpy(vectors).double(), dim=1)
    centred = unit - unit.mean(0)
    size, directions = torch.linalg.eigh(centred @ centred.T)  # the components of the samples, the smallest first
    reduced = (directions * size.clamp(min=0).sqrt()).flip(1)[:, : min(50, vectors.shape[1])]
    points, how = reduced[:, :2].numpy(), "PCA"
    if len(vectors) >= 20:
        points, how = tsne(reduced.float()).double().numpy(), "t-SNE after PCA"
    if points.shape[1] < 2:  # vectors of one number
        points = np.concatenate([points, np.zeros_like(points)], axis=1)
    low, high = points.min(0), points.max(0)
    scaled: NDArray[np.float64] = (points - low) / np.maximum(high - low, 1e-12)
    return scaled, how


def tsne(vectors: Tensor, perplexity: float = 30.0, steps: int = 300) -> Tensor:
    """Points (n, 2) whose neighbours are those of the vectors (n, F): exact t-SNE from the first two components.

    1. Every sample has a Gaussian whose width makes its neighbours about as many as the perplexity; P are their shares.
    2. Points move by gradient descent with momentum on KL(P || Q), where Q are the shares of a Student distribution; at
       first P is exaggerated, so that groups find each other.
    """
    n = len(vectors)
    shares = _neighbour_shares(vectors, min(perplexity, (n - 1) / 3))
    shares = (shares + shares.T) / (2 * n)
    points = vectors[:, :2] / vectors[:, 0].std().clamp(min=1e-12) * 1e-4
    speed, gain, early = torch.zeros_like(points), torch.ones_like(points), steps // 3
    rate = max(n / 48, 50.0)
    for step in range(steps):
        exaggeration, momentum = (12.0, 0.5) if step < early else (1.0, 0.8)
        square = points.square().sum(1)
        student = torch.addmm(square[:, None] + square + 1, points, points.T, alpha=-2).clamp_(min=1).reciprocal_()
        student.fill_diagonal_(0)
        force = torch.sub(exaggeration * shares, student, alpha=float(1 / student.sum())).mul_(student)
        slope = 4 * (force.sum(1, keepdim=True) * points - force @ points)
        gain = torch.where(slope.sign() == speed.sign(), 0.8 * gain, gain + 0.2).clamp_(min=0.01)
        speed = momentum * speed - rate * gain * slope
        points = points + speed
        points = points - points.mean(0)
    return points


def _neighbour_shares(vectors: Tensor, perplexity: float) -> Tensor:
    """For every sample the shares (n, n) of the others under the Gaussian whose entropy is log(perplexity)."""
    square = torch.cdist(vectors, vectors).square().fill_diagonal_(torch.inf)
    square = square / square.masked_fill(square.isinf(), 0).mean().clamp(min=1e-30)
    low, high = torch.full((len(vectors), 1), -20.0), torch.full((len(vectors), 1), 20.0)  # of log(1 / 2 sigma^2)
    for _ in range(30):
        middle = (low + high) / 2
        logits = -square * middle.exp()
        shares = logits.softmax(1)
        entropy = -(shares * logits.log_softmax(1).masked_fill(logits.isinf(), 0)).sum(1, keepdim=True)
        wide = entropy > math.log(perplexity)
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return shares


def have_spread(features: Tensor) -> bool:
    """Return True if features (n, F) differ by more than rounding; equal features have no map.

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
