"""Datasets whose rows are image files: what a folder and a list of files have in common."""

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from antipodes.data.dataset import ImageDataset
from antipodes.data.image_opening import Source
from antipodes.data.keys import row_keys
from antipodes.data.pictures import Pictures, decode_all
from antipodes.data.sizes import decode_size


class ImageFiles(ImageDataset):
    """Images, each a file of its own.

    Attributes:
        base: the folder in which all of them are.
        files: their paths within it.
        pictures: their pixels and digests.
        decode: side of the decoded images, from which views are cut.
    """

    base: Path
    files: tuple[str, ...]
    pictures: Pictures
    decode: int

    def _decode(
        self,
        base: Path,
        names: Sequence[str],
        *,
        size: int | None,
        decode: int | None,
        part: str,
        cache: bool,
        workers: int | None,
        memory_limit: int,
    ) -> list[tuple[str, str]]:
        """Decode files of these names within ``base``; those that can be read become the rows.

        Returns:
            (name, reason) of each of the others.
        """
        self.base = base
        sources = [Source(os.path.join(base, name)) for name in names]
        self.image_size, self.decode = decode_size(sources, size, decode)
        self.pictures = decode_all(
            base, names, sources, self.decode, part=part, workers=workers, memory_limit=memory_limit, cache=cache
        )
        self.in_memory = self.pictures.in_memory
        self.files = tuple(names[i] for i in self.pictures.readable)
        return [(names[i], why) for i, why in self.pictures.problems.items()]

    def __len__(self) -> int:
        return len(self.files)

    def _images(self, ids: Tensor) -> Tensor:
        return self.pictures.fetch(ids)

    @property
    def paths(self) -> list[str]:
        """The path of every row's file."""
        return [os.path.join(self.base, file) for file in self.files]

    def keys(self) -> Tensor:
        """Return digests of every file's name and content, (n, 2) int64."""
        return row_keys(self.files, self.pictures.digests)
