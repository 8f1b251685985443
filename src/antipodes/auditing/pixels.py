"""Whether two pictures show the same pixels: one may be cropped, mirrored, recompressed, brighter or darker.

The middle of one picture is looked for in the other by normalised cross-correlation, which knows no brightness and no
contrast. Only detail counts: what a blur leaves is taken away first, since bright above and dark below is what most
photos of landscapes, or of trousers, share.

1. Coarsely: small pictures, several scales, mirrored and not, each of the two in the other.
2. Finely, for pairs that agree coarsely: larger pictures, scales close to the best one, a narrower blur.
3. Exactly, for pairs that agree finely: fractions of a pixel and of a percent around what was found, and a blur that
   leaves nothing but detail. Two pairs of trousers have one outline, and agree until here; their folds do not.
4. The colours: a white shirt on red and one on brown have the same edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate

from antipodes.threads import one_thread

MIDDLE = 0.8
_FLAT = 2.0  # grey levels: what has less contrast than this matches nothing
_CHUNK = 64


@dataclass(frozen=True)
class Level:
    """How closely to look: side of the pictures, width of the blur, scales, and the correlation that is asked for."""

    side: int
    blur: int
    scales: tuple[float, ...]
    bound: float


COARSE = Level(32, 11, (1.0, 0.93, 0.86, 0.8, 0.74, 0.68, 0.62, 0.56), 0.65)
FINE = Level(64, 9, (0.96, 0.98, 1.0, 1.02, 1.04), 0.65)
EXACT = Level(128, 9, tuple(1 + step / 200 for step in sorted(range(-6, 7), key=abs)), 0.82)
_AROUND = 4  # pixels of the exact level by which a place that was found finely may be off


def agree(first: Tensor, second: Tensor) -> Tensor:
    """Whether pictures (p, 3, H, H) uint8 and others of the same shape show the same pixels, (p,) bool.

    Example:
        >>> picture = torch.arange(3 * 64 * 64).view(1, 3, 64, 64).remainder(251).to(torch.uint8)
        >>> agree(picture, picture.flip(3)).tolist(), agree(picture, 255 - picture).tolist()
        ([True], [False])
    """
    return (overlap(first, second) >= EXACT.bound) & _same_colours(first, second)


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """How well the exact detail of one picture is found in the other, (p,); -1 where coarse or fine detail is not.

    No better scale is looked for once the exact level's bound is reached.

    Args:
        first: (p, 3, H, H) uint8.
        second: (p, 3, H, H) uint8.
    """
    result = torch.full((len(first),), -1.0)
    with one_thread():  # many small products: waking the others for each takes longer than the work
        for start in range(0, len(first), _CHUNK):
            rows = slice(start, start + _CHUNK)
            _overlap(first[rows], second[rows], result[rows])
    return result


def _overlap(first: Tensor, second: Tensor, result: Tensor) -> None:
    """Write the overlap of pictures into `result`, in place."""
    greys = _grey(first), _grey(second)
    coarse, fine = ([_detail(grey, level) for grey in greys] for level in (COARSE, FINE))
    tried = [(way, scale) for way in (0, 1) for scale in COARSE.scales]
    for flip in (False, True):  # coarsely, what is symmetric looks like its mirror image
        scores = torch.stack([_found(coarse[way], coarse[1 - way], scale, flip) for way, scale in tried])
        best, which = scores.max(0)
        left = (best >= COARSE.bound) & (result < EXACT.bound)
        for number in which[left].unique().tolist():
            rows = ((which == number) & left).nonzero().flatten()
            way, scale = tried[number]
            scales = [scale * factor for factor in FINE.scales if scale * factor <= 1.05]
            template, picture = fine[way][rows], fine[1 - way][rows]
            found, factor = torch.stack([_found(template, picture, each, flip) for each in scales]).max(0)
            for place in (found >= FINE.bound).nonzero().flatten().tolist():
                row = int(rows[place])
                exact = _exact(greys[way][row], greys[1 - way][row], scales[int(factor[place])], flip)
                result[row] = max(float(result[row]), exact)


def _found(template: Tensor, picture: Tensor, scale: float, flip: bool) -> Tensor:
    """The largest correlation (p,) of the middle of templates (p, 1, S, S), scaled, with a place in pictures."""
    return _correlation(picture, _middle(template, scale, flip)).amax((1, 2))


def _exact(template: Tensor, picture: Tensor, scale: float, flip: bool) -> float:
    """How well the middle of one luminance (1, H, H) is found in another near its best place; enough is enough."""
    fine = _middle(_detail(template[None], FINE), scale, flip)
    places = _correlation(_detail(picture[None], FINE), fine)[0]
    best_place = divmod(int(places.argmax()), places.shape[1])
    centre = [EXACT.side / FINE.side * (at + fine.shape[-1] / 2) for at in best_place]
    detail, other = _detail(template[None], EXACT), _detail(picture[None], EXACT)
    best = -1.0
    for factor in EXACT.scales:
        middle = _middle(detail, scale * factor, flip)
        side = middle.shape[-1]
        starts = [min(max(round(at - side / 2), 0), EXACT.side - side) for at in centre]
        rows, columns = (slice(max(start - _AROUND, 0), start + side + _AROUND) for start in starts)
        best = max(best, float(_correlation(other[:, :, rows, columns], middle).max()))
        if best >= EXACT.bound:
            break
    return best


def _middle(template: Tensor, scale: float, flip: bool) -> Tensor:
    """The middle of templates (p, 1, S, S), scaled and perhaps mirrored."""
    whole = round(template.shape[-1] * scale)
    scaled = interpolate(template, (whole, whole), mode="bilinear", antialias=True)
    side = round(whole * MIDDLE)
    edge = (whole - side) // 2
    middle = scaled[:, :, edge : edge + side, edge : edge + side]
    return middle.flip(3) if flip else middle


def _correlation(picture: Tensor, template: Tensor) -> Tensor:
    """The normalised cross-correlation (p, places, places) of templates (p, 1, t, t) with pictures (p, 1, S, S)."""
    side = template.shape[-1]
    centred = template - template.mean((2, 3), keepdim=True)
    deviation = centred.square().mean((2, 3)).sqrt()  # (p, 1)
    product = conv2d(picture.transpose(0, 1), centred, groups=len(picture))[0] / side**2  # (p, places, places)
    mean = avg_pool2d(picture, side, 1)[:, 0]
    local = (avg_pool2d(picture.square(), side, 1)[:, 0] - mean.square()).clamp(min=0).sqrt()
    return product / (local * deviation[:, :, None]).clamp(min=_FLAT**2)


def _same_colours(first: Tensor, second: Tensor) -> Tensor:
    """Whether the mean colours of pictures, relative to brightness, differ no more than a crop changes them, (p,)."""
    (one, spread), (other, other_spread) = _colours(first), _colours(second)
    return ((one - other).abs() <= 0.1 + 0.5 * torch.minimum(spread, other_spread)).all(1)


def _colours(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations (p, 2) of red and blue minus luminance, divided by the mean luminance."""
    grey = _grey(pictures)
    difference = (pictures[:, ::2].float() - grey) / grey.mean((2, 3), keepdim=True).clamp(min=8.0)
    return difference.mean((2, 3)), difference.std((2, 3), correction=0)


def _grey(pictures: Tensor) -> Tensor:
    """Luminance (p, 1, H, H)."""
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    return (pictures.float() * weights).sum(1, keepdim=True)


def _detail(grey: Tensor, level: Level) -> Tensor:
    """Luminance at a level's size, (p, 1, S, S), without what its blur leaves of it."""
    scaled = interpolate(grey, (level.side, level.side), mode="bilinear", antialias=True)
    return scaled - avg_pool2d(scaled, level.blur, 1, level.blur // 2, count_include_pad=False)
