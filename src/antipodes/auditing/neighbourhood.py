"""`antipodes.neighbours`: the nearest samples of samples, by their vectors, by name and as a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.embedding import embed
from antipodes.auditing.embeddings import FORMATS, Vectors, checked, read_embeddings
from antipodes.files import refuse_foreign
from antipodes.functional.neighbours import nearest_of
from antipodes.neighbour_search import nearest_others
from antipodes.progress import progress_bar
from antipodes.tables import is_table_of, require_out, write_table

OUTPUTS = (".csv", ".parquet", ".json", ".npz")
COLUMNS = ("path", "rank", "neighbour", "similarity")
ARRAYS = ("paths", "neighbours", "similarities")
"""The names in tables and in .npz files."""


@dataclass(frozen=True)
class Neighbourhood:
    """The k nearest vectors of m queries, the nearest first.

    Args:
        indices: (m, k) int64, rows among the vectors that were searched.
        similarities: (m, k) float32, cosines.
        queries: m names of the queries.
        paths: n names of the vectors that were searched.
        exact: False if the vectors were searched through an inverted file.
    """

    indices: NDArray[np.int64]
    similarities: NDArray[np.float32]
    queries: tuple[str, ...] = field(repr=False)
    paths: tuple[str, ...] = field(repr=False)
    exact: bool = True

    def table(self) -> dict[str, NDArray[Any]]:
        """The answer by column: a line for every query and neighbour."""
        count, k = self.indices.shape
        columns = (
            np.array([path for path in self.queries for _ in range(k)], dtype=object),
            np.array(list(range(1, k + 1)) * count),
            np.array([self.paths[row] for row in self.indices.flatten().tolist()], dtype=object),
            self.similarities.flatten(),
        )
        return dict(zip(COLUMNS, columns, strict=True))

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the table to a .csv, .parquet or .json file, or to an .npz file a row of neighbours for every query.

        Raises:
            ValueError: if the file cannot be written, or is not an earlier result (unless `force`).
        """
        file = check_file(path, force)
        arrays = {"paths": list(self.queries), "neighbours": self.indices, "similarities": self.similarities}
        write_table(file, arrays if file.suffix == ".npz" else self.table())


def neighbours(
    vectors: Any,
    *,
    encoder: Any = None,
    tower: str | None = None,
    columns: Sequence[str] | None = None,
    k: int = 5,
    queries: Any = None,
    out: str | Path | None = None,
    progress: bool = False,
    force: bool = False,
) -> Neighbourhood:
    """Find the k nearest other vectors, by cosine, of every vector or of some queries.

    Args:
        vectors: a file of vectors, what `antipodes.embed` returns, or an array (n, D); with an encoder photos or texts,
            as `antipodes.embed` takes them.
        encoder: what embeds photos or texts, as `antipodes.embed` takes it.
        tower: which encoder of a run that has several, such as `text`.
        columns: the column of texts in a table.
        k: neighbours of every query.
        queries: names of samples in the data (the end of a path is enough), a second file of vectors, or vectors (m,
            D); with an encoder also new texts or photos. By default every vector is a query; a sample is not its own
            neighbour.
        out: file for the answer, as `Neighbourhood.save` writes it; nothing is written if not given.
        progress: show on standard error how far the search is.
        force: replace a file at `out` that is not an earlier result.

    Raises:
        ValueError: if k is below 1, or there are no such vectors or samples.

    Example:
        >>> neighbours(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), k=1).indices.tolist()
        [[1], [0], [1]]
    """
    if out is not None:
        check_file(out, force)
    if encoder is None and (tower is not None or columns is not None):
        raise ValueError("tower and columns are about what an encoder embeds: name the encoder")

    def embedded(data: Any) -> Vectors:
        return embed(encoder, data, tower=tower, columns=columns, progress=progress)

    known = _vectors(vectors, "vectors") if encoder is None else embedded(vectors)
    matrix = torch.from_numpy(known.embeddings)
    with progress_bar("neighbours", shown=progress) as told:
        if queries is None or (isinstance(queries, Sequence) and not len(queries)):
            asked, found = known, nearest_others(matrix, k, told)
        else:
            asked, own_rows = _queries(queries, known, None if encoder is None else embedded)
            found = nearest_of(torch.from_numpy(asked.embeddings), matrix, k, own_rows, progress=told)
    answer = Neighbourhood(found.rows.numpy(), found.similarities.numpy(), asked.paths, known.paths, found.exact)
    if out is not None:
        answer.save(out, force=force)
    return answer


def check_file(path: str | Path, force: bool = False) -> Path:
    """The file of an answer, if it can be written.

    Raises:
        ValueError: if it cannot, or another program's file is there.
    """
    file = require_out(path, OUTPUTS)
    names = ARRAYS if file.suffix == ".npz" else COLUMNS
    refuse_foreign(file, "--out", lambda there: is_table_of(there, names), force)
    return file


def _vectors(given: Any, name: str) -> Vectors:
    if isinstance(given, Vectors):
        return given
    if isinstance(given, str | Path):
        return read_embeddings(given)
    matrix = checked(given.detach().cpu().numpy() if isinstance(given, Tensor) else given, name)
    return Vectors(matrix, tuple(f"row {row}" for row in range(len(matrix))))


def _queries(given: Any, known: Vectors, embedded: Callable[[Any], Vectors] | None) -> tuple[Vectors, Tensor | None]:
    """The vectors of the queries, and their rows where they are among the known ones; `embedded` takes new ones."""
    listed = [given] if isinstance(given, str | Path) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(name, str | Path) for name in listed):
        return _vectors(given, "queries"), None
    names = [str(name) for name in listed]
    if len(names) == 1 and Path(names[0]).suffix in FORMATS and names[0] not in known.paths:
        return read_embeddings(names[0]), None
    if embedded is not None and not any(_rows_of(name, known) for name in names):
        are_files = all(os.path.isfile(name) for name in names)
        new = embedded([Path(name) for name in names] if are_files else names)
        return replace(new, paths=tuple(names)), None
    rows = [_row(name, known) for name in names]
    return Vectors(known.embeddings[rows], tuple(known.paths[row] for row in rows)), torch.tensor(rows)


def _row(name: str, known: Vectors) -> int:
    """The row of a path, or of the one path that ends like it."""
    ending = _rows_of(name, known)
    if len(ending) != 1:
        why = "no path ends" if not ending else f"{len(ending)} paths end"
        raise ValueError(f"--queries {name}: {why} so in the embeddings, such as {known.paths[0]}")
    return ending[0]


def _rows_of(name: str, known: Vectors) -> list[int]:
    """The row of a path, or those of the paths that end like it."""
    if name in known.paths:
        return [known.paths.index(name)]
    return [row for row, path in enumerate(known.paths) if path.endswith("/" + name.lstrip("/"))]
