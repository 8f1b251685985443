"""Tables that commands write: CSV, parquet, JSON and .npz, whole or not at all."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from antipodes.files import replacing
from antipodes.parquet import write_parquet
from antipodes.plain_text import csv_cell

Columns = Mapping[str, Any]
"""Columns of equal length by name: lists or arrays."""


def require_out(path: str | Path, suffixes: Sequence[str]) -> Path:
    """Refuse a file that cannot be written, before any work is done. See `refuse_foreign` for a file that exists.

    Raises:
        ValueError: if its ending is not one of `suffixes`, its folder does not exist or cannot be written to, or it is
            a folder itself.
    """
    path = Path(path)
    if path.suffix not in suffixes:
        raise ValueError(f"--out {path} should end in {' or '.join(suffixes)}: the ending decides the format")
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder: name a file")
    if not path.parent.is_dir():
        raise ValueError(f"--out {path}: the folder {path.parent} does not exist, make it first")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"--out {path}: the folder {path.parent} cannot be written to")
    if path.suffix == ".parquet":
        require_pyarrow()
    return path


def require_pyarrow() -> tuple[ModuleType, ModuleType]:
    """Import pyarrow and pyarrow.parquet.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError("parquet files need pyarrow: pip install antipodes[audit]") from error
    return pyarrow, pyarrow.parquet


def is_table_of(path: Path, names: Collection[str]) -> bool:
    """Return True if a .csv, .parquet, .json or .npz file is a table with these columns, and maybe more.

    Raises:
        Exception: of the reader, if the file has another format.
    """
    if path.suffix == ".parquet":
        found = require_pyarrow()[1].read_schema(path).names
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            found = archive.files
    elif path.suffix == ".json":
        found = json.loads(path.read_text())[0]
    else:
        with path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file))
    return set(names) <= set(found)


def write_table(path: Path, columns: Columns) -> None:
    """Write columns of equal length to a .csv, .parquet, .json (a list of records) or .npz file."""
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            write_parquet(temporary, {name: _plain(values) for name, values in columns.items()})
        elif path.suffix == ".npz":
            with temporary.open("wb") as file:
                np.savez(file, **{name: np.asarray(values) for name, values in columns.items()})  # type: ignore[arg-type]
        elif path.suffix == ".json":
            temporary.write_text(json.dumps(records(columns), indent=1) + "\n")
        else:
            with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
                writer = csv.writer(handle)
                writer.writerow(map(csv_cell, columns))
                cells = (map(csv_cell, _plain(values)) for values in columns.values())
                writer.writerows(zip(*cells, strict=True))


def records(columns: Columns) -> list[dict[str, Any]]:
    """The same table as a list with a dictionary for every row.

    Example:
        >>> records({"path": ["a.png"], "rank": [1]})
        [{'path': 'a.png', 'rank': 1}]
    """
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*(_plain(values) for values in columns.values()), strict=True)
    ]


def _plain(values: Sequence[Any]) -> list[Any]:
    """Values as Python's own, floats rounded to six digits as a float32 has them; odd bytes of a name are escaped."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [_plain_value(value) for value in listed]


def _plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return escaped(value) if isinstance(value, str) else value


def escaped(text: str) -> str:
    r"""A text as tables can hold it: bytes of a file's name that are no UTF-8 are escaped.

    Example:
        >>> escaped("caf\udce9.jpg")
        'caf\\udce9.jpg'
    """
    return text.encode("utf-8", "backslashreplace").decode()
