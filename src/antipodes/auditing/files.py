"""Image files by their paths, in any order: the pictures of embeddings that were made earlier or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.data.decode import decode_source
from antipodes.data.image_opening import Source

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
        decoded = decode_source(Source(path), self.image_size)
        if decoded.pixels is None:
            return torch.full((3, self.image_size, self.image_size), 128, dtype=torch.uint8)
        return torch.from_numpy(decoded.pixels)
