"""Augmentation as batched tensor operations with per-sample parameters, on any device.

`augmentation("simclr", size=32)` builds a recipe by name; calling it with a batch of uint8 images and a generator
gives normalised float views. `multi_crop` builds several views at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from antipodes.data.augment.base import Augmentation, Parameters
from antipodes.data.augment.views import MultiCrop, Plain, RandomView
from antipodes.registry import find

__all__ = ["Augmentation", "MultiCrop", "Parameters", "Plain", "RandomView", "augmentation", "multi_crop"]


def augmentation(name: str, size: int = 32, **overrides: Any) -> Augmentation:
    """Build a recipe by name for views of `size` pixels, with some of its arguments changed.

    Raises:
        ValueError: if there is no such recipe, or it has no such argument.

    Example:
        >>> augmentation("simclr", size=32, blur=0.5).blur
        0.5
    """
    recipe = find("augmentation", name)
    known = inspect.signature(recipe.target).parameters
    for argument in overrides:
        if argument not in known:
            raise ValueError(f"augmentation {name!r} has no argument {argument!r}: it takes {', '.join(known)}")
    built: Augmentation = recipe.target(**{**recipe.preset, "size": size, **overrides})
    return built


def multi_crop(
    name: str, sizes: Sequence[int], scales: Sequence[tuple[float, float]] | None = None, **overrides: Any
) -> MultiCrop:
    """Build one view per size from a random recipe, e.g. SANE's five strong crops.

    Args:
        name: a recipe that crops.
        sizes: height and width of every view; the first is the largest.
        scales: range of the crop's share of the image area, for every view. By default CLSA's rule: the recipe's
            range times size / sizes[0], so that smaller views show smaller parts.
        **overrides: arguments of the recipe, the same for all views.

    Raises:
        ValueError: if `sizes` is empty, `scales` has another length, or the recipe cannot be built or does not crop.

    Example:
        >>> [view.size for view in multi_crop("clsa", sizes=(32, 24, 16)).views]
        [32, 24, 16]
    """
    if not sizes:
        raise ValueError("sizes must name at least one view's height and width, got none")
    first = augmentation(name, sizes[0], **overrides)
    if not isinstance(first, RandomView):
        raise ValueError(f"augmentation {name!r} does not crop, so it has no views of several scales: choose another")
    if scales is None:
        scales = [(first.scale[0] * size / sizes[0], first.scale[1] * size / sizes[0]) for size in sizes]
    if len(scales) != len(sizes):
        raise ValueError(f"scales must have one range per size, got {len(scales)} for {len(sizes)} sizes")
    pairs = zip(sizes, scales, strict=True)
    return MultiCrop([augmentation(name, size, **{**overrides, "scale": scale}) for size, scale in pairs])
