"""Image files by their paths, in any order: the pictures of embeddings that were made earlier or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from antipodes.data import ImageDataset

SIZE = 64


class FileImages(ImageDataset):
    """Small square pictures of files, decoded when they are asked for; a file that cannot be read is grey.

    Args:
        paths: the files.
        size: side of the pictures.
    """

    def __init__(self, paths: Sequence[str], size: int = SIZE) -> None:
        self.paths, self.image_size, self.name = tuple(paths), size, "files"

    def __len__(self) -> int:
        return len(self.paths)

    def _images(self, ids: Tensor) -> Tensor:
        return torch.stack([self._picture(self.paths[row]) for row in ids.tolist()])

    def _picture(self, path: str) -> Tensor:
        try:
            with Image.open(path) as image:
                image.draft("RGB", (2 * self.image_size, 2 * self.image_size))
                upright = ImageOps.exif_transpose(image).convert("RGB")
            square = ImageOps.fit(upright, (self.image_size, self.image_size), Image.Resampling.BICUBIC)
        except Exception:  # damaged files raise nearly anything in Pillow's decoders
            return torch.full((3, self.image_size, self.image_size), 128, dtype=torch.uint8)
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)
