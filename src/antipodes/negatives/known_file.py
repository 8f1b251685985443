"""What a user knows, read from a file or an array: the group of every row, pairs of rows with their weights, or pairs
of a query and a document.

Groups may be numbers of any size or names. Whole numbers stay what they are, a negative one is alone, and so is a row
whose group is missing. Names, and numbers beyond int64 such as content hashes, are counted from 0.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.files import DataError
from antipodes.identity import content_ids, identities
from antipodes.negatives.known_pairs import PairTable
from antipodes.tables import object_array, read_names, read_table

QUERIES = ("query-id", "query_id", "query", "user-id", "user_id", "user")
DOCUMENTS = ("corpus-id", "corpus_id", "document-id", "document_id", "document", "item-id", "item_id", "item")
"""Names of the columns that identify queries and documents; the first that a file has counts."""

COLUMNS = ("row", "group", "other", "weight", "kind", "path", "path_a", "path_b", *QUERIES, *DOCUMENTS, "score")
"""The columns that have a meaning."""

LARGEST = np.iinfo(np.int64).max


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Read the columns of a file of groups or pairs that have a meaning; a saved tensor is the column `group`.

    Raises:
        ValueError: if the file is missing, is damaged, or holds objects; the sentence names it.
    """
    if path.suffix in (".pt", ".pth"):
        return {"group": _tensor(path)}
    return {name: column_array(values) for name, values in read_table(path, COLUMNS).items()}


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
    return object_array(values)


def _tensor(path: Path) -> np.ndarray:
    """A tensor of groups by row; the checksums of the archive that torch makes are compared first."""
    try:
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is no archive that torch.save has written: it is missing, damaged or a pickle")
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise DataError(f"{path} is damaged: the checksum of {damaged!r} differs")
        groups = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(groups, Tensor):
            raise DataError(f"{path} must hold one tensor of groups by row, got {type(groups).__name__}")
        if groups.untyped_storage().nbytes() < groups.numel() * groups.element_size():
            raise DataError(f"{path} holds fewer groups than its tensor claims to have")
        return groups.detach().numpy()
    except DataError:
        raise
    except Exception as error:  # torch and zipfile raise a dozen kinds for a damaged file
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(f"{path} cannot be read as a tensor ({type(error).__name__}: {reason})") from error


FEW_ROWS = 1_000_000
"""Rows up to which a file may name any; beyond, with the size of the dataset unknown, `SPARSE` rows for every line."""

SPARSE = 100
# 007 is a name, 7.0 is how a table writes 7 next to missing numbers, and what is far beyond int64 is a name
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,30})(\.0{0,30})?")
_COUNTED = re.compile(r"0|[1-9][0-9]{0,18}")  # an identity: 007 and 7 differ
DUPLICATE_KINDS = ("exact duplicate", "near duplicate", "same by review")
"""The kinds of an audit's pairs that are the same thing; others may be."""
_MISSING = ("", "nan", "none", "null", "<na>")


class Knowledge(NamedTuple):
    """What a file says: groups by row (n,); pairs of rows (L, 2), with their weights (L,) if it has any; or a table of
    pairs by identity.
    """

    groups: Tensor | None = None
    pairs: Tensor | None = None
    weights: Tensor | None = None
    table: PairTable | None = None


def read_knowledge(
    path: Path, num_samples: int | None = None, closure: bool = False, kinds: Sequence[str] | None = None
) -> Knowledge:
    """Read groups or pairs from a table, a file of relevance judgements, arrays, or a saved tensor.

    Args:
        path: The file.
        num_samples: Rows of the dataset, if they are known.
        closure: Join pairs of queries and documents to connected components.
        kinds: Of an audit's pairs, the kinds that count; duplicates if not given.

    Raises:
        ValueError: if it cannot be read, has other columns, or says what cannot be.
    """
    columns = read_columns(path)
    try:
        return _knowledge(columns, path, num_samples, closure, kinds)
    except (ValueError, TypeError, OverflowError) as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error


def knowledge_of(columns: Mapping[str, Any], kinds: Sequence[str] | None = None) -> Knowledge:
    """What columns in memory say, such as the tables `groups` and `pairs` of `antipodes.audit`.

    Raises:
        ValueError: if they say nothing about rows, or what cannot be.
    """
    known = {
        name: column_array(columns[name]) for name in ("row", "group", "other", "weight", "kind") if name in columns
    }
    if "group" not in known and not {"row", "other"} <= set(known):
        raise ValueError(
            f"groups must have columns row and group, or row and other, got {', '.join(columns) or 'none'}"
        )
    return _knowledge(known, Path("groups"), None, False, kinds)


def counted_pairs(columns: Mapping[str, np.ndarray], kinds: Sequence[str] | None = None) -> np.ndarray:
    """Which lines of an audit's pairs count (L,): duplicates, or the given kinds; all lines of a table without kinds.

    Raises:
        ValueError: if `kinds` are given and the table has no column of kinds.
    """
    if "kind" not in columns:
        if kinds is not None:
            raise ValueError("kinds were given, and the file has no column kind: only pairs of an audit have it")
        return np.ones(len(columns["row"]), dtype=np.bool_)
    return np.isin(columns["kind"].astype(str), list(kinds or DUPLICATE_KINDS))


