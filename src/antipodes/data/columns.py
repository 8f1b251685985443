"""The columns of a table of samples: what one input of some rows is, whether it lies in memory or has to be decoded.

A dataset (`Samples`) is a table: a column for every input, and labels, samples and names by row. Folders, archives, tar
files, tables and hubs only differ in how they fill these columns.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.pictures import Pictures
from antipodes.files import DataError

Modality = Literal["image", "text", "vector"]
Raw = Tensor | list[str]
"""A batch of one input as the dataset has it: images and vectors as tensors, texts as strings."""


class Column(ABC):
    """One input of rows 0..n-1."""

    modality: Modality = "image"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Raw:
        """Return the input of some rows, (b,) int64.

        Args:
            rows: which ones.
            draw: numbers from which a choice among several inputs of a row follows; None takes the first.

        Returns:
            Images (b, 3, H, W) uint8, texts as a list of b strings, vectors (b, F) float32.
        """

    def texts(self) -> list[str]:
        """Return every text that the column can show, each once; none where it has no texts."""
        return []

    def captions(self, row: int) -> list[str]:
        """Return all texts among which one is drawn for a row."""
        return []


class PixelColumn(Column):
    """Images in memory, (n, 3, H, H) uint8."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Tensor:
        """Return images (b, 3, H, H)."""
        return self.images[rows]


class ItemColumn(Column):
    """Images that a function decodes one by one whenever they are asked for.

    Args:
        count: number of rows.
        decode: returns image i, (3, H, H) uint8.
    """

    def __init__(self, count: int, decode: Callable[[int], Tensor]) -> None:
        self._count, self._decode = count, decode

    def __len__(self) -> int:
        return self._count

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Tensor:
        """Return images (b, 3, H, H)."""
        return torch.stack([self._decode(row) for row in rows.tolist()])


class FileColumn(Column):
    """Images of files or members of tar files, from the cache of decoded images.

    Args:
        pictures: the images.
        places: (n,) int64, the image that every row shows; None where row i shows image i.
    """

    def __init__(self, pictures: Pictures, places: Tensor | None = None) -> None:
        self.pictures, self.places = pictures, places

    def __len__(self) -> int:
        return len(self.pictures if self.places is None else self.places)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Tensor:
        """Return images (b, 3, H, H)."""
        return self.pictures.fetch(rows if self.places is None else self.places[rows])


class CaptionColumn(Column):
    """Texts, several of which may belong to one image.

    Args:
        captions: the texts of every image, at least one each.
        places: (n,) int64, the image that every row shows; None where row i shows image i, and one text is drawn.
        numbers: (n,) which of the image's texts a row shows, where it is always the same.
    """

    modality: Modality = "text"

    def __init__(
        self,
        captions: Sequence[Sequence[str]],
        places: Tensor | None = None,
        numbers: NDArray[np.int64] | None = None,
    ) -> None:
        self._captions, self._places, self._numbers = captions, places, numbers
        self._counts = np.array([len(several) for several in captions])

    def __len__(self) -> int:
        return len(self._captions if self._places is None else self._places)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> list[str]:
        """Return b texts. One that is drawn follows from ``draw`` and the row alone.

        So every order of the rows, every rank and every resumed run reads the same.
        """
        images = (rows if self._places is None else self._places[rows]).tolist()
        if self._numbers is not None:
            which = self._numbers[rows.numpy()].tolist()
        elif draw is None:
            which = [0] * len(images)
        else:
            which = draw_choices(draw, rows.numpy(), self._counts[rows.numpy()]).tolist()
        return [self._captions[image][number] for image, number in zip(images, which, strict=True)]

    def texts(self) -> list[str]:
        """Return every text once, in the order of the images."""
        return list(dict.fromkeys(text for several in self._captions for text in several))

    def captions(self, row: int) -> list[str]:
        """Return all texts of the image that a row shows."""
        return list(self._captions[row if self._places is None else int(self._places[row])])


class VectorColumn(Column):
    """Rows of an array (N, F) that may be mapped into memory.

    Args:
        array: the numbers.
        rows: (n,) int64, the rows of the array that are the rows of the table.
        source: name of the file, for the sentence that refuses a number.
    """

    modality: Modality = "vector"

    def __init__(self, array: NDArray[np.generic], rows: Tensor, source: str) -> None:
        self.array, self.rows, self._source = array, rows, source

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Tensor:
        """Return vectors (b, F) float32.

        Raises:
            DataError: if one of them is not finite.
        """
        taken = self.rows[rows].numpy()
        vectors = torch.from_numpy(self.array[taken].astype(np.float32))
        if not bool(torch.isfinite(vectors).all()):
            row = int(taken[int((~torch.isfinite(vectors)).any(1).nonzero()[0])])
            raise DataError(f"row {row} of {self._source} is not finite: replace or remove it")
        return vectors


def draw_choices(draw: tuple[int, ...], rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw one of ``counts`` for each row, from the numbers ``draw`` and the row alone; all (b,), uniform.

    The row is mixed into a digest of ``draw`` by the finaliser of splitmix64, whose upper 32 bits are then scaled.

    Example:
        >>> draw_choices((0, 3), np.array([7, 8]), np.array([5, 5])).shape
        (2,)
    """
    key = int.from_bytes(hashlib.blake2b(repr(("caption", *draw)).encode(), digest_size=8).digest(), "little")
    with np.errstate(over="ignore"):
        mixed = np.uint64(key) + rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        upper = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(32)
        drawn: NDArray[np.int64] = ((upper * counts.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
    return drawn
