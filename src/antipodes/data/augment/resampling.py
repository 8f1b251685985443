"""Crop, resize, flip and blur as two small matrix products per image.

1. A crop box says where the centre of every output pixel lies in the input. The antialiased bilinear weights of the
   input pixels around it are one row of a resampling matrix, one matrix for the vertical and one for the horizontal.
2. A flip reads the box from right to left; a Gaussian blur of the output is a matrix in front of both.
   Both are folded into the matrices, so the image itself is touched twice, whatever was drawn.
3. view = vertical @ image @ horizontal^T.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antipodes.data.augment.base import uniform

ATTEMPTS = 10


def draw_boxes(
    count: int, scale: tuple[float, float], ratio: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Draw random-resized-crop boxes (count, 4): left, top, width, height as shares of the image.

    The area is uniform in `scale`, the aspect ratio log-uniform in `ratio`, the place uniform. A box wider or higher
    than the image is drawn again, at most ten times in all; then the whole image is taken.
    """
    area = uniform((count, ATTEMPTS), *scale, generator)
    aspect = uniform((count, ATTEMPTS), math.log(ratio[0]), math.log(ratio[1]), generator).exp_()
    fits = (area * aspect <= 1) & (area <= aspect)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first that fits
    area, aspect = area.gather(1, first), aspect.gather(1, first)
    sides = torch.cat((area * aspect, area / aspect), dim=1).sqrt_()  # (count, 2)
    sides = torch.where(fits.any(dim=1, keepdim=True), sides.clamp_(max=1), 1.0)
    return torch.cat((uniform((count, 2), 0, 1, generator) * (1 - sides), sides), dim=1)


def resampling_matrix(start: Tensor, length: Tensor, inputs: int, outputs: int) -> Tensor:
    """Return the matrices (B, outputs, inputs) that resize the stretch [start, start + length) of a line of pixels.

    The weights are those of Pillow's BILINEAR resize with a box: a triangle as wide as one output pixel (but at least
    one input pixel), normalised; pixels of the line beyond the stretch take part where the triangle reaches them.

    Args:
        start: (B,) in units of the whole line, 0 for its beginning.
        length: (B,) in the same units, not 0; a negative one reads the line backwards.
        inputs: number of pixels of the line.
        outputs: number of pixels it becomes.
    """
    step = length.view(-1, 1, 1) * (inputs / outputs)  # input pixels per output pixel
    place = torch.arange(outputs, device=start.device).view(1, -1, 1) + 0.5
    centre = start.view(-1, 1, 1) * inputs + place * step  # (B, outputs, 1)
    pixels = torch.arange(inputs, device=start.device) + 0.5
    # Minus the triangle times its width: both cancel in the normalisation.
    weights = (pixels - centre).abs_().sub_(step.abs().clamp_(min=1)).clamp_(max=0)
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def blur_matrix(sigma: Tensor, size: int, kernel: int = 0) -> Tensor:
    """Return the matrices (B, size, size) of a one-dimensional Gaussian blur, renormalised at the borders.

    Args:
        sigma: (B,) standard deviations in pixels, positive.
        size: number of pixels of the line.
        kernel: odd number of taps after which the Gaussian is cut off; 0 keeps all of it.
    """
    pixels = torch.arange(size, dtype=sigma.dtype, device=sigma.device)
    distance = (pixels[:, None] - pixels).abs()
    exponent = distance.square() * (-0.5 / sigma.square()).view(-1, 1, 1)
    # Below exp(-30) a weight is lost in rounding anyway, and denormal numbers are many times slower to compute with.
    weights = exponent.clamp_(min=-30).exp_()
    if kernel:
        weights.masked_fill_(distance > kernel // 2, 0)
    return weights.div_(weights.sum(dim=-1, keepdim=True))


def crop(
    images: Tensor, boxes: Tensor, flip: Tensor, size: int, sigma: Tensor | None = None, kernel: int = 0
) -> Tensor:
    """Cut `boxes` out of the images, resize them to `size`, flip and blur them, in one resampling.

    Args:
        images: float (B, 3, H, W).
        boxes: (B, 4) left, top, width, height as shares of the image, see `draw_boxes`.
        flip: (B,) bool, true where left and right change places.
        size: height and width of the result.
        sigma: (B,) standard deviation of the blur in output pixels, 0 for none. None blurs nothing.
        kernel: see `blur_matrix`.

    Returns:
        Float (B, 3, size, size).
    """
    count, channels, height, width = images.shape
    left, top, across, down = boxes.unbind(dim=1)
    vertical = resampling_matrix(top, down, height, size)
    left, across = torch.where(flip, left + across, left), torch.where(flip, -across, across)
    horizontal = resampling_matrix(left, across, width, size)
    if sigma is not None:
        blurred = sigma.nonzero().squeeze(1)
        blur = blur_matrix(sigma[blurred], size, kernel)
        for matrix in (vertical, horizontal):
            matrix.index_copy_(0, blurred, torch.bmm(blur, matrix.index_select(0, blurred)))
    rows = torch.bmm(images.reshape(count, channels * height, width), horizontal.mT)  # (B, 3 H, size)
    return vertical.unsqueeze(1) @ rows.view(count, channels, height, size)
