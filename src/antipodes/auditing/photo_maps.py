"""The map from one photo to another: which place of the second shows what is at a place of the first.

In plain terms:
1. `match` pairs up keypoints with the most similar descriptors. Every match proposes a map (a move, a turn and a
   scale); the one that most other matches agree with is kept.
2. It is fitted to these matches, at last with a stretch and a shear of its own; and with a perspective, where that
   explains clearly more of them.
3. The same is tried with the second photo mirrored, and the map that explains more is the answer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.auditing.keypoints import Keypoints, mirrored

MATCHES = 8
"""Keypoints that one map must explain. Of 18,000 pairs of other photos, seven had more."""

_KEPT = 48  # matches of a pair that are looked at, the most similar first
_SIMILAR = 0.75  # cosine of descriptors from which they match
_EXACT = 1.0  # pixels by which matches are off where a map is exact
_CLEARLY = 3  # matches that a perspective must explain exactly, beyond those of the affine map
_UNIT = 64.0  # pixels to which coordinates are scaled while a perspective is fitted
_STEEPEST = 0.4  # by which a perspective may change the scale over so many pixels


class Map(NamedTuple):
    """Maps of p pairs from the first photo to the second, and the matches that they explain.

    Args:
        matrix: (p, 3, 3) of homogeneous coordinates in pixels of the canvas; `led` applies them.
        matches: (p,) how many.
    """

    matrix: Tensor
    matches: Tensor


def match(first: Keypoints, second: Keypoints) -> Map:
    """The map from each of p photos to another one that most matches of keypoints agree with."""
    plain, turned = _match(first, second, False), _match(first, second, True)
    better = turned.matches > plain.matches
    matrix = torch.where(better[:, None, None], turned.matrix, plain.matrix)
    return Map(matrix, torch.maximum(turned.matches, plain.matches))


def led(matrix: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Where maps (p, 3, 3) lead points (p, m, 2), and how many times as large an area is there, (p, m).

    Example:
        >>> turn = torch.tensor([[[0.0, -2.0, 5.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
        >>> [each.tolist() for each in led(turn, torch.tensor([[[1.0, 3.0]]]))]
        [[[[-1.0, 2.0]]], [[4.0]]]
    """
    place = points @ matrix[:, :, :2].transpose(1, 2) + matrix[:, None, :, 2]
    depth = place[..., 2].clamp(min=0.05)
    return place[..., :2] / depth[..., None], torch.linalg.det(matrix).abs()[:, None] / depth**3


def inverse(matrix: Tensor) -> Tensor:
    """The maps back; the identity where there is none."""
    regular = torch.linalg.det(matrix).abs() > 1e-6
    back: Tensor = torch.linalg.inv(torch.where(regular[:, None, None], matrix, torch.eye(3)))
    return back


def _match(first: Keypoints, second: Keypoints, mirror: bool) -> Map:
    """The best map, with the second photos mirrored or not; it leads to the photos as they are."""
    other = mirrored(second.descriptors) if mirror else second.descriptors
    similarity = first.descriptors @ other.transpose(1, 2)  # (p, K, K)
    best, partner = similarity.max(2)
    mutual = best == similarity.amax(1).gather(1, partner)
    kept, chosen = torch.where(mutual & (best > _SIMILAR), best, 0.0).topk(_KEPT, 1)
    known, partner = kept > 0, partner.gather(1, chosen)

    here = first.places.gather(1, chosen[..., None].expand(-1, -1, 2))
    there = second.places.gather(1, partner[..., None].expand(-1, -1, 2))
    angle = second.angles.gather(1, partner)
    if mirror:
        there, angle = there * _FLIP[:2], math.pi - angle
    turn = angle - first.angles.gather(1, chosen)
    scale = second.scales.gather(1, partner) / first.scales.gather(1, chosen)

    # every match m proposes a map; which matches n does it explain?
    real, imaginary = (scale * turn.cos())[..., None], (scale * turn.sin())[..., None]
    step = here[:, None] - here[:, :, None]  # (p, m, n, 2)
    x = real * step[..., 0] - imaginary * step[..., 1] + there[:, :, None, 0] - there[:, None, :, 0]
    y = imaginary * step[..., 0] + real * step[..., 1] + there[:, :, None, 1] - there[:, None, :, 1]
    turned = (torch.remainder(turn[:, None] - turn[:, :, None] + math.pi, 2 * math.pi) - math.pi).abs() < 0.4
    scaled = (scale.log()[:, None] - scale.log()[:, :, None]).abs() < 0.6
    near = x.square() + y.square() < (8 * scale.clamp(min=1)[:, :, None]).square()
    explained = near & turned & scaled & known[:, None] & known[:, :, None]
    most = explained.sum(2).argmax(1)
    weight = explained.gather(1, most[:, None, None].expand(-1, 1, _KEPT))[:, 0].float()

    matrix = _similarity(here, there, weight)
    for fit, reach in ((_similarity, 4.0), (_similarity, 2.5), (_stretched, 4.0), (_stretched, 4.0)):
        matrix = fit(here, there, _explained(matrix, here, there, reach) * known, matrix)
    matches = (_explained(matrix, here, there, 2.5) * known).sum(1)
    enough = matches >= MATCHES
    if bool(enough.any()):
        matrix[enough] = _unless_affine(matrix[enough], here[enough], there[enough], known[enough])
    return Map(_FLIP[:, None] * matrix if mirror else matrix, matches)


