"""Tables on disk as rows: csv, tsv, jsonl, json, and parquet, which alone needs pyarrow. Imports no torch."""

import csv
import json
import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from antipodes.data.problems import DataError
from antipodes.parquet import read_parquet

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""How the names of tables end."""

LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "tags")
"""What a column of labels is called."""

LABEL_TABLES = tuple(f"labels{suffix}" for suffix in TABLES)
"""What a table of labels is called when it is found by itself."""

MORE = "(more columns than the header has)"
"""The name under which a row has what stands beyond the last column, as after a comma that is not in quotes."""

Row = dict[str, Any]


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table, each by its columns' names; those of a json file must be a list of objects.

    Raises:
        DataError: if it is missing, damaged, not UTF-8, or not such a table.
    """
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        if path.suffix in (".csv", ".tsv", ".txt"):
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file, restkey=MORE, delimiter="\t" if path.suffix == ".tsv" else ",")
                return [{key.strip(): value for key, value in row.items()} for row in reader]
        if path.suffix == ".jsonl":
            with path.open(encoding="utf-8-sig") as file:
                rows = [json.loads(line) for line in file if line.strip()]
        else:
            rows = read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: give the path of a table") from error
    except (OSError, csv.Error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a table ({error}): save it anew, in UTF-8") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} must hold one object for every row, such as {{'image': ..., 'caption': ...}}")
    return rows


def read_json(path: Path) -> Any:
    """Return what a json file holds.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as json ({error}): save it anew") from error


def find_column(rows: Sequence[Row], names: Iterable[str], path: Path, what: str) -> str:
    """Return the first of these names that the table has as a column, whatever its case.

    Raises:
        DataError: if it has none; the sentence lists the columns that it has.
    """
    names = list(names)
    columns = [column for column in rows[0] if column != MORE] if rows else []
    by_lower = {column.lower(): column for column in reversed(columns)}
    for name in names:
        if name in by_lower:
            return by_lower[name]
    raise DataError(
        f"{path} has no column of {what} ({', '.join(names)}): "
        + (f"its columns are {', '.join(map(repr, columns))}" if columns else "it is empty")
    )


def has_column(rows: Sequence[Row], names: Iterable[str]) -> bool:
    """Whether a table has a column with one of these names."""
    return bool(rows) and bool({column.lower() for column in rows[0]} & set(names))


def unused_columns(rows: Sequence[Row], used: Iterable[str | None]) -> tuple[str, ...]:
    """Return the columns of a table that nothing reads, in their order.

    Args:
        rows: The table.
        used: The columns that are read.

    Example:
        >>> unused_columns([{"text": "a", "split": "test"}], ["text"])
        ('split',)
    """
    known = {*used, MORE}
    return tuple(column for column in (rows[0] if rows else ()) if column not in known)


def plain_name(name: str) -> str:
    """Return a path as tables write it with slashes, and without what leads nowhere: ./a//b is a/b."""
    return posixpath.normpath(name.strip().replace("\\", "/")) if name.strip() else ""


def _parquet(path: Path) -> list[Row]:
    try:
        rows: list[Row] = read_parquet(path).to_pylist()
    except ValueError as error:
        raise DataError(str(error)) from error
    return rows
