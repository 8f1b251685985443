"""Embeddings on disk: an .npz, .npy or .parquet file with a vector for every sample, and its path where it has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodes.files import DataError, replacing
from antipodes.plain_text import from_csv_cell
from antipodes.tables import escaped, is_table_of, read_names, read_table, require_out, require_pyarrow, write_table

FORMATS = (".npz", ".npy", ".parquet")
_NAMES = ("embeddings", "features", "vectors", "embedding")
_AT_A_TIME = 2**14  # rows that are looked at together
_COLUMNS = (*_NAMES, "paths", "path", "labels", "label", "classes")


@dataclass(frozen=True)
class Vectors:
    """Vectors of samples.

    Args:
        embeddings: (n, F) float32, as the encoder gave them.
        paths: n names, the files' paths where samples are files.
        labels: (n,) int64, negative where unknown, or None.
        classes: the names of the labels, or None.
        encoder: the name of the encoder that made them, empty where it is not known.
        skipped: files that could not be read, each with the reason.
        continued: how many of the vectors an earlier call that was interrupted had left.
    """

    embeddings: NDArray[np.float32]
    paths: tuple[str, ...]
    labels: NDArray[np.int64] | None = None
    classes: tuple[str, ...] | None = None
    encoder: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    continued: int = 0

    def __post_init__(self) -> None:
        if len(self.embeddings) != len(self.paths):
            raise ValueError(
                f"there are {len(self.embeddings)} vectors and {len(self.paths)} paths: every vector needs one path"
            )
        if self.labels is not None and self.labels.shape != (len(self.embeddings),):
            raise ValueError(
                f"labels must be ({len(self.embeddings)},), one for every vector, got {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.embeddings)

    def save(self, path: str | Path) -> None:
        """Write the vectors to an .npz, .npy or .parquet file (see `write_embeddings`)."""
        write_embeddings(path, self)

    def class_of(self, row: int) -> str:
        """The name of a sample's label, empty where it is not known."""
        if self.labels is None or self.labels[row] < 0:
            return ""
        label = int(self.labels[row])
        return self.classes[label] if self.classes is not None and label < len(self.classes) else f"label {label}"


