"""Pictures with shapes and texture, each another, that stand for photos."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter


def scene(number: int, size: tuple[int, int] = (160, 128)) -> Image.Image:
    """Picture `number`: random polygons and discs over a gradient, slightly blurred."""
    rng = np.random.default_rng(number)
    image = Image.new("RGB", size, tuple(rng.integers(40, 220, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(14):
        x, y, radius = rng.integers(0, size[0]), rng.integers(0, size[1]), rng.integers(6, 34)
        colour = tuple(rng.integers(0, 256, 3).tolist())
        if rng.random() < 0.5:
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        else:
            corners = [(int(x + rng.normal() * radius), int(y + rng.normal() * radius)) for _ in range(4)]
            pen.polygon(corners, fill=colour)
    return image.filter(ImageFilter.GaussianBlur(0.7))
