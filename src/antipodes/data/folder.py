"""A folder of images (or a zip or tar file of one), with or without class subfolders, and which files lie below it."""

from __future__ import annotations

import os
import re
import stat
import warnings
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from antipodes.data.archives import is_archive, unpacked
from antipodes.data.caption_tables import plain_name
from antipodes.data.dataset import Classes, DataError, Split, check_split, choose_classes, limited
from antipodes.data.endings import EXTENSIONS
from antipodes.data.image_files import Decoding, ImageFiles
from antipodes.data.image_opening import Source
from antipodes.plain_text import printable


class FolderListing(NamedTuple):
    """What lies below a folder.

    ``files`` are the image files relative to it, in natural order, ``skipped`` the (path, reason) of what looks like
    one and is none, and of subfolders that cannot be read, and ``others`` counts files of other kinds.
    """

    files: list[str]
    skipped: list[tuple[str, str]]
    others: int


def list_images(root: Path) -> FolderListing:
    """Return the image files below a folder; hidden ones are passed over."""
    files, skipped, others = [], [], 0

    def unreadable(error: OSError) -> None:
        folder = os.path.relpath(os.fsdecode(error.filename or "?"), root)
        skipped.append((folder, f"folder that cannot be read: {error.strerror}"))

    for folder, subfolders, names in os.walk(root, onerror=unreadable):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        inside = Path(os.path.relpath(folder, root)).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        for name in names:
            if name.startswith("."):
                continue
            if os.path.splitext(name)[1].lower() not in EXTENSIONS:
                others += 1
                continue
            if problem := _not_a_file(os.path.join(folder, name)):
                skipped.append((prefix + name, problem))
            else:
                files.append(prefix + name)
    return FolderListing(sorted(files, key=natural), sorted(skipped), others)


class FilesByName:
    """Files below a folder, found by the names that tables give them.

    Args:
        files: relative to the folder.
        root: the folder.
    """

    def __init__(self, files: list[str], root: Path) -> None:
        self.files, self.root = frozenset(files), root
        self._by_last: dict[str, list[str]] = {}
        for file in files:
            self._by_last.setdefault(last_name(file), []).append(file)

    def find(self, name: str, below: str = "") -> str | None:
        """Return the file that a table names, relative to the folder where it lies below it; None if there is none.

        A name without a folder is that of the first such file anywhere; one with a folder is a whole path, from the
        folder or from above it, or the end of exactly one path. A table that gives a whole path may name any file.

        Args:
            name: as the table writes it.
            below: the subfolder from which the table counts.
        """
        wanted = plain_name(name)
        if os.path.isabs(wanted) and os.path.isfile(wanted):
            inside = os.path.relpath(wanted, self.root)
            return inside if inside in self.files else wanted
        prefix = f"{below}/" if below else ""
        if prefix + wanted in self.files:
            return prefix + wanted
        alike = [file for file in self._by_last.get(last_name(wanted), []) if file.startswith(prefix)]
        if "/" not in wanted:
            return alike[0] if alike else None
        _, own, rest = f"/{wanted}".rpartition(f"/{self.root.name}/")
        if own and rest in self.files:  # a path from above the folder, moved or not
            return rest
        ends = [file for file in alike if file.endswith(f"/{wanted}")]
        return ends[0] if len(ends) == 1 else None


def last_name(path: str) -> str:
    """Return the last part of a path as tables write it."""
    return path.rpartition("/")[2]


