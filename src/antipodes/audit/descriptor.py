"""A hand-made description of a picture, for when no encoder is at hand.

The low frequencies of brightness and of two colour differences (a perceptual hash before it is cut to bits, and the
colour layout of MPEG-7). A mirror changes only the sign of odd horizontal frequencies, so those count without their
sign; brightness is scaled to length 1, so that contrast does not count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate, normalize

_SIDE = 32
_BRIGHTNESS, _COLOUR = 8, 4  # frequencies each way
_WEIGHT = 0.5  # of colour beside brightness


def describe(pictures: Tensor) -> Tensor:
    """Descriptions (b, 95) float32 of pictures (b, 3, H, H) uint8; mirrored pictures have the same.

    Example:
        >>> picture = torch.arange(3 * 64 * 64).view(1, 3, 64, 64).remainder(251).to(torch.uint8)
        >>> torch.allclose(describe(picture), describe(picture.flip(3)), atol=1e-4)
        True
    """
    small = interpolate(pictures.float(), (_SIDE, _SIDE), mode="bilinear", antialias=True)
    red, green, blue = small.unbind(1)
    brightness = 0.299 * red + 0.587 * green + 0.114 * blue
    light = _frequencies(brightness, _BRIGHTNESS)[:, 1:]  # without the mean
    contrast = light.norm(dim=1, keepdim=True).clamp(min=1.0)
    colours = [_frequencies(colour - brightness, _COLOUR) / _SIDE for colour in (blue, red)]
    scaled = torch.cat(colours, 1) / 64
    return torch.cat([normalize(light) * (contrast > 1), _WEIGHT * scaled], 1)


def _frequencies(channel: Tensor, count: int) -> Tensor:
    """The lowest count x count coefficients of the cosine transform of (b, S, S), odd horizontal ones without sign."""
    place = (torch.arange(_SIDE) + 0.5) * math.pi / _SIDE
    waves = torch.cos(torch.arange(count)[:, None] * place) * math.sqrt(2 / _SIDE)
    waves[0] /= math.sqrt(2)
    coefficients = waves @ channel @ waves.T
    coefficients[:, :, 1::2] = coefficients[:, :, 1::2].abs()
    return coefficients.flatten(1)
