"""Texts, one or a pair of them in every row: a text file with one a line, or a table."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antipodes.data.classes import Classes, choose_classes
from antipodes.data.dataset import DataError, Raw, Samples, Split, _check_ids, check_split, limited
from antipodes.data.describe import printable
from antipodes.data.keys import row_keys
from antipodes.data.listing import natural
from antipodes.data.on_disk import LABEL_COLUMNS
from antipodes.data.saved_datasets import is_saved_dataset, is_saved_dataset_dict, read_saved_dataset
from antipodes.tables import (
    TABLES,
    Columns,
    column_values,
    count_rows,
    find_column,
    has_column,
    read_table,
    unused_columns,
)

PAIRS = (
    ("query", "document"),
    ("anchor", "positive"),
    ("question", "answer"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("source", "target"),
)
"""Columns that make a pair; the first is always the input `query`, the second `document`."""

_TEXT = ("text", "sentence", "content", "document", "title")
_SAMPLE = ("sample", "id", "group")


class Texts(Samples):
    """Rows of texts, as input `text`, or of pairs of texts, as inputs `query` and `document`.

    - A ``.txt`` file has one text a line.
    - A table (csv, tsv, jsonl, json, parquet) has a column ``text``, or two columns of a pair (see ``PAIRS``), and
      optionally ``label`` and ``group``: rows of one group are never negatives of each other.
    - All other columns are not used, and ``describe`` names them: rows go to no split by a column, and a column of
      negatives is not read.
    - In a folder, ``train.*`` and ``test.*`` are the splits; a folder that ``save_to_disk`` of Hugging Face datasets
      wrote is read as it is.

    Empty texts and those that are too long are left out and listed in ``skipped``.

    Args:
        path: the file or the folder.
        split: "train" or "test".
        limit: keep only this many rows, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        longest: characters that a text may have.
        columns: the column of the texts, or the two of a pair, where they have other names.
        label: the column of the labels, where it has another name.

    Raises:
        ValueError: if the file is missing, cannot be read, has no such column, or no text that can be used.
    """

    in_memory = True

    def __init__(
        self,
        path: str,
        split: Split = "train",
        limit: int | None = None,
        classes: Classes = None,
        longest: int = 100_000,
        columns: Sequence[str] | None = None,
        label: str | None = None,
    ) -> None:
        check_split(split)
        self._named: dict[str, Any] = {"columns": columns, "label": label}
        self.path, self.split, self._classes, self._longest = path, split, classes, longest
        file = _files(path).get(split)
        if file is None:
            raise DataError(f"{path} has no {split} split: give a text file, a table, or a folder with train.* in it")
        table = {"text": _lines(file)} if file.suffix == ".txt" else _read(file)
        inputs = _inputs(table, file) if columns is None else _named_inputs(table, file, columns)
        count = count_rows(table)
        self.name = printable(Path(path).expanduser().resolve().stem)
        self.modalities = dict.fromkeys(inputs, "text")
        texts = {name: [_text(value) for value in column_values(table, column)] for name, column in inputs.items()}
        problems = {
            i: problem for i in range(count) if (problem := _problem([texts[name][i] for name in texts], longest))
        }
        self.skipped = [(f"{file.name} row {i + 1}", problem) for i, problem in problems.items()]
        keep = [i for i in range(count) if i not in problems]
        if not keep:
            raise DataError(f"{file} holds no text that can be used: it needs one in every row")
        label_columns = LABEL_COLUMNS if label is None else (label,)
        labels, names = _labels(table, keep, file, label_columns)
        groups = _groups(table, file)
        read = [find_column(table, each, file, "") for each in (label_columns, _SAMPLE) if has_column(table, each)]
        self.unused_columns = unused_columns(table, [*inputs.values(), *read])
        if classes is not None:
            chosen, labels, names = choose_classes(labels, names, classes, path)
            keep = [keep[i] for i in chosen]
        if (some := limited(len(keep), limit)) is not None:
            keep, labels = [keep[i] for i in some.tolist()], [labels[i] for i in some.tolist()] if names else []
        self._texts = {name: [column[i] for i in keep] for name, column in texts.items()}
        if names:
            self.labels, self.classes = torch.tensor(labels), tuple(names)
        if groups is not None:
            self.samples = groups[keep]

    def __len__(self) -> int:
        return len(next(iter(self._texts.values())))

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return the texts of these rows by input, a list of b strings each."""
        _check_ids(rows, len(self))
        return {name: [column[i] for i in rows.tolist()] for name, column in self._texts.items()}

    def keys(self) -> Tensor:
        """Return digests of every row's texts, which are its name and its content."""
        rows = ["\0".join(texts) for texts in zip(*self._texts.values(), strict=True)]
        return row_keys(rows, rows)

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of all texts, labels and groups."""
        digest = hashlib.blake2b(" ".join(self._texts).encode(), digest_size=8)
        for column in self._texts.values():
            digest.update("\0".join(column).encode(errors="surrogateescape"))
        for numbers in (self.labels, self.samples):
            digest.update(b"none" if numbers is None else numbers.numpy().tobytes())
        return digest.hexdigest()

    def held_out(self, limit: int | None = None) -> Texts | None:
        """Return the test split, None when there is none or this is it."""
        if self.split == "test" or "test" not in _files(self.path):
            return None
        return Texts(self.path, "test", limit, self._classes, self._longest, **self._named)


def _files(path: str) -> dict[str, Path]:
    """Return the file of each split."""
    place = Path(path).expanduser()
    if place.is_file() or is_saved_dataset(place):
        return {"train": place}
    if is_saved_dataset_dict(place):
        names = {"train": ("train",), "test": ("test", "validation", "val", "dev")}
        saved = {split: [place / name for name in some if (place / name).is_dir()] for split, some in names.items()}
        return {split: folders[0] for split, folders in saved.items() if folders}
    found: dict[str, Path] = {}
    for split, stems in (("train", ("train",)), ("test", ("test", "val", "validation", "dev"))):
        files = [place / f"{stem}{suffix}" for stem in stems for suffix in (*TABLES, ".txt")]
        if existing := [file for file in files if file.is_file()]:
            found[split] = existing[0]
    return found


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text ({error}): save it in UTF-8") from error


def _inputs(table: Columns, file: Path) -> dict[str, str]:
    """Return the column of each input."""
    for first, second in PAIRS:
        if has_column(table, (first,)) and has_column(table, (second,)):
            return {
                "query": find_column(table, (first,), file, "texts"),
                "document": find_column(table, (second,), file, "texts"),
            }
    return {"text": find_column(table, _TEXT, file, "texts, nor two of a pair such as query and document")}


def _named_inputs(table: Columns, file: Path, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that the caller names: one of texts, or two of a pair."""
    listed = [columns] if isinstance(columns, str) else list(columns)
    if len(listed) not in (1, 2):
        raise DataError(f"columns must name one column of texts or two of a pair, got {len(listed)}")
    names = ("text",) if len(listed) == 1 else ("query", "document")
    return {name: find_column(table, (column,), file, "texts") for name, column in zip(names, listed, strict=True)}


def _read(file: Path) -> Columns:
    return read_saved_dataset(file) if file.is_dir() else read_table(file)


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _problem(texts: list[str], longest: int) -> str | None:
    if not all(texts):
        return "empty text"
    return f"text of more than {longest:,} characters" if max(map(len, texts)) > longest else None


def _labels(table: Columns, keep: list[int], file: Path, columns: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the label of every row that is kept and the names of the labels; nothing when there is no such column."""
    if columns is LABEL_COLUMNS and not has_column(table, columns):
        return [], []
    values = [str(value) for value in column_values(table, find_column(table, columns, file, "labels"))]
    names = sorted(set(values), key=natural)
    number = {name: i for i, name in enumerate(names)}
    return [number[values[i]] for i in keep], names


def _groups(table: Columns, file: Path) -> Tensor | None:
    """Return the sample that every row shows, numbered in the order of their first rows."""
    if not has_column(table, _SAMPLE):
        return None
    values = column_values(table, find_column(table, _SAMPLE, file, "groups"))
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(str(value), len(numbers)) for value in values])