def _knowledge(
    columns: dict[str, np.ndarray],
    path: Path,
    num_samples: int | None,
    closure: bool,
    kinds: Sequence[str] | None,
) -> Knowledge:
    """What the columns of a file say."""
    lengths = {len(values) if values.ndim else 0 for values in columns.values()}
    if len(lengths) > 1:
        raise ValueError(f"the columns of {path} must be of one length, got {sorted(lengths)}")
    if "group" in columns and "weight" not in columns:
        groups = whole_groups(columns["group"])
        if "row" not in columns:
            return Knowledge(groups)
        return Knowledge(_by_row(_rows(columns["row"], "row", path, num_samples), groups, path))
    if "row" in columns and "other" in columns:
        if "kind" in columns or kinds is not None:
            counted = counted_pairs(columns, kinds)
            columns = {name: values[counted] for name, values in columns.items()}
            if "kind" in columns:  # row -1 is a sample of another split, which is not trained on
                trained = np.all([columns[name].astype(np.int64) >= 0 for name in ("row", "other")], axis=0)
                columns = {name: values[trained] for name, values in columns.items()}
        pairs = torch.stack([_rows(columns[name], name, path, num_samples) for name in ("row", "other")], dim=1)
        return Knowledge(None, pairs, _weights(columns["weight"], path) if "weight" in columns else None)
    listed = listed_columns(columns, path)
    if listed is not None:
        return Knowledge(table=_table(*listed, closure))
    found = ", ".join(read_names(path)) or "none"
    raise ValueError(
        f"{path} must have columns row and group, or row, other and perhaps weight, or query and document (also "
        f"query-id, user, corpus-id, item) and perhaps score, got {found}"
    )


def listed_columns(columns: dict[str, np.ndarray], path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """The queries and documents (L,) that the columns of a file list with a score above 0; all if it has no scores.

    Returns:
        None if the file has no such columns.
    """
    query, document = (next((name for name in side if name in columns), None) for side in (QUERIES, DOCUMENTS))
    if query is None or document is None:
        return None
    queries, documents, scores = columns[query], columns[document], columns.get("score")
    if scores is not None:
        try:
            above = scores.astype(np.float64) > 0
        except (TypeError, ValueError) as error:
            raise ValueError(f"the column score of {path} must be numbers: pairs of a score above 0 count") from error
        queries, documents = queries[above], documents[above]
    if not len(queries):
        raise ValueError(f"{path} lists no pair{'' if scores is None else ' with a score above 0'}")
    return queries, documents


def _table(queries: np.ndarray, documents: np.ndarray, closure: bool) -> PairTable:
    """A table of listed pairs, whose whole numbers written as text are found both as numbers and as texts."""
    query_ids, whole_queries = _identities(queries, "queries")
    document_ids, whole_documents = _identities(documents, "documents")
    table = PairTable(query_ids, document_ids, closure)
    table.also_known_as(
        _hashed(table.query_ids) if whole_queries else None, _hashed(table.document_ids) if whole_documents else None
    )
    return table


def _identities(values: np.ndarray, name: str) -> tuple[Tensor, bool]:
    """Identities (L,) of a column, and whether they are whole numbers that the file has as text."""
    texts = values.tolist() if values.dtype.kind in "OUT" else []
    missing = next((place for place, text in enumerate(texts) if text is None or text == ""), None)
    if missing is not None:
        raise ValueError(f"a pair has no value in the column of {name}: the {missing + 1}. of those that count")
    if texts and all(isinstance(text, str) and _COUNTED.fullmatch(text) for text in texts):
        numbers = [int(text) for text in texts]
        if max(numbers) <= LARGEST:
            return torch.tensor(numbers, dtype=torch.int64), True
    return identities(values, name), False


def _hashed(numbers: Tensor) -> Tensor:
    """The identities of whole numbers written as text."""
    return content_ids(map(str, numbers.tolist()))


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
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else column_array(given)
    if values.ndim != 1:
        raise ValueError(f"groups must be whole numbers or names, one per row, got {values.dtype} {values.shape}")
    if values.dtype.kind == "i":
        return torch.from_numpy(values.astype(np.int64))
    if values.dtype.kind == "u":
        fits = not values.size or int(values.max()) <= LARGEST
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
    if all(name is None or (number is not None and abs(number) <= LARGEST) for name, number in both):
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
    if values.ndim != 1:
        raise ValueError(f"the column {name} of {path} must be one number per line, got shape {values.shape}")
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
    if num_samples is not None and highest >= num_samples:
        raise ValueError(f"the column {name} of {path} names row {highest}: the dataset has at most {num_samples} rows")
    if num_samples is None and highest >= max(FEW_ROWS, SPARSE * len(values)):
        raise ValueError(
            f"the column {name} of {path} names row {highest} and has only {len(values)} lines: give num_samples, the "
            "size of the dataset, if it has so many rows"
        )
    return torch.from_numpy(values.astype(np.int64))


def _weights(values: np.ndarray, path: Path) -> Tensor:
    try:
        return torch.from_numpy(values.astype(np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the column weight of {path} must be numbers in [0, 1]") from error
