"""The pictures that an audit or an embedding looks at: those of a folder, or of any dataset of images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.data import Folder, Samples, open_dataset
from antipodes.data.decode import upright
from antipodes.data.describe import group_equal
from antipodes.data.image_files import ImageFiles
from antipodes.data.image_opening import Source, opened_source

SIZE = 64
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Photos:
    """Pictures with names: the training split first, in the order of its rows, then the test split.

    Args:
        parts: the datasets, one after the other.
        paths: the file of every picture, or a name where there is none.
        splits: of every picture.
        are_files: whether the paths are files.
        skipped: files that cannot be read, with the reason where it is known.
    """

    parts: tuple[Samples, ...]
    paths: tuple[str, ...]
    splits: tuple[str, ...]
    are_files: bool
    skipped: tuple[tuple[str, str], ...] = field(default=())

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (n,), or None where the pictures have none."""
        if any(part.labels is None for part in self.parts):
            return None
        return torch.cat([part.labels for part in self.parts if part.labels is not None]).numpy()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the labels."""
        return self.parts[0].classes

    def training(self) -> Photos:
        """The pictures of the training split alone."""
        count = len(self.parts[0])
        return Photos(self.parts[:1], self.paths[:count], self.splits[:count], self.are_files, self.skipped)

    def pixels(self, rows: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """Small square pictures (b, 3, S, S) uint8 of some rows."""
        wanted = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        first = len(self.parts[0])
        side = self.parts[0].image_size
        pictures: Tensor | None = None
        for start, part in zip((0, first), self.parts, strict=False):
            inside = (wanted >= start) & (wanted < start + len(part))
            if not bool(inside.any()):
                continue
            fetched = part.fetch(wanted[inside] - start)
            if pictures is None:
                side = fetched.shape[-1]
                pictures = torch.zeros(len(wanted), 3, side, side, dtype=torch.uint8)
            pictures[inside] = fetched
        return torch.zeros(0, 3, side, side, dtype=torch.uint8) if pictures is None else pictures

    def image(self, row: int) -> Image.Image:
        """The whole picture where it is a file, else the small one."""
        if self.are_files:
            return read_image(self.paths[row])
        return Image.fromarray(self.pixels([row])[0].permute(1, 2, 0).numpy())

    def small(self, row: int, side: int | None) -> tuple[Image.Image, tuple[int, int]]:
        """A picture whose shorter side has at least `side` pixels, if the whole one has, and the whole one's size.

        Without a side it is the whole picture.
        """
        if not self.are_files:
            image = self.image(row)
            return image, image.size
        try:
            with opened_source(Source(self.paths[row])) as opened:
                whole = opened.size
                image = upright(opened, side).convert("RGB")
        except Exception as error:  # damaged files raise nearly anything in Pillow's decoders
            raise ValueError(f"{self.paths[row]} cannot be read as an image ({error})") from error
        is_turned = (image.width > image.height) != (whole[0] > whole[1])
        return image, whole[::-1] if is_turned else whole

    def digests(self) -> list[str] | None:
        """A digest of every file's content; None where pictures are not files."""
        if not self.are_files:
            return None
        found: list[str] = []
        for part, start in zip(self.parts, (0, len(self.parts[0])), strict=False):
            known = part.pictures.digests if isinstance(part, ImageFiles) else None
            found += known or [_file_digest(path) for path in self.paths[start : start + len(part)]]
        return found

    def contents(self) -> list[str]:
        """Digests of the files as they are now; where pictures are not files, the fingerprints of the datasets."""
        if self.are_files:
            return [_file_digest(path) for path in self.paths]
        return [part.fingerprint for part in self.parts]

    def copies(self) -> list[tuple[int, int]]:
        """Pairs of the first and every other picture with equal files or equal pixels.

        A training counts exact duplicates in the same way (`data.duplicates`), within its own split.
        """
        pictures = [part.pictures for part in self.parts if isinstance(part, ImageFiles)]
        if len(self.parts) == 1 and (pictures or not self.are_files):
            groups = self.parts[0].groups()
        elif self.are_files and len(pictures) == len(self.parts):
            files = [digest for each in pictures for digest in each.digests]
            groups = group_equal(files, [digest for each in pictures for digest in each.pixel_digests])
        elif self.are_files:  # a list, of which some may be unreadable
            groups = group_equal([_file_digest(path) for path in self.paths])
        else:
            groups = group_equal([self.pixels([row]).numpy().tobytes() for row in range(len(self))])
        firsts: dict[int, int] = {}
        rows = enumerate(groups.tolist())
        return [(first, row) for row, group in rows if group >= 0 and (first := firsts.setdefault(group, row)) != row]


def open_photos(place: str, limit: int | None = None) -> Photos:
    """Open a folder of images, or a dataset by its name or path.

    Raises:
        ValueError: if there is none, or it holds no images.
    """
    is_folder = Path(place).expanduser().is_dir()
    dataset = Folder(place, size=SIZE, limit=limit) if is_folder else open_dataset(place, **_limit(limit))
    return photos_of(dataset, place)


def photos_of(dataset: Samples, name: str | None = None) -> Photos:
    """The pictures of a dataset and of the test split that belongs to it.

    Raises:
        ValueError: if the dataset has no images.
    """
    if dataset.modalities.get("image") != "image":
        raise ValueError(f"{name or dataset.name} holds {' and '.join(dataset.modalities)}: this looks at images")
    held_out = dataset.held_out() if isinstance(dataset, Folder) else None
    parts = (dataset,) if held_out is None else (dataset, held_out)
    paths, splits, skipped = [], [], []
    for part, split in zip(parts, ("train", "test"), strict=False):
        files = part.paths if _has_files(part) else None
        paths += files or [f"{name or part.name}/{row}" for row in range(len(part))]
        splits += [split] * len(part)
        skipped += [(str(file), str(why)) for file, why in getattr(part, "skipped", ())]
    return Photos(parts, tuple(paths), tuple(splits), _has_files(dataset), tuple(skipped))


def _has_files(dataset: Samples) -> TypeGuard[ImageFiles]:
    """Whether every row is an image file of its own."""
    return isinstance(dataset, ImageFiles) and dataset.has_files


def read_image(path: str) -> Image.Image:
    """An image file as RGB, upright.

    Raises:
        ValueError: if it cannot be read.
    """
    try:
        with opened_source(Source(path)) as image:
            return upright(image).convert("RGB")
    except Exception as error:  # damaged files raise nearly anything in Pillow's decoders
        raise ValueError(f"{path} cannot be read as an image ({error})") from error


def _file_digest(path: str) -> str:
    """Digest of a file's content, of which only a part is in memory at a time."""
    digest = hashlib.blake2b(digest_size=32)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _limit(limit: int | None) -> dict[str, int]:
    return {} if limit is None else {"limit": limit}
