"""The columns of a file of groups or pairs: a table, TREC's relevance judgements, arrays, or a tensor saved by torch.

Files are read as data only: nothing in them is executed. The checksums that archives keep of their parts are compared
before anything is read, so that a damaged file is refused instead of read as other groups.
"""

from __future__ import annotations

import csv
import gzip
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.parquet import read_parquet

QUERIES = ("query-id", "query_id", "query", "user-id", "user_id", "user")
DOCUMENTS = ("corpus-id", "corpus_id", "document-id", "document_id", "document", "item-id", "item_id", "item")
"""Names of the columns that identify queries and documents; the first that a file has counts."""

COLUMNS = ("row", "group", "other", "weight", "path", *QUERIES, *DOCUMENTS, "score")
"""The columns that have a meaning."""

TREC = ("query-id", "iteration", "corpus-id", "score")
"""The four columns of TREC's relevance judgements, which have no header."""

LARGEST = np.iinfo(np.int64).max


class Table(NamedTuple):
    """The columns of a file that have a meaning, by name, and the names of all its columns."""

    columns: dict[str, np.ndarray]
    names: list[str]


def read_columns(path: Path) -> Table:
    """Read a file of groups or pairs; a saved tensor is the column `group`. Files of text may be compressed (`.gz`).

    Raises:
        ValueError: if the file is missing, is damaged, or holds objects; the sentence names it.
    """
    if not path.is_file():
        raise ValueError(f"the groups {path} do not exist: give a .parquet, .csv, .tsv, .jsonl, .npz or .pt file")
    readers = {".csv": _csv, ".npz": _arrays, ".parquet": _parquet, ".pt": _tensor, ".pth": _tensor}
    readers |= {".tsv": _tsv, ".jsonl": _jsonl, ".ndjson": _jsonl}
    readers |= dict.fromkeys((".txt", ".qrels", ".trec"), _tsv)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in readers or (path.suffix == ".gz" and readers[suffix] not in (_csv, _tsv, _jsonl)):
        raise ValueError(f"groups are read from .parquet, .csv, .tsv, .jsonl, .npz or .pt files, got {path}")
    try:
        return readers[suffix](path)
    except Exception as error:  # numpy, torch and zipfile raise a dozen kinds for a damaged file
        if str(path) in str(error) and isinstance(error, ValueError):
            raise
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise ValueError(
            f"the groups {path} cannot be read ({type(error).__name__}: {reason}): is the file damaged?"
        ) from error


def column_array(given: Any) -> np.ndarray:
    """An array of what was given, without turning large whole numbers or missing ones into floats."""
    if isinstance(given, np.ndarray):
        return given
    values = [each.item() if isinstance(each, Tensor) and not each.dim() else each for each in given]
    if any(isinstance(value, (list, tuple, np.ndarray, Tensor)) for value in values):
        raise ValueError("groups must be one per row, got several to a row: list pairs of rows instead")
    if all(isinstance(value, (int, np.integer)) and abs(int(value)) <= LARGEST for value in values):
        return np.array(values, dtype=np.int64)
    if all(isinstance(value, (float, int)) for value in values) and any(isinstance(value, float) for value in values):
        return np.array(values, dtype=np.float64)
    return _objects(values)


def _csv(path: Path) -> Table:
    with _open(path) as file:
        return _delimited(csv.reader(file))


def _tsv(path: Path) -> Table:
    """A table whose columns are separated by tabs, or TREC's four columns, separated by any white space."""
    with _open(path) as file:
        first = file.readline()
    with _open(path) as file:
        if _is_trec(first.split()):
            return _judgements(path, file)
        return _delimited(csv.reader(file, delimiter="\t"))


def _is_trec(fields: Sequence[str]) -> bool:
    """Whether these are the four fields of a judgement: a query, an iteration, a document and a whole number."""
    return len(fields) == 4 and fields[3].lstrip("-").isdecimal() and not set(fields) & {*QUERIES, *DOCUMENTS}


def _judgements(path: Path, lines: Iterable[str]) -> Table:
    columns: dict[str, list[str]] = {name: [] for name in TREC if name != "iteration"}
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields and not _is_trec(fields):
            raise ValueError(f"line {number} of {path} is no judgement: query, iteration, document and whole number")
        for name, value in zip(TREC, fields, strict=False):
            if name in columns:
                columns[name].append(value)
    return Table({name: _objects(values) for name, values in columns.items()}, list(TREC))


def _delimited(lines: Iterable[list[str]]) -> Table:
    """The columns of a table whose first line names them; a short line has no value in its last columns."""
    lines = iter(lines)
    names = next(lines, [])
    places = {name: names.index(name) for name in COLUMNS if name in names}
    columns: dict[str, list[str]] = {name: [] for name in places}
    for fields in lines:
        for name, place in places.items() if fields else ():
            columns[name].append(fields[place] if place < len(fields) else "")
    return Table({name: _objects(values) for name, values in columns.items()}, names)


def _jsonl(path: Path) -> Table:
    """One JSON object a line."""
    objects = []
    names: dict[str, None] = {}
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number} of {path} is no JSON: {error}") from error
            if not isinstance(value, Mapping):
                raise ValueError(f"line {number} of {path} must be a JSON object such as {{...}}")
            names |= dict.fromkeys(value)
            objects.append(tuple(value.get(name) for name in COLUMNS))
    columns = dict(zip(COLUMNS, zip(*objects, strict=True), strict=True)) if objects else {}
    return Table({name: column_array(values) for name, values in columns.items() if name in names}, list(names))


def _open(path: Path) -> Any:
    opened = gzip.open if path.suffix == ".gz" else open
    return opened(path, "rt", newline="", encoding="utf-8-sig")


def _arrays(path: Path) -> Table:
    _check_archive(path, "numpy.savez")
    with np.load(path, allow_pickle=False) as arrays:
        return Table({name: arrays[name] for name in COLUMNS if name in arrays}, list(arrays.files))


def _parquet(path: Path) -> Table:
    table = read_parquet(path)
    columns = {name: table.column(name) for name in COLUMNS if name in table.column_names}
    arrays = {  # a missing value would turn whole numbers into floats
        name: column_array(column.to_pylist()) if column.null_count else column.to_numpy()
        for name, column in columns.items()
    }
    return Table(arrays, list(table.column_names))


def _tensor(path: Path) -> Table:
    _check_archive(path, "torch.save")
    groups = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(groups, Tensor):
        raise ValueError(f"{path} must hold one tensor of groups by row, got {type(groups).__name__}")
    if groups.untyped_storage().nbytes() < groups.numel() * groups.element_size():
        raise ValueError(f"{path} holds fewer groups than its tensor claims to have")
    return Table({"group": groups.detach().numpy()}, ["group"])


def _check_archive(path: Path, writer: str) -> None:
    """Compare the checksums of all parts of an archive with what they hold.

    Raises:
        ValueError: for a file that is no archive, such as a bare pickle, and for a damaged one.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"the groups {path} are no archive that {writer} has written: the file is damaged or a pickle")
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the groups {path} are damaged: the checksum of {damaged!r} differs")


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
