"""Files of mined negatives: triplets, n-tuples or lists, and a table of what is suspected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from antipodes.files import refuse_foreign, replacing
from antipodes.tables import is_table_of, require_out, write_table

if TYPE_CHECKING:
    from antipodes.auditing.mining import Mined

Format = Literal["triplet", "n-tuple", "list"]
OUTPUTS = (".parquet", ".jsonl")
SUSPECTED = ("query", "document", "score", "positive_score", "near")
_COLUMNS: Mapping[Format, tuple[str, ...]] = {
    "triplet": ("anchor", "positive", "negative"),
    "n-tuple": ("anchor", "positive", "negative_1"),
    "list": ("query", "pos", "neg"),
}


def check_outputs(path: str | Path, format: Format, force: bool) -> Path:
    """The file of the negatives, if it and the table of suspected candidates can be written.

    Raises:
        ValueError: if they cannot, or another program's file is there.
    """
    if format not in get_args(Format):
        raise ValueError(f"format must be one of {', '.join(get_args(Format))}, got {format!r}")
    file = require_out(path, OUTPUTS)
    refuse_foreign(file, "--out", lambda there: any(_has(there, names) for names in _COLUMNS.values()), force)
    refuse_foreign(suspected_table(file), "--out", lambda there: _has(there, SUSPECTED), force)
    return file


def suspected_table(file: Path) -> Path:
    """The table of suspected candidates: x.suspected.parquet for x.parquet."""
    return file.with_name(f"{file.stem}.suspected{file.suffix}")


def write_mined(mined: Mined, path: str | Path, format: Format, force: bool) -> None:
    """Write negatives and suspected candidates, each file whole or not at all."""
    file = check_outputs(path, format, force)
    columns = _columns(mined, format)
    if not any(columns.values()):
        raise ValueError(f"--out {file}: there are no negatives to write: use a smaller margin, or another rank range")
    _write(suspected_table(file), _suspected(mined))
    _write(file, columns)


def _columns(mined: Mined, format: Format) -> dict[str, list[Any]]:
    """What a file of negatives holds, by column: a triplet of a query with 130 positives has 1,040 rows."""
    names = [*_COLUMNS[format]]
    if format == "n-tuple":
        names[2:] = [f"negative_{number}" for number in range(1, mined.indices.shape[1] + 1)]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    positives: dict[int, list[int]] = {}
    for query, document in mined.positives.tolist():
        positives.setdefault(query, []).append(document)
    for query, row in enumerate(mined.indices.tolist()):
        anchor, negatives = mined.queries.shown(query), [mined.corpus.shown(each) for each in row if each >= 0]
        texts = [mined.corpus.shown(each) for each in positives.get(query, ())]
        parts: list[list[Any]] = []
        if format == "list" and negatives:
            parts = [[anchor], [texts], [negatives]]
        elif format == "triplet":
            parts = [
                [anchor] * len(texts) * len(negatives),
                [positive for positive in texts for _ in negatives],
                negatives * len(texts),
            ]
        elif format == "n-tuple" and len(negatives) == len(row):
            parts = [[anchor] * len(texts), texts, *([negative] * len(texts) for negative in negatives)]
        for column, part in zip(columns.values(), parts, strict=False):
            column += part
    return columns


def _suspected(mined: Mined) -> dict[str, list[Any]]:
    """The table of suspected candidates, with texts or names instead of rows."""
    table = mined.suspected
    return {
        "query": [mined.queries.shown(row) for row in table["query"].tolist()],
        "document": [mined.corpus.shown(row) for row in table["document"].tolist()],
        **{name: table[name].tolist() for name in SUSPECTED[2:]},
    }


def _write(file: Path, columns: Mapping[str, list[Any]]) -> None:
    if file.suffix == ".parquet":
        write_table(file, columns)
        return
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8", errors="surrogateescape") as handle:
        for values in zip(*columns.values(), strict=True):
            handle.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")


def _has(file: Path, names: tuple[str, ...]) -> bool:
    """Whether a file is a table with these columns; an empty one of jsonl is any table."""
    if file.suffix == ".parquet":
        return is_table_of(file, names)
    with file.open(encoding="utf-8") as handle:
        line = handle.readline()
    return not line or set(names) <= set(json.loads(line))
