"""The columns of a file of groups: parquet, csv, an archive of arrays, or a tensor saved by torch.

Files are read as data only: nothing in them is executed. The checksums that archives keep of their parts are compared
before anything is read, so that a damaged file is refused instead of read as other groups.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.parquet import read_parquet

COLUMNS = ("row", "group", "other", "weight", "path")
"""The columns that have a meaning."""

LARGEST = np.iinfo(np.int64).max


class Table(NamedTuple):
    """The columns of a file that have a meaning, by name, and the names of all its columns."""

    columns: dict[str, np.ndarray]
    names: list[str]


def read_columns(path: Path) -> Table:
    """Read a file of groups; a saved tensor is the column `group`.

    Raises:
        ValueError: if the file is missing, is damaged, or holds objects; the sentence names it.
    """
    if not path.is_file():
        raise ValueError(f"the groups {path} do not exist: give a .parquet, .csv, .npz or .pt file")
    readers = {".csv": _csv, ".npz": _arrays, ".parquet": _parquet, ".pt": _tensor, ".pth": _tensor}
    if path.suffix not in readers:
        raise ValueError(f"groups are read from .parquet, .csv, .npz or .pt files, got {path}")
    try:
        return readers[path.suffix](path)
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
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        lines = list(reader)
    names = list(reader.fieldnames or ())
    return Table({name: _objects([line[name] or "" for line in lines]) for name in COLUMNS if name in names}, names)


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
