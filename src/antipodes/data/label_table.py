"""Images whose labels are in a table: one a row, or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from antipodes.data.archives import is_archive, unpacked
from antipodes.data.caption_tables import IMAGE_COLUMNS
from antipodes.data.dataset import Classes, DataError, Split, check_split
from antipodes.data.folder import FilesByName, list_images, natural
from antipodes.data.image_files import Decoding, ImageFiles, ListedImages
from antipodes.data.on_disk import LABEL_COLUMNS, LABEL_TABLES
from antipodes.plain_text import printable
from antipodes.tables import column_values, find_column, has_column, read_table, unused_columns

_SPLITS: dict[str, Split] = {"train": "train", "trainval": "train", "test": "test", "val": "test", "validation": "test"}


class LabelTable(ImageFiles):
    """The images that a table names, in its order, with the labels that it gives.

    The table has a column of images (``image``, ``file``, ``path``, ...), one of labels (``label``, ``class``,
    ``labels``, ``tags``, ...) and optionally ``split``. Several labels of an image are a list, or a text with ``;``
    between them: then labels are (n, classes), and classifiers are judged by mean average precision.

    Args:
        path: the table, a folder with ``labels.csv`` (.tsv, .jsonl, .json, .parquet) in it, or an archive of one.
        split: "train" or "test". Without a column ``split`` everything is "train".
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many images, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        strict: refuse the data if anything has to be left out.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if the table cannot be read, lacks a column, or names no image that is there.
    """

    def __init__(
        self,
        path: str,
        split: Split = "train",
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        classes: Classes = None,
        strict: bool = False,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        check_split(split)
        self.path, self.split = path, split
        self.name = printable(Path(path).expanduser().resolve().name)
        table = _find(path)
        columns = read_table(table)
        image = find_column(columns, IMAGE_COLUMNS, table, "images")
        label = find_column(columns, LABEL_COLUMNS, table, "labels")
        part = find_column(columns, ("split",), table, "splits") if has_column(columns, ("split",)) else None
        self.unused_columns = unused_columns(columns, (image, label, part))
        images = [str(name or "") for name in column_values(columns, image)]
        written = column_values(columns, part) if part else ["train"] * len(images)
        splits = [_SPLITS.get(str(each).strip().lower(), "") for each in written]
        self._splits = set(splits)
        everything = [_names(value) for value in column_values(columns, label)]
        names = sorted({name for several in everything for name in several}, key=natural)
        number = {name: i for i, name in enumerate(names)}
        files = FilesByName(list_images(table.parent).files, table.parent)
        missing: list[tuple[str, str]] = []
        chosen: list[tuple[Path, list[int]]] = []
        for wanted, several, its_split in zip(images, everything, splits, strict=True):
            if its_split == split:
                found = files.find(wanted)
                if found is None or not several:
                    missing.append((wanted or "(no name)", "no label" if found else "missing image"))
                else:
                    chosen.append((table.parent / found, [number[name] for name in several]))
        if not chosen:
            raise DataError(f"{table} names no image with a label in its {split} split that is below {table.parent}")
        several_each = any(len(several) > 1 for several in everything)
        listed = ListedImages(
            [file for file, _ in chosen],
            [[int(n in numbers) for n in range(len(names))] for _, numbers in chosen]
            if several_each
            else [numbers[0] for _, numbers in chosen],
            names,
        )
        self.skipped, self._options = missing, {"classes": classes, "strict": strict}
        self._open_listed(listed, limit, classes, Decoding(size, decode, cache, workers, memory_limit))
        self._check_skipped(path, strict)

    def held_out(self, limit: int | None = None) -> LabelTable | None:
        """Return the test split, None when there is none or this is it."""
        if self.split == "test" or "test" not in self._splits:
            return None
        reopened: LabelTable = self._reopened("test", limit, path=self.path, **self._options)
        return reopened


def _find(path: str) -> Path:
    """Return the table at a path."""
    place = Path(path).expanduser()
    if place.is_file() and not is_archive(place):
        return place
    folder = unpacked(place) if place.is_file() else place
    tables = [folder / name for name in LABEL_TABLES if (folder / name).is_file()]
    if not tables:
        raise DataError(f"{path} has no table of labels: add labels.csv with the columns image and label")
    return tables[0]


def _names(value: Any) -> list[str]:
    """The labels of a row, without empty ones."""
    several = value if isinstance(value, (list, tuple)) else str("" if value is None else value).split(";")
    return [name for each in several if (name := str(each).strip())]
