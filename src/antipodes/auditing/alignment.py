"""Whether two photos show the same pixels: one may be cropped, turned, mirrored, stretched, recoloured or written on.

In plain terms:
1. `photo_maps.match` finds the map from one photo to the other that most of their keypoints agree with.
2. `overlap` puts one photo on the other by that map, and compares them window by window: their detail, and their
   brightness. Where exactly one of the two is flat, such as a bar that was painted over a photo, or what a rotation has
   left empty, nothing is compared; nor is it at the edges of these and of the photos.
3. `agree` says yes where enough matches have one map, and either nearly all windows have the same detail and fit one
   change of the brightness, or most windows have exactly the same detail and the others another one, as a sticker
   leaves it. Two photos of one scene that were taken a second apart have matches on the background, and differ in the
   windows of whatever moved; two shirts on one table differ in brightness.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from antipodes.auditing.keypoints import SIDE, Keypoints, around, blurred, detail, windows
from antipodes.auditing.photo_maps import MATCHES, inverse, led, match

MEAN, SHARE = 0.77, 0.94
"""The mean correlation of the windows, and the share of those with one above `_SAME`, from which photos agree."""

LEVELS = 5.0
"""Grey levels by which windows may, on average, be off one change of brightness; less where a part is hidden."""

WHOLE, SEEN = 0.98, 0.8
"""The share of windows with the same detail, and of the overlap that is not hidden, from which any brightness fits."""

PASTED, EQUAL = 0.72, 0.994
"""The share of windows with the same detail, and their median correlation, from which the rest was pasted on a copy."""

HIDDEN = 0.5
"""The share of the overlap in which one photo may be flat and the other is not."""

_BATCH = 32
_SAME = 0.6  # correlation from which two windows have the same detail
_TEXTURE = 3.0  # grey levels of deviation from which a window, or a place, has detail
_WINDOWS = 12  # windows with detail that a comparison needs
_CLIPPED = 10.0  # grey levels from black and white within which the brightness of a window is not compared
_FADED = 0.3  # of the deviation that a darker copy may have left, and a flat place has not
_FLAT = 1.5  # grey levels of deviation below which a place is flat


class Overlap(NamedTuple):
    """How well the detail of p pairs of photos agrees, each (p,).

    Args:
        windows: how many windows with detail were compared.
        share: of the windows that have the same detail.
        mean: correlation of the detail in all windows.
        median: correlation in the windows with the same detail.
        levels: root of the mean square of what one change of brightness leaves of the windows' difference.
        hidden: share of the overlap in which exactly one photo is flat.
    """

    windows: Tensor
    share: Tensor
    mean: Tensor
    median: Tensor
    levels: Tensor
    hidden: Tensor

    def agrees(self) -> Tensor:
        """Whether the photos show the same pixels, (p,) bool."""
        whole = (self.share >= WHOLE) & (self.hidden <= 1 - SEEN)
        fits = (self.levels <= LEVELS * (1 - self.hidden)) | whole
        changed = (self.share >= SHARE) & (self.mean >= MEAN) & fits
        pasted = (self.share >= PASTED) & (self.median >= EQUAL)
        return (changed | pasted) & (self.windows >= _WINDOWS) & (self.hidden <= HIDDEN)


def agree(first: Keypoints, second: Keypoints, grey: Sequence[Tensor], sizes: Sequence[Tensor]) -> Tensor:
    """Whether p photos and p others show the same pixels, (p,) bool.

    Args:
        first: their keypoints, as `Keypoints.of` gives them.
        second: those of the others.
        grey: their canvases (p, S, S) uint8, and those of the others.
        sizes: (p, 2) the heights and widths on these, and those of the others.
    """
    result = torch.zeros(len(grey[0]), dtype=torch.bool)
    for start in range(0, len(result), _BATCH):
        rows = torch.arange(start, min(start + _BATCH, len(result)))
        found = match(Keypoints(*(each[rows] for each in first)), Keypoints(*(each[rows] for each in second)))
        rows, matrix = rows[found.matches >= MATCHES], found.matrix[found.matches >= MATCHES]
        if len(rows):
            compared = overlap(matrix, [each[rows] for each in grey], [each[rows] for each in sizes])
            result[rows] = compared.agrees()
    return result


def overlap(matrix: Tensor, grey: Sequence[Tensor], sizes: Sequence[Tensor]) -> Overlap:
    """Compare photos under a map.

    Args:
        matrix: (p, 3, 3) from the first photo to the second, as `Map` has it.
        grey: two times (p, S, S) uint8.
        sizes: two times (p, 2).
    """
    frame, seen, points, inside = _on_one_frame(matrix, grey, sizes)
    both = torch.cat((detail(seen), seen), 1)
    place = ((points + 0.5) * 2 / SIDE - 1).unflatten(1, (SIDE, SIDE))
    mapped, whole = grid_sample(both, place, padding_mode="border", align_corners=False).split(1, 1)
    spread, other_spread = _spread(frame), _spread(whole)
    flat, textured = torch.minimum(spread, other_spread), torch.maximum(spread, other_spread)
    painted = (flat < _FLAT) & (textured > _TEXTURE) & (flat < _FADED * textured)
    hidden = (_grown(painted & inside) & inside).flatten(1).sum(1) / inside.flatten(1).sum(1).clamp(min=1)
    counted = (~_grown(painted | ~inside)).float()

    weight = windows(counted)
    x, y, level, other_level = detail(frame) * counted, mapped * counted, frame * counted, whole * counted
    sums = torch.stack((x, y, x * y, x * x, y * y, level, other_level))
    mean_x, mean_y, product, square_x, square_y, level, other_level = (windows(sums) / weight.clamp(min=0.1)).unbind()
    product = product - mean_x * mean_y
    spread_x = (square_x - mean_x.square()).clamp(min=0)
    spread_y = (square_y - mean_y.square()).clamp(min=0)
    correlation = (product / (spread_x * spread_y).clamp(min=1e-3).sqrt()).flatten(1)
    detailed = ((weight > 0.5) & (torch.minimum(spread_x, spread_y) > _TEXTURE**2)).flatten(1)
    same = (correlation > _SAME) & detailed
    count = detailed.sum(1).clamp(min=1)
    mean = (correlation.clamp(min=0) * detailed).sum(1) / count
    median = correlation.masked_fill(~same, torch.nan).nanmedian(1).values
    levels = _left_over(level.flatten(1), other_level.flatten(1), (weight > 0.5).flatten(1))
    return Overlap(detailed.sum(1), same.sum(1) / count, mean, median, levels, hidden)


def _on_one_frame(
    matrix: Tensor, grey: Sequence[Tensor], sizes: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The two photos (p, 1, S, S), blurred alike, where the pixels of the first are on the second, and which are."""
    shrink = led(matrix, torch.full((1, 1, 2), SIDE / 2))[1][:, 0]
    swapped = shrink > 1  # so that the photo whose content is larger is the frame, and sampling skips no pixels
    matrix = torch.where(swapped[:, None, None], inverse(matrix), matrix)
    scale = torch.where(swapped, 1 / shrink, shrink).sqrt().clamp(0.2, 1)
    one, other = (each[:, None].float() for each in grey)
    frame = torch.where(swapped[:, None, None, None], other, one)
    seen = torch.where(swapped[:, None, None, None], one, other)
    size, seen_size = (torch.where(swapped[:, None], *each) for each in ((sizes[1], sizes[0]), (sizes[0], sizes[1])))
    points, _ = led(matrix, _GRID)
    inside = (_within(_GRID.expand_as(points), size) & _within(points, seen_size))[:, None]
    return blurred(_softened(frame, scale), 0.8), blurred(seen, 0.8), points, inside


