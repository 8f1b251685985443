"""Tables in files, read and written as columns: .csv, .tsv, .jsonl, .json, .parquet and .npz. Imports no torch.

Files to be read may come from a stranger: they are data only, nothing in them is executed, and a damaged one is
refused in one sentence with its name. The checksums of archives, and the digest in our own parquet files, are compared
first. Written files appear whole or not at all.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np

from antipodes.files import DataError, replacing
from antipodes.plain_text import csv_cell

Columns = Mapping[str, Any]
"""Columns of equal length by name: lists or arrays."""

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""How the names of tables of texts end."""

MORE = "(more columns than the header has)"
"""The column of what stands beyond the last column, as after a comma that is not in quotes: lists, or None."""

TREC = ("query-id", "iteration", "corpus-id", "score")
"""The four columns of TREC's relevance judgements, which have no header."""

_TEXT_ENDINGS = (".csv", ".tsv", ".txt", ".qrels", ".trec")

_AT_A_TIME = 2**16  # values that are Python's at a time

DIGEST = b"antipodes.sha256"
"""The key of the digest in the metadata of a parquet file."""


def read_table(path: Path, only: Collection[str] | None = None, delimiter: str | None = None) -> dict[str, Any]:
    """Return the columns of a table by name, in the file's order.

    1. The ending says the format: .csv, .tsv, .jsonl (.ndjson), .json (a list of objects), .parquet or .npz. Files
       .txt, .qrels and .trec are read as .tsv; a .tsv whose first line is one of TREC's judgements has their columns
       ``query-id``, ``corpus-id`` and ``score``. Files of text may be compressed (``.csv.gz``).
    2. Texts and values are lists, with None where a row has no value. Numbers of .parquet and .npz files are arrays.

    Args:
        path: the file.
        only: the columns to keep; None keeps all.
        delimiter: what separates the columns of a text; None goes by the ending.

    Raises:
        DataError: if it is missing, damaged, not UTF-8, or not such a table.

    Example:
        >>> read_table(Path("labels.csv"))  # doctest: +SKIP
        {'image': ['1.jpg', '2.jpg'], 'label': ['cat', 'dog']}
    """
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    try:
        if kind in (".npz", ".parquet"):
            return (_read_npz if kind == ".npz" else _read_parquet)(path, only)
        if kind in (".jsonl", ".ndjson"):
            with _opened(path) as file:
                return _of_objects(_json_lines(file, path), only)
        if kind == ".json":
            content = read_json(path)
            if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
                raise DataError(f"{path} must hold one object for every row, such as {{'image': ..., 'caption': ...}}")
            return _of_objects(content, only)
        if kind not in _TEXT_ENDINGS:
            raise DataError(f"tables are read from {', '.join(TABLES)}, .npz, .qrels or .txt files, got {path}")
        with _opened(path) as file:
            return _delimited(file, path, only, delimiter or ("," if kind == ".csv" else "\t"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: give the path of a table") from error
    except DataError:
        raise
    except Exception as error:  # numpy, pyarrow and zipfile raise a dozen kinds for a damaged file
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path} cannot be read as a table ({type(error).__name__}: {reason}): save it again"
        ) from error


def read_json(path: Path) -> Any:
    """Return what a json file holds.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as json ({error}): save it again") from error


def read_names(path: Path) -> list[str]:
    """Return the names of a table's columns, from its beginning where that is enough; none of a json file without rows.

    Raises:
        DataError: if it cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            return list(require_pyarrow()[1].read_schema(path).names)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return list(archive.files)
        if path.suffix == ".json":
            content = read_json(path)
            return list(content[0]) if isinstance(content, list) and content and isinstance(content[0], dict) else []
        with _opened(path) as file:
            first = next((line for line in file if line.strip()), "")
        if path.suffix == ".jsonl":
            found = json.loads(first or "{}")
            return list(found) if isinstance(found, dict) else []
        return next(csv.reader([first], delimiter="\t" if path.suffix == ".tsv" else ","), [])
    except DataError:
        raise
    except Exception as error:  # of half a dozen libraries
        raise DataError(f"{path} cannot be read as a table ({error}): save it again, in UTF-8") from error


def count_rows(columns: Columns) -> int:
    """Return the number of rows of a table."""
    return len(next(iter(columns.values()), ()))


