"""Photos that a caller gives as a list: of image files by their paths, in any order, or of Pillow images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from antipodes.auditing.photos import Photos
from antipodes.data import Samples
from antipodes.data.columns import ItemColumn
from antipodes.data.decode import decode_source, square, to_pillow
from antipodes.data.image_opening import Source

SIZE = 64


class FileImages(Samples):
    """Small square pictures of files, decoded when they are asked for; a file that cannot be read is grey.

    Args:
        paths: the files.
        size: side of the pictures.
    """

    def __init__(self, paths: Sequence[str], size: int = SIZE) -> None:
        self.paths, self.image_size, self.name = tuple(paths), size, "files"
        self._fill({"image": ItemColumn(len(self.paths), self._picture)})

    def _picture(self, row: int) -> Tensor:
        decoded = decode_source(Source(self.paths[row]), self.image_size)
        if decoded.pixels is None:
            return torch.full((3, self.image_size, self.image_size), 128, dtype=torch.uint8)
        return torch.from_numpy(decoded.pixels)


class PillowImages(Samples):
    """Small square pictures of Pillow images.

    Args:
        images: the images.
        size: side of the pictures.
    """

    def __init__(self, images: Sequence[Image.Image], size: int = SIZE) -> None:
        self.images, self.image_size, self.name = tuple(images), size, "images"
        self._fill({"image": ItemColumn(len(self.images), self._picture)})

    def _picture(self, row: int) -> Tensor:
        return torch.from_numpy(square(to_pillow(self.images[row]), self.image_size).copy())


@dataclass(frozen=True)
class PillowPhotos(Photos):
    """Photos that are Pillow images in memory, named by their place in the list."""

    images: tuple[Image.Image, ...] = field(default=())

    def image(self, row: int) -> Image.Image:
        """The whole picture."""
        return self.images[row].convert("RGB")


def photos_of_list(given: Sequence[Any]) -> Photos:
    """The photos of a list of paths or of Pillow images.

    Raises:
        ValueError: if a file does not exist, or the list holds something else.
    """
    splits = ("train",) * len(given)
    if all(isinstance(each, Image.Image) for each in given):
        names = tuple(f"image {row}" for row in range(len(given)))
        return PillowPhotos((PillowImages(given),), names, splits, are_files=False, images=tuple(given))
    if all(isinstance(each, Path) for each in given):
        paths = tuple(str(each.expanduser()) for each in given)
        for path in paths:
            if not os.path.isfile(path):
                raise ValueError(f"{path} does not exist: data is a list of photos, each a path to an image file")
        return Photos((FileImages(paths),), paths, splits, are_files=True)
    kinds = ", ".join(sorted({type(each).__name__ for each in given}))
    raise ValueError(f"data must be a list of texts, of paths (pathlib.Path) or of Pillow images alone, got {kinds}")


def photos_of_files(paths: Sequence[str]) -> Photos | None:
    """The photos of vectors whose paths are image files that still exist; None if one does not."""
    if not all(os.path.isfile(path) for path in paths):
        return None
    return Photos((FileImages(paths),), tuple(paths), ("train",) * len(paths), are_files=True)
