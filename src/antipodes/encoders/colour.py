"""CIE Lab, the colour space whose first channel is luminance and whose other two are colour."""

from __future__ import annotations

import torch
from torch import Tensor

# sRGB to XYZ under D65, each row divided by the white point
_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.950456, 1.0, 1.088754)


def rgb_to_lab(images: Tensor) -> Tensor:
    """Turn sRGB images in [0, 1] into Lab, scaled to about [-1, 1]: L/50 - 1, a/110, b/110.

    Args:
        images: (B, 3, H, W) in [0, 1].

    Returns:
        (B, 3, H, W), the channels L, a, b.

    Example:
        >>> rgb_to_lab(torch.ones(1, 3, 1, 1)).flatten().abs().round(decimals=3)
        tensor([1., 0., 0.])
    """
    images = images.clamp(0, 1)
    linear = torch.where(images > 0.04045, ((images + 0.055) / 1.055) ** 2.4, images / 12.92)
    matrix = images.new_tensor(_XYZ) / images.new_tensor(_WHITE)[:, None]
    xyz = torch.einsum("kc,bchw->bkhw", matrix, linear)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    x, y, z = f.unbind(1)
    return torch.stack(((116 * y - 16) / 50 - 1, 500 * (x - y) / 110, 200 * (y - z) / 110), dim=1)
