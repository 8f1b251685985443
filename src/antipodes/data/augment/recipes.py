"""The papers' augmentations by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from antipodes.data.augment.base import Augmentation
from antipodes.data.augment.views import MultiCrop, Plain, RandomView

_MOCO_COLOUR: dict[str, Any] = {
    "jitter": 0.8,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "grey": 0.2,
}
_STRONG_COLOUR: dict[str, Any] = {
    "jitter": 0.8,
    "brightness": 0.8,
    "contrast": 0.8,
    "saturation": 0.8,
    "hue": 0.2,
    "grey": 0.2,
}

RECIPES: dict[str, Callable[..., Augmentation]] = {
    # Evaluation: nothing random. Linear training and fine-tuning: crop and flip.
    "plain": Plain,
    "crop-flip": RandomView,
    # SimCLR's appendix B.9 for CIFAR: colour strength 0.5 and no blur. Its ImageNet recipe has strength 1 and blurs.
    "simclr": partial(RandomView, **_MOCO_COLOUR),
    "simclr-imagenet": partial(RandomView, **_STRONG_COLOUR, blur=0.5),
    "moco-v1": partial(RandomView, scale=(0.2, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4, grey=0.2),
    "moco-v2": partial(RandomView, scale=(0.2, 1.0), **_MOCO_COLOUR, blur=0.5),
    # HNSSL section 3.6, with its 3 x 3 Gaussian of standard deviation 1.5 after the crop instead of before it.
    "hnssl": partial(RandomView, scale=(0.8, 1.0), **_STRONG_COLOUR, blur=0.1, blur_sigma=(1.5, 1.5), blur_kernel=3),
    # CLSA's strong view, which SANE uses too: five operations, each applied with probability 0.5.
    "clsa": partial(RandomView, scale=(0.2, 1.0), **_MOCO_COLOUR, strong=5),
}
"""Recipe name -> what builds it; `inspect.signature` of an entry shows its arguments with the recipe's defaults."""


def augmentation(name: str, size: int = 32, **overrides: Any) -> Augmentation:
    """Build a recipe by name for views of `size` pixels, with some of its arguments changed.

    Raises:
        ValueError: if there is no such recipe, or it has no such argument.

    Example:
        >>> augmentation("simclr", size=32, blur=0.5).blur
        0.5
    """
    if name not in RECIPES:
        raise ValueError(f"there is no augmentation {name!r}: choose one of {', '.join(RECIPES)}")
    known = inspect.signature(RECIPES[name]).parameters
    for argument in overrides:
        if argument not in known:
            raise ValueError(f"augmentation {name!r} has no argument {argument!r}: it takes {', '.join(known)}")
    return RECIPES[name](size=size, **overrides)


def multi_crop(
    name: str, sizes: Sequence[int], scales: Sequence[tuple[float, float]] | None = None, **overrides: Any
) -> MultiCrop:
    """Build one view per size from a random recipe, e.g. SANE's five strong crops.

    Args:
        name: a recipe of `RECIPES` that crops.
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
