"""Datasets whose images are files, or members of tar files: what folders, tables, captions and shards have in common.

A source lists names, where the bytes are, and labels or captions. Here the images are decoded through the cache, what
cannot be read is left out with its reason, and the others become the rows of the table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from antipodes.data.columns import CaptionColumn, Column, FileColumn
from antipodes.data.dataset import Classes, Samples, choose_classes, limited
from antipodes.data.describe import group_equal
from antipodes.data.image_opening import Source
from antipodes.data.pictures import Pictures, decode_all, decode_size, row_keys
from antipodes.files import DataError
from antipodes.plain_text import printable

Rows = Literal["image", "caption", "separate"]
_ROWS: dict[Rows, str] = {
    "image": "a row is an image, and one of its captions is drawn in every epoch",
    "caption": "a row is a caption; those of one image are one sample",
    "separate": "a row is a caption and a sample of its own: those of one image are each other's negatives",
}


@dataclass(frozen=True)
class Decoding:
    """How images are decoded and kept.

    Args:
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.
    """

    size: int | None
    decode: int | None
    cache: bool
    workers: int | None
    memory_limit: int


@dataclass(frozen=True)
class ListedImages:
    """The images of a split: their paths, their classes by number, the classes' names.

    Where an image may have several classes, its labels are one number for every class: 1, 0, or -1 for not counted.
    """

    files: list[Path]
    labels: list[int] | list[list[int]]
    classes: list[str]


class ImageFiles(Samples):
    """Rows that show image files; made by ``Folder``, ``LabelTable``, ``Captions``, ``Tars`` and the named datasets.

    Attributes:
        split: which part of the data this is.
        base: the folder or archive in which all files are.
        files: the names of the images within it.
        pictures: their pixels and digests.
        decode: side H = W of the decoded images, from which views are cut.
        rows: "image" where a row is an image, "caption" or "separate" where it is a caption of one.
    """

    split: str
    base: Path
    files: tuple[str, ...]
    pictures: Pictures
    decode: int
    rows: Rows = "image"
    knows_duplicates = True
    _in_archive = False
    _captions: Sequence[Sequence[str]] | None = None
    _row_images: Tensor | None = None
    _decoding: Decoding

    def _decode(
        self, base: Path, names: Sequence[str], sources: Sequence[Source], decoding: Decoding, part: str
    ) -> list[int]:
        """Decode images and make a row of every one that can be read; the others go to ``skipped``.

        Returns:
            The positions of the readable ones in the list.
        """
        self.image_size, self.decode = decode_size(sources, decoding.size, decoding.decode)
        self._decoding = replace(decoding, size=self.image_size, decode=self.decode)
        pictures = decode_all(
            base,
            names,
            sources,
            self.decode,
            part=part,
            workers=decoding.workers,
            memory_limit=decoding.memory_limit,
            cache=decoding.cache,
        )
        self.base, self.pictures, self.in_memory = base, pictures, pictures.in_memory
        self.files = tuple(names[i] for i in pictures.readable)
        self.skipped = [*self.skipped, *((names[i], why) for i, why in pictures.problems.items())]
        self._fill({"image": FileColumn(pictures)})
        return pictures.readable

    def _open_listed(self, listed: ListedImages, limit: int | None, classes: Classes, decoding: Decoding) -> None:
        """Choose classes and images of a list, and decode them."""
        files, labels, names = listed.files, torch.tensor(listed.labels), listed.classes
        if classes is not None:
            if labels.ndim == 2:
                raise DataError(f"the images of {self.name} have several labels each, so no classes can be chosen")
            keep, numbers, names = choose_classes(labels.tolist(), names, classes, self.name)
            files, labels = [files[i] for i in keep], torch.tensor(numbers)
        if (kept := limited(len(files), limit)) is not None:
            files, labels = [files[i] for i in kept.tolist()], labels[kept]
        if not files:
            raise DataError(f"{self.name} lists no images: get it again")
        base = Path(os.path.commonpath([file.parent for file in files]))
        shown = [os.path.relpath(file, base) for file in files]
        sources = [Source(os.path.join(base, name)) for name in shown]
        self.labels = labels[self._decode(base, shown, sources, decoding, self.split)]
        self.classes = tuple(names)
        if labels.ndim == 2:
            self.metric = "mAP"

    def _open_captioned(
        self,
        base: Path,
        names: Sequence[str],
        sources: Sequence[Source],
        captions: Sequence[Sequence[str]],
        *,
        rows: Rows,
        limit: int | None,
        longest: int,
        decoding: Decoding,
        has_texts: bool = True,
    ) -> list[int]:
        """Choose images that have a caption, decode them, and number the rows: of images, or of captions.

        Returns:
            The positions, in the list, of the images that are kept.
        """
        if rows not in get_args(Rows):
            raise ValueError(f"rows must be one of {', '.join(get_args(Rows))}, got {rows!r}")
        if longest < 1:
            raise ValueError(f"longest must be at least 1, got {longest}: it is the characters a caption may have")
        keep = limited(len(names), limit)
        left_out = list(self.skipped)
        chosen = range(len(names)) if keep is None else keep.tolist()
        usable = [(i, good) for i in chosen if (good := _usable(names[i], captions[i], longest, left_out))]
        self.rows, self.skipped = rows, left_out
        kept = [
            usable[k]
            for k in self._decode(
                base, [names[i] for i, _ in usable], [sources[i] for i, _ in usable], decoding, self.split
            )
        ]
        self._captions = [good for _, good in kept]
        numbers = None
        if rows != "image":
            counts = [len(several) for several in self._captions]
            self._row_images = torch.arange(len(kept)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))
            numbers = np.concatenate([np.arange(count) for count in counts] or [np.arange(0)])
        if rows == "caption":
            self.samples = self._row_images
        columns: dict[str, Column] = {"image": FileColumn(self.pictures, self._row_images)}
        if has_texts:
            columns["text"] = CaptionColumn(self._captions, self._row_images, numbers)
        self._row_captions = numbers
        self._fill(columns)
        return [i for i, _ in kept]

    def _check_skipped(self, where: str, strict: bool = False) -> None:
        """Refuse the data if nothing is left of it, or if it is ``strict`` and something was left out."""
        count = len(self.skipped)
        first = f"the first is {printable(self.skipped[0][0])} ({self.skipped[0][1]})" if count else "none is there"
        if strict and count:
            raise DataError(f"{count} image(s) or row(s) of {where} cannot be used, {first}: repair or remove them")
        if not len(self):
            raise DataError(f"{where} has no image that can be used: of {count} that cannot, {first}")

    def _reopened(self, split: str, limit: int | None, **options: Any) -> Any:
        """Open another split as this one was opened, with images of the same sizes."""
        source: Callable[..., Any] = type(self)
        return source(split=split, limit=limit, **options, **asdict(self._decoding))

    @property
    def has_files(self) -> bool:
        """Whether every row is an image file of its own, with its path in ``paths``."""
        return self.rows == "image" and not self._in_archive

    @property
    def paths(self) -> list[str]:
        """The path of every row's image; of a member of a tar file, the names of both."""
        images = range(len(self.files)) if self._row_images is None else self._row_images.tolist()
        return [self.files[i] if self._in_archive else os.path.join(self.base, self.files[i]) for i in images]

    def image_ids(self, rows: Tensor) -> Tensor:
        """Return the images that these rows show."""
        return super().image_ids(rows) if self._row_images is None else self._row_images[rows]

    def repeated(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return where rows show the same image: the first row of each, and which of these every row shows."""
        if name != "image" or self._row_images is None:
            return None
        counts = torch.bincount(self._row_images)
        return counts.cumsum(0) - counts, self._row_images

    def keys(self) -> Tensor:
        """Return digests of every row's image (and caption, where that is a row) and of the image's content."""
        if self._row_images is None or self._captions is None or self._row_captions is None:
            return row_keys(self.files, self.pictures.digests)
        images = self._row_images.tolist()
        captions = [self._captions[i][k] for i, k in zip(images, self._row_captions.tolist(), strict=True)]
        names = (f"{self.files[i]}\0{caption}" for i, caption in zip(images, captions, strict=True))
        return row_keys(names, (self.pictures.digests[i] for i in images))

    @cached_property
    def _duplicates(self) -> Tensor:
        """The groups of equal files or pixels; where captions are samples, those of one image are duplicates, too."""
        digests = self.pictures.digests, self.pictures.pixel_digests
        if self._row_images is not None and self.samples is None:
            return group_equal(*([column[i] for i in self._row_images.tolist()] for column in digests))
        groups = group_equal(*digests)
        return groups if self._row_images is None else groups[self._row_images]

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the files' names and content, of labels or captions, and of how rows are made of them."""
        if self._captions is None:
            assert self.labels is not None  # a list always has them
            return self.pictures.fingerprint(self.files, self.name, self.image_size, self.labels.tolist())
        digest = hashlib.blake2b(f"{self.rows} {self.image_size} {self.decode}".encode(), digest_size=8)
        for file, content, captions in zip(self.files, self.pictures.digests, self._captions, strict=True):
            digest.update("\0".join((file, content, *captions, "")).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def describe(self) -> list[str]:
        """Say how many images and captions were found, what a row is, and what was left out."""
        if "text" not in self.columns or self._captions is None:
            return super().describe()
        counts = [len(several) for several in self._captions]
        each = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        return [
            f"{len(self.files):,} images with {sum(counts):,} captions ({each} an image) in {self.name}, decoded to "
            f"{self.decode}, views of {self.image_size}",
            _ROWS[self.rows],
            *self._closing_lines(),
        ]


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
