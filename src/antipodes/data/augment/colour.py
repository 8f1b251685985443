"""Colour jitter as one 3 x 4 matrix per image.

In YIQ, where Y is the brightness a person sees (luma) and (I, Q) the colour, all parts of colour jitter are simple:
brightness b scales everything, contrast c scales everything towards the mean luma of the image, saturation s scales
(I, Q) and hue turns (I, Q). Without clamping in between they commute, so there is no order to choose:

    Y' = b (c Y + (1 - c) mean(Y)),    (I, Q)' = b c s rotation(hue) (I, Q)

and a greyscale image is one of saturation 0. Back in RGB that is one matrix and one offset; the result is clamped once.

Hue is this rotation by design, not Pillow's shift of HSV hue: it keeps luma instead of the largest channel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)
YIQ = (LUMA, (0.595716, -0.274453, -0.321263), (0.211456, -0.522591, 0.311135))


def _basis() -> Tensor:
    """Return (3, 9): the RGB matrices of keeping Y, of keeping (I, Q), and of turning (I, Q) by a quarter."""
    to_yiq = torch.tensor(YIQ, dtype=torch.float64)
    # Hue runs from red over green to blue, which is clockwise in the (I, Q) plane.
    quarter = torch.tensor([[0, 0, 0], [0, 0, 1], [0, -1, 0]], dtype=torch.float64)
    keep = torch.diag(torch.tensor([1, 0, 0], dtype=torch.float64)), torch.diag(torch.tensor([0, 1, 1]).double())
    return torch.stack([to_yiq.inverse() @ part @ to_yiq for part in (*keep, quarter)]).view(3, 9).float()


BASIS = _basis()


def jitter(images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Return the images with their colours changed, clamped to [0, 1].

    Args:
        images: float (B, 3, H, W) in [0, 1].
        brightness: (B,) factors, 1 changes nothing.
        contrast: (B,) factors, 1 changes nothing.
        saturation: (B,) factors, 1 changes nothing and 0 makes grey.
        hue: (B,) shifts in full turns, 0 changes nothing, 1/3 turns red into green.
    """
    scale = brightness * contrast
    angle = 2 * math.pi * hue
    mix = torch.stack((scale, scale * saturation * angle.cos(), scale * saturation * angle.sin()), dim=1)
    # Sums instead of matrix products, whose rounding depends on how many images there are: two ranks must equal one.
    matrix = (mix.unsqueeze(2) * BASIS.to(images.device)).sum(dim=1).view(-1, 3, 3)
    mean = (images.mean(dim=(2, 3)) * images.new_tensor(LUMA)).sum(dim=1)
    offset = (brightness * (1 - contrast) * mean).view(-1, 1, 1)
    return torch.bmm(matrix, images.flatten(2)).add_(offset).clamp_(0, 1).view_as(images)


def invert_above(images: Tensor, threshold: Tensor) -> Tensor:
    """Return the images (B, 3, H, W) in [0, 1] with every value at or above its image's `threshold` (B,) inverted."""
    return torch.where(images < threshold.view(-1, 1, 1, 1), images, 1 - images)
