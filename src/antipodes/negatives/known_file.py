"""What a user knows, read from a file or an array: the group of every row, or pairs of rows with their weights.

Groups may be numbers of any size or names. Whole numbers stay what they are, a negative one is alone, and so is a row
whose group is missing. Names, and numbers beyond int64 such as content hashes, are counted from 0.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

COLUMNS = ("row", "group", "other", "weight")
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)(\.0*)?")  # 007 is a name, 7.0 is how a table writes 7 beside missing numbers
_MISSING = ("", "nan", "none", "null", "<na>")
_LARGEST = np.iinfo(np.int64).max


class Knowledge(NamedTuple):
    """What a file says: groups by row (n,), or pairs of rows (L, 2) with their weights (L,), if it has any."""

    groups: Tensor | None
    pairs: Tensor | None
    weights: Tensor | None


def read_knowledge(path: Path, num_samples: int | None = None) -> Knowledge:
    """Read groups or pairs by row from a `.parquet`, `.csv`, `.npz` or `.pt` file.

    Args:
        path: The file.
        num_samples: Rows of the dataset, if somebody knows them.

    Raises:
        ValueError: if it cannot be read, has other columns, or says what cannot be.
    """
    if not path.is_file():
        raise ValueError(f"the groups {path} do not exist: give a .parquet, .csv, .npz or .pt file")
    if path.suffix in (".pt", ".pth"):
        groups = torch.load(path, weights_only=True)
        if not isinstance(groups, Tensor):
            raise ValueError(f"{path} must hold one tensor of groups by row, got {type(groups).__name__}")
        return Knowledge(whole_groups(groups), None, None)
    columns = _columns(path)
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"the columns of {path} must be of one length, got {sorted(lengths)}")
    if "group" in columns and "weight" not in columns:
        groups = whole_groups(columns["group"])
        if "row" not in columns:
            return Knowledge(groups, None, None)
        return Knowledge(_by_row(_rows(columns["row"], "row", path, num_samples), groups, path), None, None)
    if "row" in columns and "other" in columns:
        pairs = torch.stack([_rows(columns[name], name, path, num_samples) for name in ("row", "other")], dim=1)
        return Knowledge(None, pairs, _weights(columns["weight"], path) if "weight" in columns else None)
    found = ", ".join(_column_names(path)) or "none"
    raise ValueError(f"{path} must have columns row and group, or row, other and perhaps weight, got {found}")


def whole_groups(given: Any) -> Tensor:
    """Groups (n,) as int64, equal where they were equal; what is missing is -1, alone.

    Args:
        given: A tensor, an array or a list of whole numbers or of names.

    Raises:
        ValueError: for numbers with fractions, or anything that is not one group per row.

    Example:
        >>> whole_groups(["cat", "dog", None, "cat"])
        tensor([ 0,  1, -1,  0])
    """
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else _array(given)
    if values.ndim != 1:
        raise ValueError(f"groups must be whole numbers or names, one per row, got {values.dtype} {values.shape}")
    if values.dtype.kind == "i":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind == "u":
        fits = not values.size or int(values.max()) <= _LARGEST
        return torch.from_numpy(values.astype(np.int64) if fits else np.unique(values, return_inverse=True)[1])
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        exact = np.abs(values) < 2 / np.finfo(values.dtype).eps
        if not (missing | (exact & (values == np.floor(values)))).all():
            raise ValueError(f"groups must be whole numbers or names, got {values.dtype} that is not exact")
        return torch.from_numpy(np.where(missing, -1, values).astype(np.int64))
    if values.dtype.kind not in "OSU":
        raise ValueError(f"groups must be whole numbers or names, one per row, got {values.dtype}")
    return torch.tensor(_numbered([_text(value) for value in values.tolist()]), dtype=torch.int64)


def _numbered(names: Sequence[str | None]) -> list[int]:
    """Groups by name: the numbers that the names are, if they all are whole and fit; else counted from 0."""
    numbers = [int(name.partition(".")[0]) if name and _WHOLE.fullmatch(name) else None for name in names]
    both = list(zip(names, numbers, strict=True))
    if all(name is None or (number is not None and abs(number) <= _LARGEST) for name, number in both):
        return [-1 if number is None else number for number in numbers]
    counted: dict[str, int] = {}
    return [
        -1 if name is None or (number is not None and number < 0) else counted.setdefault(name, len(counted))
        for name, number in both
    ]


def _text(value: Any) -> str | None:
    """The text of a value, None where it is missing."""
    text = (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()
    return None if text.lower() in _MISSING else text


def _array(given: Any) -> np.ndarray:
    """An array of what was given, without turning large whole numbers or missing ones into floats."""
    if isinstance(given, np.ndarray):
        return given
    values = [each.item() if isinstance(each, Tensor) and not each.dim() else each for each in given]
    if any(isinstance(value, (list, tuple, np.ndarray, Tensor)) for value in values):
        raise ValueError("groups must be one per row, got several to a row: list pairs of rows instead")
    if all(isinstance(value, (int, np.integer)) and abs(int(value)) <= _LARGEST for value in values):
        return np.array(values, dtype=np.int64)
    if all(isinstance(value, (float, int)) for value in values) and any(isinstance(value, float) for value in values):
        return np.array(values, dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def _by_row(rows: Tensor, groups: Tensor, path: Path) -> Tensor:
    """The groups in the order of rows; rows that are not named are alone."""
    table = torch.full((int(rows.max()) + 1 if len(rows) else 1,), -1)
    table[rows] = groups
    wrong = (table[rows] != groups).nonzero()[:, 0]
    if len(wrong):
        row = int(rows[wrong[0]])
        raise ValueError(
            f"{path} gives row {row} more than one group: a row has one; list pairs in columns row and other instead"
        )
    return table


def _rows(values: np.ndarray, name: str, path: Path, num_samples: int | None) -> Tensor:
    """Rows of the dataset as int64.

    Raises:
        ValueError: if they are not whole numbers from 0 on, or there are not so many rows.
    """
    if values.dtype.kind in "OSU":
        names = [_text(value) for value in values.tolist()]
        whole = all(text is not None and _WHOLE.fullmatch(text) for text in names)
        values = np.array([int(str(text).partition(".")[0]) for text in names] if whole else [0.5], dtype=object)
    elif values.dtype.kind == "f":
        whole = bool((np.abs(values) < 2 / np.finfo(values.dtype).eps).all() and (values == np.floor(values)).all())
    else:
        whole = values.dtype.kind in "iu"
    if not whole:
        raise ValueError(f"the column {name} of {path} must be whole numbers: it names rows of the dataset")
    lowest, highest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if lowest < 0:
        raise ValueError(f"the column {name} of {path} names row {lowest}: rows are counted from 0")
    most = num_samples or 2**40
    if highest >= most:
        raise ValueError(f"the column {name} of {path} names row {highest}: the dataset has at most {most} rows")
    return torch.from_numpy(values.astype(np.int64))


def _weights(values: np.ndarray, path: Path) -> Tensor:
    try:
        return torch.from_numpy(values.astype(np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the column weight of {path} must be numbers in [0, 1]") from error


def _column_names(path: Path) -> list[str]:
    """All columns of a file that `_columns` can read."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return list(arrays.files)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return [str(name) for name in parquet.read_schema(path).names]
    with path.open(newline="", encoding="utf-8-sig") as file:
        return next(csv.reader(file), [])


def _columns(path: Path) -> dict[str, np.ndarray]:
    """The columns that a file has of those that have a meaning here."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: arrays[name] for name in COLUMNS if name in arrays}
    if path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ValueError(f"{path} is parquet, which needs pyarrow: pip install pyarrow, or write a .csv") from error
        table = parquet.read_table(path)
        columns = {name: table.column(name) for name in COLUMNS if name in table.column_names}
        return {  # one that is missing would turn whole numbers into floats
            name: _array(each.to_pylist()) if each.null_count else each.to_numpy() for name, each in columns.items()
        }
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            lines = list(reader)
        present = [name for name in COLUMNS if name in (reader.fieldnames or ())]
        return {name: np.array([line[name] or "" for line in lines], dtype=object) for name in present}
    raise ValueError(f"groups are read from .parquet, .csv, .npz or .pt files, got {path}")