def column_values(columns: Columns, name: str) -> list[Any]:
    """Return a column as a list of Python's own values."""
    values = columns[name]
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def find_column(columns: Columns, names: Iterable[str], path: Path, what: str) -> str:
    """Return the first of these names that a table has as a column, whatever its case.

    Raises:
        DataError: if it has none; the sentence lists the columns that it has.
    """
    names = list(names)
    by_lower = {column.lower(): column for column in reversed(list(columns))}
    for name in names:
        if name in by_lower:
            return by_lower[name]
    found = ", ".join(repr(column) for column in columns if column != MORE)
    raise DataError(
        f"{path} has no column of {what} ({', '.join(names)}): "
        + (f"its columns are {found}" if found else "it is empty")
    )


def has_column(columns: Columns, names: Iterable[str]) -> bool:
    """Return True if a table has a column with one of these names."""
    return bool({column.lower() for column in columns} & set(names))


def unused_columns(columns: Columns, used: Iterable[str | None]) -> tuple[str, ...]:
    """Return the columns of a table that nothing reads, in their order.

    Example:
        >>> unused_columns({"text": ["a"], "split": ["test"]}, ["text"])
        ('split',)
    """
    known = {*used, MORE}
    return tuple(column for column in columns if column not in known)


def object_array(values: Sequence[Any]) -> np.ndarray:
    """Return an array (n,) of objects, whatever these are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


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
        DataError: if it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("parquet files need pyarrow: pip install '.[audit]', or use a .csv") from error
    return pyarrow, pyarrow.parquet


def is_table_of(path: Path, names: Collection[str]) -> bool:
    """Return True if a file is a table with these columns, and maybe more.

    Raises:
        ValueError: if the file has another format.
    """
    return set(names) <= set(read_names(path))


def write_table(path: Path, columns: Columns) -> None:
    """Write columns of equal length to a .csv, .parquet, .json (a list of records) or .npz file.

    A parquet file gets a digest of what it holds, which `read_table` compares.
    """
    with replacing(path) as temporary:
        if path.suffix == ".parquet":
            pyarrow, parquet = require_pyarrow()
            table = pyarrow.table({name: _arrow_column(pyarrow, values) for name, values in columns.items()})
            parquet.write_table(table.replace_schema_metadata({DIGEST: _digest(table)}), temporary)
        elif path.suffix == ".npz":
            with temporary.open("wb") as file:
                np.savez(file, **{name: np.asarray(values) for name, values in columns.items()})  # type: ignore[arg-type]
        elif path.suffix == ".json":
            temporary.write_text(json.dumps(records(columns), indent=1) + "\n")
        else:
            with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as handle:
                writer = csv.writer(handle)
                writer.writerow(map(csv_cell, columns))
                for start in range(0, max(map(len, columns.values()), default=0), _AT_A_TIME):
                    part = slice(start, start + _AT_A_TIME)
                    cells = (map(csv_cell, _plain(values[part])) for values in columns.values())
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


def escaped(text: str) -> str:
    r"""A text as tables can hold it: bytes of a file's name that are no UTF-8 are escaped.

    Example:
        >>> escaped("caf\udce9.jpg")
        'caf\\udce9.jpg'
    """
    return text.encode("utf-8", "backslashreplace").decode()


def _opened(path: Path) -> TextIO:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    file: TextIO = opener(path, "rt", newline="", encoding="utf-8-sig")
    return file


def _delimited(file: TextIO, path: Path, only: Collection[str] | None, delimiter: str) -> dict[str, Any]:
    """The columns of a table whose first line names them, or of TREC's judgements."""
    first = file.readline()
    lines = chain((first,), file)
    if delimiter == "\t" and _is_judgement(first.split()):
        return _judgements(lines, path, only)
    rows = (row for row in csv.reader(lines, delimiter=delimiter) if row)
    names = [name.strip() for name in next(rows, [])]
    columns: dict[str, list[Any]] = {name: [] for name in names if only is None or name in only}
    kept = [(columns[name], names.index(name)) for name in columns]
    beyond: dict[int, list[str]] = {}
    count = 0
    for count, row in enumerate(rows, start=1):
        for column, place in kept:
            column.append(row[place] if place < len(row) else None)
        if len(row) > len(names):
            beyond[count - 1] = row[len(names) :]
    if beyond and only is None:
        columns[MORE] = [beyond.get(row) for row in range(count)]
    return columns


def _is_judgement(fields: Sequence[str]) -> bool:
    """Whether these are the four fields of a judgement: a query, an iteration, a document and a whole number."""
    return len(fields) == len(TREC) and fields[3].lstrip("-").isdecimal()


