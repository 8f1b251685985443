"""The fourteen operations of strong augmentation (CLSA's Table 1), batched, with one magnitude per image.

Each takes float images (B, 3, H, W) in [0, 1] and magnitudes (B,) in [-1, 1] and returns new images. Geometric
operations use the sign, the others the absolute value; those without strength ignore it. They follow Pillow: nearest
neighbour and black outside the image for geometry, 8-bit levels for equalise and posterise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from antipodes.data.augment.colour import LUMA, invert_above

SHEAR = 0.3
SHIFT = 0.3
DEGREES = 30.0
FACTOR = (0.05, 0.95)


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Return the images whose pixel (x, y) is the input pixel at `matrix` (B, 2, 3) times (x, y, 1), black outside."""
    channels, height, width = images.shape[1:]
    y, x = torch.meshgrid(
        torch.arange(height, device=images.device) + 0.5, torch.arange(width, device=images.device) + 0.5, indexing="ij"
    )
    places = torch.stack((x, y, torch.ones_like(x))).view(1, 3, -1)
    column, row = (matrix @ places).floor().long().unbind(dim=1)  # (B, H W) each
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).unsqueeze(1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, index).mul_(inside.unsqueeze(1)).view_as(images)


def _matrix(magnitude: Tensor, entries: dict[tuple[int, int], Tensor]) -> Tensor:
    """Return identity matrices (B, 2, 3) with some entries replaced."""
    matrix = torch.eye(2, 3, device=magnitude.device).repeat(len(magnitude), 1, 1)
    for (row, column), value in entries.items():
        matrix[:, row, column] = value
    return matrix


def shear_x(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift every row in proportion to its distance from the top, by up to 0.3 pixels a row."""
    return affine(images, _matrix(magnitude, {(0, 1): SHEAR * magnitude}))


def shear_y(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift every column in proportion to its distance from the left, by up to 0.3 pixels a column."""
    return affine(images, _matrix(magnitude, {(1, 0): SHEAR * magnitude}))


def translate_x(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift the images sideways by whole pixels, up to 0.3 of the width."""
    return affine(images, _matrix(magnitude, {(0, 2): (SHIFT * magnitude * images.shape[3]).trunc()}))


def translate_y(images: Tensor, magnitude: Tensor) -> Tensor:
    """Shift the images up or down by whole pixels, up to 0.3 of the height."""
    return affine(images, _matrix(magnitude, {(1, 2): (SHIFT * magnitude * images.shape[2]).trunc()}))


def rotate(images: Tensor, magnitude: Tensor) -> Tensor:
    """Turn the images counter-clockwise about their centre by up to 30 degrees."""
    angle = magnitude * math.radians(DEGREES)
    cosine, sine = angle.cos(), angle.sin()
    x, y = images.shape[3] / 2, images.shape[2] / 2
    across, down = x - cosine * x + sine * y, y - sine * x - cosine * y
    entries = {(0, 0): cosine, (0, 1): -sine, (0, 2): across, (1, 0): sine, (1, 1): cosine, (1, 2): down}
    return affine(images, _matrix(magnitude, entries))


def auto_contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch every channel so that its darkest value is 0 and its brightest 1; a channel of one value stays."""
    low, high = images.amin(dim=(2, 3), keepdim=True), images.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (images - low) / (high - low), images)


def invert(images: Tensor, magnitude: Tensor) -> Tensor:
    """Turn the images into their negatives."""
    return 1 - images


def equalise(images: Tensor, magnitude: Tensor) -> Tensor:
    """Spread the 8-bit levels of every channel so that its histogram is as flat as a table of levels can make it."""
    levels = (images * 255).round().long().flatten(2)  # (B, 3, H W)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    below = histogram.cumsum(dim=2) - histogram
    # Pillow's step: the pixels below the brightest occupied level, shared out over the 255 levels above the first.
    step = below.gather(2, levels.amax(dim=2, keepdim=True)) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    equalised = torch.where(step > 0, table.gather(2, levels), levels)
    return (equalised / 255).view_as(images)


def solarise(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert all levels at or above 256 * (1 - |magnitude|)."""
    return invert_above(images, (1 - magnitude.abs()) * (256 / 255))


def posterise(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the upper 4 to 8 bits of every level, more the larger the magnitude."""
    bits = 4 + (5 * magnitude.abs()).floor().clamp(max=4)
    step = torch.exp2(8 - bits).view(-1, 1, 1, 1)
    return ((images * 255).round() / step).floor() * (step / 255)


def _blend(other: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
    """Return the way from `other` to `images` as far as the magnitude's factor in [0.05, 0.95] goes."""
    factor = (FACTOR[0] + (FACTOR[1] - FACTOR[0]) * magnitude.abs()).view(-1, 1, 1, 1)
    return other + factor * (images - other)


def _grey(images: Tensor) -> Tensor:
    """Return the luma (B, 1, H, W)."""
    return (images * images.new_tensor(LUMA).view(3, 1, 1)).sum(dim=1, keepdim=True)


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Fade the images towards their mean luma."""
    return _blend(_grey(images).mean(dim=(2, 3), keepdim=True), images, magnitude)


def colour(images: Tensor, magnitude: Tensor) -> Tensor:
    """Fade the images towards grey."""
    return _blend(_grey(images), images, magnitude)


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Fade the images towards black."""
    return _blend(torch.zeros_like(images), images, magnitude)


def sharpness(images: Tensor, magnitude: Tensor) -> Tensor:
    """Fade the images towards their 3 x 3 smoothed selves; the border stays as it is."""
    kernel = images.new_ones(3, 1, 3, 3)
    kernel[:, :, 1, 1] = 5
    smooth = images.clone()
    if min(images.shape[2:]) > 2:
        smooth[:, :, 1:-1, 1:-1] = conv2d(images, kernel / 13, groups=3)
    return _blend(smooth, images, magnitude)


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    shear_x,
    shear_y,
    translate_x,
    translate_y,
    rotate,
    auto_contrast,
    invert,
    equalise,
    solarise,
    posterise,
    contrast,
    colour,
    brightness,
    sharpness,
)