def natural(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that reads runs of digits as numbers; the text itself decides between 01 and 1."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in parts], text


def _not_a_file(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return error.strerror or "cannot be read"
    return None if stat.S_ISREG(mode) else "not a plain file"


_HELD_OUT = ("test", "val", "validation")


class Folder(ImageFiles):
    """All images below a folder, in natural order (img2 before img10) of their paths.

    - ``train`` next to ``test``, ``val`` or ``validation`` (the first that exists) are the splits. Without them the
      whole folder is the train split and there is no test split.
    - Two or more subfolders with images and no image next to them are classes, in natural order, at any depth.
      Otherwise there are no labels.
    - Hidden files and other files than images are passed over. What cannot be read is left out with one warning, and
      listed in ``skipped``.

    Args:
        path: the folder, or a zip or tar file of it, which is unpacked once into the user's cache folder.
        split: "train" or "test".
        size: side of the views that are made of the images. None is 64, or less where the images themselves are
            smaller, but at least 32.
        decode: side of the decoded images, from which the views are cut: the shorter side is scaled to it and the
            centre cropped. None is 8/7 of ``size`` (256 for 224), but no more than the images have, nor less than
            ``size``.
        limit: look at only this many files, as described at ``limited``; damaged ones among them are left out.
        labels: "folders" makes classes of subfolders, "none" makes no labels.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        strict: refuse the folder if an image is damaged.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if the folder or split is missing, has no readable image, or ``strict`` and one is damaged.
    """

    def __init__(
        self,
        path: str,
        split: Split = "train",
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        labels: Literal["folders", "none"] = "folders",
        classes: Classes = None,
        strict: bool = False,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        check_split(split)
        if labels not in ("folders", "none"):
            raise ValueError(f'labels must be "folders" or "none", got {labels!r}')
        root = open_folder(path)
        self.path, self.split = path, split
        self.name = printable(Path(path).expanduser().resolve().name)
        splits = splits_of(root)
        if split not in splits:
            raise DataError(f"{path} has no {split} split: it needs subfolders train and {' or '.join(_HELD_OUT)}")
        base = splits[split]
        listing = list_images(base)
        if not listing.files:
            raise DataError(f"{base} holds no images (png, jpg, ...): give a folder that does")
        names = self._class_names(splits, base, listing.files) if labels == "folders" else []
        files, numbers = listing.files, [names.index(file.partition("/")[0]) if names else -1 for file in listing.files]
        if classes is not None:
            keep, numbers, names = choose_classes(numbers, names, classes, path)
            files = [files[i] for i in keep]
        if (kept := limited(len(files), limit)) is not None:
            files, numbers = [files[i] for i in kept.tolist()], [numbers[i] for i in kept.tolist()]

        self.skipped, self._others = listing.skipped, listing.others
        self._options = {"labels": labels, "classes": classes, "strict": strict}
        decoding = Decoding(size, decode, cache, workers, memory_limit)
        readable = self._decode(base, files, [Source(os.path.join(base, file)) for file in files], decoding, "")
        self._check_skipped(path, strict)
        if self.skipped:
            some = ", ".join(printable(name) for name, _ in self.skipped[:5])
            warnings.warn(
                f"left out {len(self.skipped)} damaged of {len(files)} images in {path}: {some}"
                f"{', ...' if len(self.skipped) > 5 else ''}",
                stacklevel=2,
            )
        if names:
            self.classes = tuple(names)
            self.labels = torch.tensor([numbers[i] for i in readable])

    def _class_names(self, splits: dict[str, Path], base: Path, files: list[str]) -> list[str]:
        """The classes of both splits, so that a label means the same in each; none for a flat folder."""
        if not _first_folders(files):
            return []
        others = (list_images(folder).files for folder in splits.values() if folder != base)
        names = _first_folders(files).union(*(_first_folders(each) for each in others))
        return sorted(names, key=natural) if len(names) > 1 else []

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the files' names and content and the size they are scaled to."""
        return self.pictures.fingerprint(self.files, self.image_size)

    def held_out(self, limit: int | None = None) -> Folder | None:
        """Return the test split, None when the folder has none or this is it."""
        if self.split == "test" or "test" not in splits_of(open_folder(self.path)):
            return None
        reopened: Folder = self._reopened("test", limit, path=self.path, **self._options)
        return reopened

    def describe(self) -> list[str]:
        """Say how many images were found, of which size, what became of the folders, and what was left out."""
        sides = self.pictures.sizes
        low, high = sides.min(0).values.tolist(), sides.max(0).values.tolist()
        sizes = f"{low[0]} x {low[1]}" if low == high else f"{low[0]} x {low[1]} to {high[0]} x {high[1]}"
        lines = [
            f"{len(self):,} images of {sizes} pixels in {self.path}, "
            f"decoded to {self.decode}, views of {self.image_size}"
        ]
        if self.classes is not None:
            some = ", ".join(printable(name) for name in self.classes[:5]) + (", ..." if len(self.classes) > 5 else "")
            lines.append(
                f"{len(self.classes):,} classes, one for every subfolder ({some}): --data.labels none turns that off"
            )
        else:
            lines.append("no labels")
        if self._others:
            lines.append(f"passed over {self._others:,} other files")
        return lines + self._closing_lines()


def open_folder(path: str) -> Path:
    """Return the folder at a path, that of a zip or tar file after unpacking it.

    Raises:
        DataError: if there is none.
    """
    place = Path(path).expanduser()
    if place.is_file() and is_archive(place):
        return unpacked(place)
    if not place.is_dir():
        raise DataError(f"{path} is not a folder: give the path of a folder of images")
    return place


def splits_of(root: Path) -> dict[str, Path]:
    """Return the folder of each split there is."""
    held_out = next((root / name for name in _HELD_OUT if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or (held_out is None and sum(entry.is_dir() for entry in root.iterdir()) > 1):
        return {"train": root}  # "train" among other classes is a class
    return {"train": root / "train"} | ({} if held_out is None else {"test": held_out})


def _first_folders(files: list[str]) -> set[str]:
    """Return the names of the first subfolders; none when a file lies next to them."""
    names = {file.partition("/")[0] for file in files if "/" in file}
    return set() if any("/" not in file for file in files) else names
