"""The columns of a file of groups or pairs: a table, TREC's relevance judgements, arrays, or a saved tensor."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.files import DataError
from antipodes.tables import object_array, read_table

QUERIES = ("query-id", "query_id", "query", "user-id", "user_id", "user")
DOCUMENTS = ("corpus-id", "corpus_id", "document-id", "document_id", "document", "item-id", "item_id", "item")
"""Names of the columns that identify queries and documents; the first that a file has counts."""

COLUMNS = ("row", "group", "other", "weight", "path", *QUERIES, *DOCUMENTS, "score")
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