def _left_over(level: Tensor, other: Tensor, counted: Tensor) -> Tensor:
    """What a line through the brightness of windows (p, w) of two photos leaves, as a root mean square (p,)."""
    clipped = (torch.minimum(level, other) < _CLIPPED) | (torch.maximum(level, other) > 255 - _CLIPPED)
    kept = counted & ~clipped
    count = kept.sum(1, keepdim=True).clamp(min=1)
    x, y = ((each - (each * kept).sum(1, keepdim=True) / count) * kept for each in (level, other))
    slope = (x * y).sum(1, keepdim=True) / x.square().sum(1, keepdim=True).clamp(min=1)
    return ((y - slope * x).square().sum(1) / count[:, 0]).sqrt()


def _softened(pictures: Tensor, scale: Tensor) -> Tensor:
    """Pictures blurred to the resolution of others in which the same content is smaller by `scale` (p,)."""
    width = 0.6 * (1 / scale.square() - 1).sqrt()
    result = pictures.clone()
    for least, most, blur in ((0.25, 0.6, 0.4), (0.6, 0.9, 0.7), (0.9, math.inf, 1.1)):
        chosen = (width >= least) & (width < most)
        if bool(chosen.any()):
            result[chosen] = blurred(pictures[chosen], blur)
    return result


def _spread(pictures: Tensor) -> Tensor:
    """The deviation of the grey around every pixel of pictures (p, 1, S, S)."""
    pictures = pictures - pictures.mean((2, 3), keepdim=True)  # so that squares stay small
    return (around(pictures.square(), 7) - around(pictures, 7).square()).clamp(min=0).sqrt()


def _grown(mask: Tensor) -> Tensor:
    """A mask (p, 1, S, S) and what is so close to it that its edge is part of the detail there."""
    return around(mask.float(), 19) > 1e-6


def _within(points: Tensor, size: Tensor) -> Tensor:
    """Which points (p, S x S, 2) lie on photos of these heights and widths (p, 2), as (p, S, S)."""
    limit = size.flip(1)[:, None].float() - 2
    return ((points >= 1) & (points < limit)).all(-1).view(-1, SIDE, SIDE)


_GRID = torch.stack(torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="xy"), -1).float().view(1, -1, 2)
