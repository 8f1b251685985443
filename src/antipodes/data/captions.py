"""A folder of images with a table of captions, such as Flickr8k and COCO in their usual layouts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from antipodes.data.archives import is_archive, unpacked
from antipodes.data.caption_tables import CaptionSplit, find_tables, read_captions
from antipodes.data.folder import FilesByName, list_images
from antipodes.data.image_files import Decoding, ImageFiles, Rows
from antipodes.data.image_opening import Source
from antipodes.files import DataError
from antipodes.plain_text import printable


class Captions(ImageFiles):
    """The images of a table of captions, in the order in which the table names them.

    The table is found by itself (see ``caption_tables`` for the layouts), and the images anywhere below the folder, by
    the path or the name that the table gives; one file is one image, however its rows spell it. A missing or damaged
    image, an empty caption and one that is too long are left out and listed in ``skipped``.

    Args:
        path: the folder, a zip or tar file of it (unpacked once into the user's cache folder), or the table itself.
        split: "train", "val" or "test". Without splits everything is "train".
        rows: "image" makes a row of every image, and one of its captions is drawn in every epoch; "caption" makes a row
            of every caption, and those of one image are one sample; "separate" does, too, and every row is a sample, as
            where it is not known which captions share an image (the policy `known` then does, and the test split).
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many images, as described at ``limited``.
        longest: characters that a caption may have.
        strict: refuse the data if anything has to be left out.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if there is no table, it lacks a column, the split is missing, or nothing can be used.
    """

    def __init__(
        self,
        path: str,
        split: CaptionSplit = "train",
        rows: Rows = "image",
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        longest: int = 2_000,
        strict: bool = False,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        if split not in ("train", "val", "test"):
            raise ValueError(f'split must be "train", "val" or "test", got {split!r}')
        root, tables = _find(path)
        tables_say = read_captions(tables, root)
        everything = tables_say.captions
        self.unused_columns = tables_say.unused
        self.path, self.split = path, split
        self.name = printable(Path(path).expanduser().resolve().name)
        self._splits = {caption.split or "train" for caption in everything}
        captions = [caption for caption in everything if (caption.split or "train") == split]
        if not captions:
            raise DataError(f"{path} has no {split} split, only {', '.join(sorted(self._splits))}")

        listing = list_images(root)
        files = FilesByName(listing.files, root)
        named = {(each.image, each.folder) for each in (*everything, *tables_say.unlisted)}
        file_of = {(name, folder): files.find(name, folder) for name, folder in named}
        texts: dict[str, list[str]] = {}  # by file, however a table spells its name
        missing: dict[str, None] = {}
        for caption in captions:
            if (file := file_of[caption.image, caption.folder]) is not None:
                texts.setdefault(file, []).append(caption.text)
            else:
                missing[caption.image or "(no name)"] = None
        listed = {file_of[caption.image, caption.folder] for caption in everything}
        self._unlisted = len(files.files & set(file_of.values()) - listed)
        self._uncaptioned = len(files.files - set(file_of.values()))
        self.skipped = [*((image, "missing image") for image in missing), *tables_say.skipped, *listing.skipped]
        # an evaluation knows which captions belong to one image
        self._options: dict[str, Any] = {"path": path, "longest": longest, "strict": strict}
        self._options["rows"] = "caption" if rows == "separate" else rows
        self._open_captioned(
            root,
            list(texts),
            [Source(os.path.join(root, file)) for file in texts],
            list(texts.values()),
            rows=rows,
            limit=limit,
            longest=longest,
            decoding=Decoding(size, decode, cache, workers, memory_limit),
        )
        self._check_skipped(printable(" and ".join(map(str, tables))), strict)

    def held_out(self, limit: int | None = None) -> Captions | None:
        """Return the test split, or the validation split where there is no test; None when neither or this is it."""
        return self._other("test", limit) or self._other("val", limit)

    def validation(self, limit: int | None = None) -> Captions | None:
        """Return the validation split where there is also a test split."""
        return self._other("val", limit) if "test" in self._splits else None

    def _other(self, split: Literal["test", "val"], limit: int | None) -> Captions | None:
        """Return another split than that of training; None where there is none, or this is no training split."""
        if self.split != "train" or split not in self._splits:
            return None
        reopened: Captions = self._reopened(split, limit, **self._options)
        return reopened

    def describe(self) -> list[str]:
        """Say what was found, which splits there are, and what was left out."""
        first, *others = super().describe()
        lines = [first, f"split {self.split} of {', '.join(sorted(self._splits))}", *others]
        if self._unlisted:
            lines.append(f"passed over {self._unlisted:,} images with captions that are in no list of a split")
        return [*lines, f"passed over {self._uncaptioned:,} images without a caption"] if self._uncaptioned else lines


def _find(path: str) -> tuple[Path, list[Path]]:
    """Return the folder of the images and the tables of captions."""
    place = Path(path).expanduser()
    if place.is_file() and not is_archive(place):
        return place.parent, [place]
    if place.is_file():
        place = unpacked(place)
    if not place.is_dir():
        raise DataError(f"{path} does not exist: give a folder with a table of captions, a zip of it, or the table")
    if not (tables := find_tables(place)):
        raise DataError(f"{path} has no table of captions: add captions.csv with the columns image and caption")
    return place, tables