def read_embeddings(path: str | Path) -> Vectors:
    """Read embeddings from an .npz, .npy or .parquet file.

    An .npz file has `embeddings` (n, F) and `paths` (n,), and may have `labels` (n,) and `classes`. An .npy file is the
    array alone: its samples are named by a table next to it (see `paths_table`) if it has as many, else by their row. A
    .parquet file has columns `embedding` (lists of F numbers) and `path`, and may have `label`.

    Raises:
        ValueError: if the file is missing, is none of these, or its vectors are not (n, F) finite numbers.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: embed its images first (antipodes embed RUN|ENCODER FOLDER --out vectors.npz), then "
            "give the file of vectors"
        )
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give a file that antipodes embed wrote, or an .npz, .npy or .parquet")
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} is not a file of embeddings: it should end in {', '.join(FORMATS)}")
    try:
        columns = _read_npy(path) if path.suffix == ".npy" else read_table(path, _COLUMNS)
    except DataError:
        raise
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as embeddings: {' '.join(str(error).split())}") from error
    name = next((name for name in _NAMES if name in columns), None)
    if name is None:
        raise ValueError(
            f"{path} has no embeddings: it holds {', '.join(sorted(read_names(path))) or 'nothing'}, "
            "one of them should be called embeddings"
        )
    vectors = checked(columns[name], str(path))
    labels, classes = _numbered(columns.get("labels", columns.get("label")), columns.get("classes"))
    names = columns.get("paths", columns.get("path"))
    paths = tuple(f"row {row}" for row in range(len(vectors))) if names is None else tuple(map(str, names))
    return Vectors(vectors, paths, labels, classes)


def write_embeddings(path: str | Path, vectors: Vectors) -> None:
    """Write embeddings to an .npz, .npy or .parquet file (see `read_embeddings`), whole or not at all.

    A sample's number is written too, as `ids`. An .npy file holds the vectors alone; the paths go into a table next to
    it (see `paths_table`).
    """
    path = require_out(path, FORMATS)
    ids = np.arange(len(vectors))
    extra: dict[str, Any] = {}
    if vectors.labels is not None:
        extra["labels"] = vectors.labels
    if vectors.classes is not None:
        extra["classes"] = np.array(vectors.classes, dtype=np.str_)
    if path.suffix == ".npy":
        write_table(paths_table(path), {"id": list(range(len(vectors))), "path": list(vectors.paths)})
    with replacing(path) as temporary, temporary.open("wb") as file:
        if path.suffix == ".npy":
            np.save(file, vectors.embeddings)
        elif path.suffix == ".npz":
            names = np.array(vectors.paths, dtype=np.str_)
            np.savez(file, embeddings=vectors.embeddings, paths=names, ids=ids, **extra)
        else:
            pyarrow, parquet = require_pyarrow()
            flat = pyarrow.array(np.ascontiguousarray(vectors.embeddings).reshape(-1))
            width = vectors.embeddings.shape[1]
            columns = {
                "id": ids,
                "path": [escaped(path) for path in vectors.paths],
                "embedding": pyarrow.FixedSizeListArray.from_arrays(flat, width),
            }
            if vectors.labels is not None:
                columns["label"] = [escaped(vectors.class_of(row)) for row in range(len(vectors))]
            parquet.write_table(pyarrow.table(columns), file)


def is_written(path: Path) -> bool:
    """Return True if `write_embeddings` may have written a file: it holds what such a file holds.

    Raises:
        Exception: of the reader, if the file has another format.
    """
    if path.suffix == ".npy":
        return is_table_of(paths_table(path), ("id", "path"))
    return is_table_of(path, ("embeddings", "paths", "ids") if path.suffix == ".npz" else ("id", "path", "embedding"))


def paths_table(path: Path) -> Path:
    """The table of `id` and `path` that belongs to an .npy file, which holds vectors alone: x.paths.csv for x.npy."""
    return path.with_suffix(".paths.csv")


def checked(vectors: Any, source: str) -> NDArray[np.float32]:
    """Give vectors (n, F) as float32, or refuse them.

    Raises:
        ValueError: if they are not a matrix of at least one finite number.
    """
    try:
        array = np.asarray(vectors)
    except ValueError as error:
        raise ValueError(f"{source}: the vectors differ in length, and embeddings have one length") from error
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.size == 0:
        raise ValueError(f"{source}: embeddings must be (n, F) numbers, got {array.shape} of type {array.dtype}")
    array = np.require(array, np.float32, ["C", "W"])  # what parquet gives may not be written to, of which torch warns
    parts = (array[start : start + _AT_A_TIME] for start in range(0, len(array), _AT_A_TIME))
    broken = np.flatnonzero(np.concatenate([~np.isfinite(part).all(axis=1) for part in parts]))
    if len(broken):
        raise ValueError(
            f"{source}: {len(broken)} of {len(array)} embeddings are NaN or infinite, the first in row {broken[0]}: "
            "leave those samples out, or repair the encoder"
        )
    return array


def _read_npy(path: Path) -> dict[str, Any]:
    loaded = np.load(path, allow_pickle=False)
    if not isinstance(loaded, np.ndarray):
        raise ValueError("this is an archive of arrays: call it .npz")
    table = paths_table(path)
    if table.is_file():
        paths = [from_csv_cell(name or "") for name in read_table(table, ("path",)).get("path", ())]
        if len(paths) == len(loaded):
            return {"embeddings": loaded, "paths": paths}
    return {"embeddings": loaded}


def _numbered(
    labels: Sequence[Any] | None, classes: Sequence[Any] | None
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Labels as numbers: those that are names are numbered in their sorted order."""
    if labels is None:
        return None, None
    array = np.asarray(labels)
    if array.dtype.kind in "iu":
        return array.astype(np.int64), None if classes is None else tuple(map(str, classes))
    names = [str(label) for label in array.tolist()]
    known = sorted(set(names) - {"", "None"})
    numbers = {name: number for number, name in enumerate(known)}
    return np.array([numbers.get(name, -1) for name in names], dtype=np.int64), tuple(known)
