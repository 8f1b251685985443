"""A second view of photos: cropped, mirrored, of another brightness and colour, the same for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from antipodes.auditing.photos import Photos


@dataclass(frozen=True)
class ChangedPhotos(Photos):
    """Photos of which every picture is a changed view; what is random follows from the seed and the row."""

    seed: int = 0

    def image(self, row: int) -> Image.Image:
        """The changed picture."""
        return change(super().image(row), np.random.default_rng((self.seed, row)))

    def pixels(self, rows: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """Small square pictures (b, 3, S, S) uint8 of the changed views."""
        side = super().pixels(rows[:1]).shape[-1]
        squares = [ImageOps.fit(self.image(int(row)), (side, side), Image.Resampling.BICUBIC) for row in rows]
        return torch.from_numpy(np.stack([np.asarray(square) for square in squares])).permute(0, 3, 1, 2)


def second_view(photos: Photos, seed: int = 0) -> ChangedPhotos:
    """The same photos, each changed."""
    return ChangedPhotos(photos.parts, photos.paths, photos.splits, photos.are_files, photos.skipped, seed)


def change(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A crop of 60 to 90 % of each side, mirrored half of the time, brightness and colour changed by up to 40 %."""
    share = rng.uniform(0.6, 0.9)
    width, height = max(1, int(share * image.width)), max(1, int(share * image.height))
    x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    cropped = image.crop((x, y, x + width, y + height))
    if rng.random() < 0.5:
        cropped = ImageOps.mirror(cropped)
    brighter = ImageEnhance.Brightness(cropped).enhance(rng.uniform(0.6, 1.4))
    return ImageEnhance.Color(brighter).enhance(rng.uniform(0.6, 1.4))