def _judgements(lines: Iterable[str], path: Path, only: Collection[str] | None) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {name: [] for name in TREC}
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if fields and not _is_judgement(fields):
            raise DataError(f"line {number} of {path} is no judgement: query, iteration, document and whole number")
        for name, value in zip(TREC, fields, strict=False):
            columns[name].append(value)
    return {name: columns[name] for name in TREC if name != "iteration" and (only is None or name in only)}


def _json_lines(file: TextIO, path: Path) -> Iterable[dict[str, Any]]:
    """The objects of a file with one a line."""
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"line {number} of {path} is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"line {number} of {path} must be a JSON object such as {{...}}: one object for every row")
        yield value


def _of_objects(rows: Iterable[dict[str, Any]], only: Collection[str] | None) -> dict[str, Any]:
    """The columns of objects; one that lacks a name has None there."""
    columns: dict[str, list[Any]] = {}
    count = 0
    for count, row in enumerate(rows, start=1):
        for name in row:
            if name not in columns and (only is None or name in only):
                columns[name] = [None] * (count - 1)
        for name, column in columns.items():
            column.append(row.get(name))
    return columns


def _read_npz(path: Path, only: Collection[str] | None) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(path)
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is no archive that numpy.savez has written: it is damaged, a single array or a pickle")
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise DataError(f"{path} is damaged: the checksum of {damaged!r} differs")
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files if only is None or name in only}


def _read_parquet(path: Path, only: Collection[str] | None) -> dict[str, Any]:
    _, parquet = require_pyarrow()
    if not path.is_file():
        raise FileNotFoundError(path)
    table = parquet.read_table(path, page_checksum_verification=True)
    expected = (table.schema.metadata or {}).get(DIGEST)  # a file of another program has none
    if expected is not None and expected != _digest(table):
        raise DataError(f"{path} is damaged: what it holds has another digest than the one written with it")
    return {name: _arrow_values(table.column(name)) for name in table.column_names if only is None or name in only}


def _arrow_values(column: Any) -> Any:
    """Numbers, and lists of F numbers, as an array (n,) or (n, F); all else as a list.

    A missing value would turn whole numbers into floats, so such a column is a list, too.
    """
    from pyarrow import compute, types

    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind):
        return column.to_pylist() if column.null_count else column.to_numpy()
    if (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)) and not column.null_count:
        whole = column.combine_chunks()
        inner = whole.flatten()
        numbers = (types.is_floating(inner.type) or types.is_integer(inner.type)) and not inner.null_count
        if numbers and len(compute.unique(compute.list_value_length(whole))) == 1:
            return np.asarray(inner).reshape(len(whole), -1)
    return column.to_pylist()


def _digest(table: Any) -> bytes:
    """The sha256 of the names and values of all columns, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name in table.column_names:  # the text of (name, [value, value, ...]), a part of the values at a time
        column = table.column(name)
        digest.update(f"({name!r}, [".encode(errors="surrogateescape"))
        for start in range(0, len(column), _AT_A_TIME):
            values = repr(column.slice(start, _AT_A_TIME).to_pylist())[1:-1]
            digest.update(f"{', ' if start else ''}{values}".encode(errors="surrogateescape"))
        digest.update(b"])")
    return digest.hexdigest().encode()


def _arrow_column(pyarrow: Any, values: Any) -> Any:
    """A column of pyarrow, of which a part at a time is made of Python's values."""
    if len(values) <= _AT_A_TIME:
        return pyarrow.array(_plain(values))
    parts = [pyarrow.array(_plain(values[at : at + _AT_A_TIME])) for at in range(0, len(values), _AT_A_TIME)]
    kinds = {part.type for part in parts} - {pyarrow.null()}
    if len(kinds) > 1:  # such as whole numbers and floats: pyarrow decides from all values
        return pyarrow.array(_plain(values))
    kind = next(iter(kinds), pyarrow.null())
    return pyarrow.chunked_array([part.cast(kind) for part in parts], type=kind)


def _plain(values: Sequence[Any]) -> list[Any]:
    """Values as Python's own, floats rounded to six digits as a float32 has them; odd bytes of a name are escaped."""
    listed = values.tolist() if hasattr(values, "tolist") else list(values)
    return [_plain_value(value) for value in listed]


def _plain_value(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return escaped(value) if isinstance(value, str) else value
