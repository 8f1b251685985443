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


def garment(number: int, size: tuple[int, int] = (128, 128)) -> Image.Image:
    """Trousers laid out for sale: one outline on one background for every number, with folds of its own."""
    rng = np.random.default_rng(number)
    image = Image.new("RGB", size, (225, 222, 214))
    pen = ImageDraw.Draw(image)
    outline = [(34, 8), (94, 8), (104, 120), (74, 120), (64, 40), (54, 120), (24, 120)]
    pen.polygon([(x + int(rng.integers(-4, 5)), y + int(rng.integers(-4, 5))) for x, y in outline], fill=(52, 58, 80))
    for _ in range(60):
        x, y, turn = rng.uniform(30, 98), rng.uniform(10, 118), rng.uniform(0, np.pi)
        shade = int(rng.integers(-30, 30))
        if image.getpixel((int(x), int(y)))[0] < 150:
            ends = (x - 7 * np.cos(turn), y - 7 * np.sin(turn), x + 7 * np.cos(turn), y + 7 * np.sin(turn))
            pen.line(ends, fill=(52 + shade, 58 + shade, 80 + shade), width=2)
    return image.filter(ImageFilter.GaussianBlur(0.7))
