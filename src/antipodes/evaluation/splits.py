"""Splits and subsets of samples, class by class, which depend only on the labels and a seed."""

import torch
from torch import Tensor


def stratified_split(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split sample ids into a kept and a held-out part, class by class.

    Args:
        labels: (n,) class of every sample.
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


def used_share(name: str, used: int, count: int, fraction: float) -> dict[str, float]:
    """Return `NAME, used %` if the share of labels that were drawn differs from `fraction` by more than 1 % of it.

    Example:
        >>> used_share("linear 1 % labels", 10, 100, 0.01), used_share("linear 10 % labels", 10, 100, 0.1)
        ({'linear 1 % labels, used %': 10.0}, {})
    """
    share = used / count
    return {f"{name}, used %": 100 * share} if abs(share - fraction) > 0.01 * fraction else {}


def _places(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Shuffle within each class: the place (n,) of every sample in its class, and the class's size (n,)."""
    labels = labels.cpu()
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = shuffled[labels[shuffled].argsort(stable=True)]  # grouped by class, in random order inside
    _, members, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    first = (counts.cumsum(0) - counts)[members]
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels))
    return place - first, counts[members].double()
