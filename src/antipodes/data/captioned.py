"""Images with captions: what folders with a table and webdataset's tar files have in common."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.dataset import DataError, Modality, Raw, Samples, _check_ids, limited
from antipodes.data.describe import printable
from antipodes.data.image_opening import Source
from antipodes.data.keys import row_keys
from antipodes.data.pictures import decode_all
from antipodes.data.sizes import decode_size

Rows = Literal["image", "caption", "separate"]


class CaptionedImages(Samples):
    """Images, each with one or several captions; made by ``Captions`` and ``Tars``.

    Attributes:
        files: names of the images, within ``base``; an image is one sample.
        row_images: (n,) int64, the image that every row shows.
        image_size: side of the views that are made of the images.
        decode: side H = W of the decoded images.
    """

    modalities: Mapping[str, Modality] = {"image": "image", "text": "text"}
    image_size: int
    split: str
    _options: dict[str, Any]  # how the test split is to be opened, too

    def _open(
        self,
        base: Path,
        names: Sequence[str],
        sources: Sequence[Source],
        texts: Sequence[Sequence[str]],
        *,
        rows: Rows,
        size: int | None,
        decode: int | None,
        limit: int | None,
        longest: int,
        strict: bool,
        cache: bool,
        workers: int | None,
        memory_limit: int,
        skipped: Sequence[tuple[str, str]],
        tables: str = "",
    ) -> None:
        """Decode the images, leave out what cannot be used, and number the rows; `tables` is what an error names."""
        if rows not in get_args(Rows):
            raise ValueError(f"rows must be one of {', '.join(get_args(Rows))}, got {rows!r}")
        if longest < 1:
            raise ValueError(f"longest must be at least 1, got {longest}: it is the characters a caption may have")
        keep = limited(len(names), limit)
        chosen = range(len(names)) if keep is None else keep.tolist()
        self.rows, left_out = rows, list(skipped)
        # whoever is measured knows which captions belong to one image
        self._options = {
            "rows": "caption" if rows == "separate" else rows,
            "longest": longest,
            "strict": strict,
            "cache": cache,
        }
        self._options |= {"workers": workers, "memory_limit": memory_limit}
        usable = [(i, good) for i in chosen if (good := _usable(names[i], texts[i], longest, left_out))]
        self.image_size, self.decode = decode_size([sources[i] for i, _ in usable], size, decode)
        pictures = decode_all(
            base,
            [names[i] for i, _ in usable],
            [sources[i] for i, _ in usable],
            self.decode,
            part=self.split,
            workers=workers,
            memory_limit=memory_limit,
            cache=cache,
        )
        self.skipped = [*left_out, *((names[usable[k][0]], why) for k, why in pictures.problems.items())]
        if strict and self.skipped:
            path, reason = self.skipped[0]
            raise DataError(
                f"{len(self.skipped)} image(s) or caption(s) of {self.name} cannot be used, the first is "
                f"{printable(path)} ({reason}): repair or remove them"
            )
        if not len(pictures):
            why = f", the first is {printable(self.skipped[0][0])} ({self.skipped[0][1]})" if self.skipped else ""
            raise DataError(f"{tables or self.name} holds no image with a caption that can be used{why}")
        self.pictures, self.in_memory = pictures, pictures.in_memory
        kept = [usable[k] for k in pictures.readable]
        self.base, self.files = base, tuple(names[i] for i, _ in kept)
        self._positions = [i for i, _ in kept]
        self._texts = [good for _, good in kept]
        self._counts = np.array([len(good) for good in self._texts])
        images = torch.arange(len(kept))
        self.row_images = images if rows == "image" else images.repeat_interleave(torch.from_numpy(self._counts))
        if rows == "caption":
            self.samples = self.row_images
        if rows != "image":
            self._row_captions = np.concatenate([np.arange(count) for count in self._counts])

    def __len__(self) -> int:
        return len(self.row_images)

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return `image`, (b, 3, H, W) uint8, and `text`, one caption of every row.

        Where a row is an image, its caption is drawn by ``draw`` and the row alone, so that every order of the rows,
        every rank and every resumed run reads the same; without ``draw`` it is the first.
        """
        return self.inputs_without(frozenset(), rows, draw)

    def inputs_without(
        self, names: frozenset[str], rows: Tensor, draw: tuple[int, ...] | None = None
    ) -> dict[str, Raw]:
        """Return the inputs of these rows but for some that are not used: their images are not decoded."""
        found: dict[str, Raw] = {} if "image" in names else {"image": self.fetch(rows)}
        if "text" in self.modalities and "text" not in names:
            images, which = self.row_images[rows].tolist(), self._which(rows.numpy(), draw).tolist()
            found["text"] = [self._texts[image][k] for image, k in zip(images, which, strict=True)]
        return found

    def fetch(self, ids: Tensor) -> Tensor:
        """Return the images of these rows, (b,) int64 -> (b, 3, H, W) uint8.

        Raises:
            ValueError: if a row lies outside 0..n-1.
        """
        _check_ids(ids, len(self))
        return self.pictures.fetch(self.row_images[ids])

    def captions(self, row: int) -> list[str]:
        """Return all captions of the image that a row shows; none where images have none."""
        return list(self._texts[int(self.row_images[row])]) if "text" in self.modalities else []

    def image_ids(self, rows: Tensor) -> Tensor:
        """Return the images that these rows show."""
        return self.row_images[rows]

    def repeated(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return where rows show the same image: the first row of each, and which of these every row shows."""
        if name != "image" or self.rows == "image":
            return None
        counts = torch.from_numpy(self._counts)
        return counts.cumsum(0) - counts, self.row_images

    def corpus(self, name: str) -> list[str]:
        """Return every caption that a row can show, each once."""
        return list(dict.fromkeys(text for texts in self._texts for text in texts))

    @property
    def paths(self) -> list[str]:
        """The path of every row's image."""
        return [str(self.base / self.files[image]) for image in self.row_images.tolist()]

    def keys(self) -> Tensor:
        """Return digests of every row's image (and caption, where that is a row) and of the image's content."""
        images = self.row_images.tolist()
        names = [self.files[image] for image in images]
        if self.rows != "image":
            texts = (self._texts[image][k] for image, k in zip(images, self._row_captions.tolist(), strict=True))
            names = [f"{name}\0{text}" for name, text in zip(names, texts, strict=True)]
        return row_keys(names, (self.pictures.digests[image] for image in images))

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the images' names and content, of all captions, and of what makes a row."""
        digest = hashlib.blake2b(f"{self.rows} {self.image_size} {self.decode}".encode(), digest_size=8)
        for file, content, texts in zip(self.files, self.pictures.digests, self._texts, strict=True):
            digest.update("\0".join((file, content, *texts, "")).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def describe(self) -> list[str]:
        """Say how many images and captions were found, what a row is, and what was left out."""
        if "text" not in self.modalities:
            return super().describe()
        low, high = int(self._counts.min()), int(self._counts.max())
        each = f"{low}" if low == high else f"{low} to {high}"
        total = int(self._counts.sum())
        lines = [
            f"{len(self.files):,} images with {total:,} captions ({each} an image) in {self.name}, decoded to "
            f"{self.decode}, views of {self.image_size}",
            {
                "image": "a row is an image, and one of its captions is drawn in every epoch",
                "caption": "a row is a caption; those of one image are one sample",
                "separate": "a row is a caption and a sample of its own: those of one image are each other's negatives",
            }[self.rows],
        ]
        return lines + self._closing_lines()

    def _which(self, rows: NDArray[np.int64], draw: tuple[int, ...] | None) -> NDArray[np.int64]:
        """Return which caption each of these rows shows, (b,)."""
        if self.rows != "image":
            return self._row_captions[rows]
        if draw is None:
            return np.zeros(len(rows), np.int64)
        return choices(draw, rows, self._counts[rows])


def _usable(name: str, texts: Sequence[str], longest: int, left_out: list[tuple[str, str]]) -> list[str]:
    """Return the captions that can be used, and note the others."""
    good = []
    for text in (" ".join(text.split()) for text in texts):
        if not text:
            left_out.append((name, "empty caption"))
        elif len(text) > longest:
            left_out.append((name, f"caption of more than {longest:,} characters"))
        else:
            good.append(text)
    return good


def choices(draw: tuple[int, ...], rows: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw one of ``counts`` for each row, from the numbers ``draw`` and the row alone; all (b,), uniform.

    The row is mixed into a digest of ``draw`` by the finaliser of splitmix64, whose upper 32 bits are then scaled.

    Example:
        >>> choices((0, 3), np.array([7, 8]), np.array([5, 5])).shape
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
