"""Parquet files with a digest of what they hold, so that a damaged file is refused and not read as another table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DIGEST = b"antipodes.sha256"
"""The key of the digest in the metadata of a file."""


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length, with their digest in the file's metadata.

    Raises:
        ValueError: if pyarrow is not installed.
    """
    pyarrow = _pyarrow(path)
    table = pyarrow.table({name: pyarrow.array(values) for name, values in columns.items()})
    pyarrow.parquet.write_table(table.replace_schema_metadata({DIGEST: _digest(table)}), path)


def read_parquet(path: Path) -> Any:
    """Return the `pyarrow.Table` of a file; a file of another program has no digest and is read as it is.

    Raises:
        ValueError: if pyarrow is not installed, or the file is damaged.
    """
    pyarrow = _pyarrow(path)
    try:
        table = pyarrow.parquet.read_table(path, page_checksum_verification=True)
        expected = (table.schema.metadata or {}).get(DIGEST)
        damaged = expected is not None and expected != _digest(table)
    except Exception as error:  # pyarrow raises half a dozen kinds for a damaged file
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as a parquet file ({reason}): save it again") from error
    if damaged:
        raise ValueError(f"{path} is damaged: what it holds has another digest than the one written with it")
    return table


def _digest(table: Any) -> bytes:
    """The sha256 of the names and values of all columns, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(repr((name, table.column(name).to_pylist())).encode(errors="surrogateescape"))
    return digest.hexdigest().encode()


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"{path} is a parquet file and needs pyarrow: pip install pyarrow, or use a .csv") from error
    return pyarrow