def _unless_affine(affine: Tensor, here: Tensor, there: Tensor, known: Tensor) -> Tensor:
    """Maps in perspective where these explain clearly more of the matches exactly, elsewhere the affine ones."""
    matrix = affine
    for reach in (6.0, 4.0, 4.0):
        matrix = _in_perspective(here, there, _explained(matrix, here, there, reach) * known, matrix)
    exactly, before = ((_explained(each, here, there, _EXACT) * known).sum(1) for each in (matrix, affine))
    return torch.where((exactly >= before + _CLEARLY)[:, None, None], matrix, affine)


def _explained(matrix: Tensor, here: Tensor, there: Tensor, reach: float) -> Tensor:
    """Which points (p, m, 2) a map brings closer to their partners than `reach` pixels, as 0 or 1, (p, m)."""
    place, area = led(matrix, here)
    explained: Tensor = (place - there).square().sum(-1) < reach**2 * area.clamp(min=1)
    return explained.float()


def _centred(here: Tensor, there: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = weight.sum(1, keepdim=True).clamp(min=1e-6)
    middle, other = ((each * weight[..., None]).sum(1) / total for each in (here, there))
    return here - middle[:, None], there - other[:, None], middle, other


def _joined(linear: Tensor, middle: Tensor, other: Tensor) -> Tensor:
    affine = torch.cat((linear, other[..., None] - linear @ middle[..., None]), 2)
    return torch.cat((affine, torch.tensor([[[0.0, 0.0, 1.0]]]).expand(len(affine), -1, -1)), 1)


def _similarity(here: Tensor, there: Tensor, weight: Tensor, _: Tensor | None = None) -> Tensor:
    """The move, turn and scale (p, 3, 3) of the least squares over weighted matches."""
    a, b, middle, other = _centred(here, there, weight)
    total = (weight * a.square().sum(-1)).sum(1) + 1e-3
    real = (weight * (a * b).sum(-1)).sum(1) / total
    imaginary = (weight * (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0])).sum(1) / total
    linear = torch.stack((torch.stack((real, -imaginary), -1), torch.stack((imaginary, real), -1)), 1)
    return _joined(linear, middle, other)


def _stretched(here: Tensor, there: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
    """The affine map of the least squares over weighted matches, which stays close to a given one for few matches."""
    a, b, middle, other = _centred(here, there, weight)
    left = b - a @ matrix[:, :2, :2].transpose(1, 2)
    weighted = (a * weight[..., None]).transpose(1, 2)
    ridge = 20.0 * weight.sum(1).clamp(min=1e-6)[:, None, None] * torch.eye(2)
    change = torch.linalg.solve(weighted @ a + ridge, weighted @ left).transpose(1, 2)
    return _joined(matrix[:, :2, :2] + change, middle, other)


def _in_perspective(here: Tensor, there: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
    """The map of a plane seen from another side, by least squares over weighted matches, close to a given map for few.

    With u = (a x + b y + c) / (g x + h y + 1), and likewise v, each match gives two equations that are linear in the
    eight unknowns: a x + b y + c - g x u - h y u = u.
    """
    a, b, middle, other = _centred(here, there, weight)
    zero, one = torch.zeros_like(a[..., :1]), torch.ones_like(a[..., :1])
    a, b = a / _UNIT, b / _UNIT
    across = torch.cat((a, one, zero, zero, zero, -a * b[..., :1]), -1)
    down = torch.cat((zero, zero, zero, a, one, -a * b[..., 1:]), -1)
    rows = torch.cat((across, down), 1)  # (p, 2m, 8)
    before, after = _moved(middle, _UNIT), torch.linalg.inv(_moved(other, _UNIT))
    known = (after @ matrix @ before).flatten(1)
    known = known[:, :8] / known[:, 8:]
    left = torch.cat((b[..., 0], b[..., 1]), 1) - (rows @ known[..., None])[..., 0]
    weighted = (rows * torch.cat((weight, weight), 1)[..., None]).transpose(1, 2)
    change = torch.linalg.solve(weighted @ rows + 0.01 * torch.eye(8), weighted @ left[..., None])[..., 0]
    unknowns = known + change
    slopes = unknowns[:, 6:].clamp(-_STEEPEST, _STEEPEST)
    fitted = torch.cat((unknowns[:, :6], slopes, torch.ones(len(slopes), 1)), 1).view(-1, 3, 3)
    whole: Tensor = _moved(other, _UNIT) @ fitted @ torch.linalg.inv(before)
    return whole


def _moved(middle: Tensor, unit: float) -> Tensor:
    """The map (p, 3, 3) from coordinates around a middle (p, 2), in units, to pixels."""
    scaled = (torch.tensor([unit, unit, 1.0]) * torch.eye(3)).expand(len(middle), -1, -1).clone()
    scaled[:, :2, 2] = middle
    return scaled


_FLIP = torch.tensor([-1.0, 1.0, 1.0])
