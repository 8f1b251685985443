"""What `mine` compares: queries and documents with their vectors, and which of them are pairs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.embedding import embed
from antipodes.auditing.embeddings import Vectors, checked, read_embeddings
from antipodes.auditing.vectors import Patches, open_encoder
from antipodes.encoders.loading import LoadedEncoder, load
from antipodes.identity import content_ids
from antipodes.negatives.known_file import DOCUMENTS, QUERIES, listed_columns, read_columns, read_knowledge
from antipodes.tables import TABLES, Columns, column_values, count_rows, read_table

TEXT_ENCODER = "minilm"
"""The encoder of texts if none is given."""

IDS = ("_id", "id", *(name for name in (*QUERIES, *DOCUMENTS) if name.endswith(("id", "-id"))))
TEXTS = ("text", "query", "anchor", "question", "sentence", "document", "passage", "positive", "answer", "content")
VECTORS = ("embedding", "embeddings", "vector")
"""Names of the columns of a table of queries or documents; the first that it has counts."""


@dataclass(frozen=True)
class Collection:
    """Queries or documents.

    Attributes:
        ids: n names, all different: those of a table, paths of photos, or numbers of rows.
        vectors: (n, F) of unit length.
        inputs: n texts, photos or vectors, for rescoring.
        contents: (n,) int64, equal for equal texts and equal files of photos; of other things, for equal vectors.
        texts: Whether the inputs are texts.
    """

    ids: tuple[str, ...]
    vectors: Tensor
    inputs: Sequence[Any] = field(repr=False)
    contents: Tensor = field(repr=False)
    texts: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def shown(self, row: int) -> str:
        """What a file of negatives has for a row: its text, or its name."""
        return str(self.inputs[row]) if self.texts else self.ids[row]


class Opener:
    """An encoder that is opened when it is first needed: by then it is known what it has to embed."""

    def __init__(self, encoder: Any, progress: bool) -> None:
        self.given, self.progress = encoder, progress
        self._opened: Any = None
        self._vectors: dict[str, NDArray[np.float32]] = {}  # queries that are documents, too, are embedded once

    def texts(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors (n, F) of texts."""
        if self._opened is None:
            self._opened = self.given if callable(self.given) else load(str(self.given or TEXT_ENCODER), self._tower())
        if isinstance(self._opened, LoadedEncoder):
            new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
            if new:
                self._vectors |= zip(new, embed(self._opened, new, progress=self.progress).embeddings, strict=True)
            return np.stack([self._vectors[text] for text in texts])
        vectors = self._opened(texts)
        return checked(vectors.detach().cpu().numpy() if isinstance(vectors, Tensor) else vectors, "the encoder")

    def photos(self, photos: Any) -> Vectors:
        """Vectors of a folder, a dataset or a list of photos."""
        if self._opened is None:
            self._opened = self.given if callable(self.given) else open_encoder(self.given)[1]
        if not isinstance(self._opened, (LoadedEncoder, Patches)):
            raise ValueError("encoder must be a run, the name of an encoder or what antipodes.load returns, for photos")
        return embed(self._opened, photos, progress=self.progress)

    def _tower(self) -> str | None:
        """The tower of texts, for a run that has several."""
        folder = Path(str(self.given)) if self.given is not None else None
        return "text" if folder is not None and any(folder.glob("encoder-text.*")) else None


def open_collection(given: Any, name: str, opener: Opener) -> Collection:
    """Read queries or documents, and embed them unless they are vectors.

    Args:
        given: As `mine` takes it.
        name: `queries` or `corpus`, for error messages.
        opener: The encoder.

    Raises:
        ValueError: if there is nothing to read, or it is of no known kind.
    """
    if isinstance(given, Vectors):
        return _of_vectors(given, name)
    if isinstance(given, (np.ndarray, Tensor)):
        return _of_array(given, name)
    if isinstance(given, Mapping):
        lengths = {len(column) for column in given.values()}
        if len(lengths) != 1:
            raise ValueError(f"the columns of {name} must be of one length, got {sorted(lengths)}")
        return _of_table(given, name, opener)
    if isinstance(given, (str, Path)):
        path = Path(given)
        if path.suffix in (".npy", ".npz"):
            return _of_vectors(read_embeddings(path), str(path))
        if path.suffix == ".txt" and path.is_file():
            return _of_texts([line for line in path.read_text(encoding="utf-8-sig").splitlines() if line], None, opener)
        if path.suffix in TABLES:
            return _of_table(read_table(path), str(path), opener)
        if not path.exists() and (isinstance(given, Path) or path.suffix):
            raise ValueError(f"{name}: {path} does not exist")
        return _of_photos(opener.photos(str(path)), str(path))
    if isinstance(given, Sequence) and len(given):
        if all(isinstance(each, str) for each in given):
            return _of_texts(list(given), None, opener)
        return _of_photos(opener.photos(list(given)), name, list(given))
    raise ValueError(
        f"{name} must be texts, photos, vectors (n, F), a table with their columns or a file, got a "
        f"{type(given).__name__}{' without any' if isinstance(given, Sequence) else ''}"
    )


def read_positives(given: Any, queries: Collection, corpus: Collection) -> NDArray[np.int64]:
    """The pairs (L, 2) of a query's row and a document's row that are a positive pair, each once.

    Args:
        given: As `mine` takes it.
        queries: Whose rows or names it has.
        corpus: Likewise.

    Raises:
        ValueError: if it names rows that there are not, or nothing that there is.
    """
    if isinstance(given, (str, Path)):
        pairs = _of_file(Path(given), queries, corpus)
    elif isinstance(given, Mapping):
        listed = [(str(query), str(one)) for query, some in given.items() for one in _several(some)]
        pairs = _by_name([query for query, _ in listed], [one for _, one in listed], queries, corpus, "positives")
    else:
        pairs = _by_query(given, queries, corpus)
    if not len(pairs):
        raise ValueError("positives name no pair of a query and a document that are both there")
    return np.unique(pairs, axis=0)


def _of_file(path: Path, queries: Collection, corpus: Collection) -> NDArray[np.int64]:
    columns = read_columns(path)
    if "row" not in columns and "group" not in columns:
        listed = listed_columns(columns, path)
        if listed is not None:
            query_names, names = ([str(value) for value in side.tolist()] for side in listed)
            return _by_name(query_names, names, queries, corpus, str(path))
    known = read_knowledge(path)
    if len(queries) != len(corpus):
        raise ValueError(
            f"{path} speaks of rows of one set of samples, and there are {len(queries)} queries and {len(corpus)} "
            "documents: give both the same, or a file with columns query-id and corpus-id"
        )
    if known.pairs is not None:
        rows = known.pairs.numpy()
        both = np.concatenate((rows, rows[:, ::-1]))
    else:
        assert known.groups is not None
        both = _within(known.groups.numpy())
    if len(both) and both.max() >= len(corpus):
        raise ValueError(f"{path} names row {both.max()}, and there are only {len(corpus)}")
    return both


def _within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """All pairs of different rows that share a group, in both orders."""
    order = np.argsort(groups, kind="stable")
    order = order[groups[order] >= 0]
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(order) else []
    squares = [np.stack(np.meshgrid(rows, rows, indexing="ij"), axis=-1).reshape(-1, 2) for rows in parts]
    pairs: NDArray[np.int64] = np.concatenate(squares) if squares else np.zeros((0, 2), dtype=np.int64)
    different: NDArray[np.int64] = pairs[pairs[:, 0] != pairs[:, 1]]
    return different


def _by_name(
    query_names: Sequence[str], names: Sequence[str], queries: Collection, corpus: Collection, source: str
) -> NDArray[np.int64]:
    """Pairs by name; those of queries that are not asked are left out, as files of judgements have all splits."""
    rows = {name: row for row, name in enumerate(queries.ids)}
    documents = {name: row for row, name in enumerate(corpus.ids)}
    asked = [(rows[query], name) for query, name in zip(query_names, names, strict=True) if query in rows]
    if not asked:
        raise ValueError(f"{source} names none of the queries, such as {queries.ids[0]!r}")
    missing = [name for _, name in asked if name not in documents]
    if missing:
        sentence = f"{source} names {len(missing)} documents that the corpus does not have, such as {missing[0]!r}"
        if len(missing) == len(asked):
            raise ValueError(sentence)
        warnings.warn(f"{sentence}: they are left out", stacklevel=2)
    return np.array([(row, documents[name]) for row, name in asked if name in documents], dtype=np.int64)


def _by_query(given: Any, queries: Collection, corpus: Collection) -> NDArray[np.int64]:
    """Pairs from a document, or several of them, for every query: by row, or by name."""
    listed = given.tolist() if isinstance(given, (np.ndarray, Tensor)) else given
    if not isinstance(listed, Sequence) or isinstance(listed, str) or len(listed) != len(queries):
        what = f"{len(listed)}" if isinstance(listed, Sequence) else f"a {type(given).__name__}"
        raise ValueError(
            f"positives must be a file, a mapping of queries to documents, or one entry (a document or a list of them) "
            f"for each of the {len(queries)} queries, got {what}"
        )
    documents = {name: row for row, name in enumerate(corpus.ids)}
    pairs = []
    for row, some in enumerate(listed):
        for one in _several(some):
            whole = isinstance(one, (int, np.integer)) and not isinstance(one, bool)
            place = int(one) if whole else documents.get(str(one))
            if place is None or not 0 <= place < len(corpus):
                raise ValueError(f"positives of query {row} name {one!r}, and the corpus has {len(corpus)} documents")
            pairs.append((row, place))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _several(some: Any) -> Iterable[Any]:
    """One document as a list of one."""
    return some.tolist() if isinstance(some, (np.ndarray, Tensor)) else some if _is_list(some) else [some]


def _is_list(given: Any) -> bool:
    return isinstance(given, (list, tuple, set, frozenset))


def _of_vectors(vectors: Vectors, name: str) -> Collection:
    return _collection(vectors.paths, vectors.embeddings, vectors.paths, None, name)


def _of_photos(vectors: Vectors, name: str, inputs: Sequence[Any] | None = None) -> Collection:
    """Photos have equal content if their files are equal; those that are no files, if their vectors are."""
    files = [Path(path) for path in vectors.paths]
    whole = all(file.is_file() for file in files)
    contents = content_ids(blake2b(file.read_bytes()).hexdigest() for file in files) if whole else None
    return _collection(vectors.paths, vectors.embeddings, inputs or vectors.paths, contents, name)


def _of_array(given: Any, name: str) -> Collection:
    array = checked(given.detach().cpu().numpy() if isinstance(given, Tensor) else given, name)
    return _collection(tuple(str(row) for row in range(len(array))), array, array, None, name)


def _of_texts(texts: list[str], ids: Sequence[str] | None, opener: Opener, name: str = "texts") -> Collection:
    names = tuple(str(row) for row in range(len(texts))) if ids is None else tuple(ids)
    return _collection(names, opener.texts(texts), texts, content_ids(texts), name, texts=True)


def _of_table(table: Columns, name: str, opener: Opener) -> Collection:
    """The texts or vectors of a table, with their names; a title goes in front of its text, as in BEIR."""
    if not count_rows(table):
        raise ValueError(f"{name} is empty: it needs a row for each of them")
    ids, text, vector = (next((each for each in wanted if each in table), None) for wanted in (IDS, TEXTS, VECTORS))
    names = [str(each) for each in (range(count_rows(table)) if ids is None else column_values(table, ids))]
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise ValueError(f"{name} has {twice!r} twice in the column {ids}: give every row a name of its own")
    if text is not None:
        texts = column_values(table, text)
        missing = next((place for place, each in enumerate(texts) if not isinstance(each, str)), None)
        if missing is not None:
            raise ValueError(f"{name} has no text in the column {text} of row {missing + 1}")
        titles = column_values(table, "title") if "title" in table else [None] * len(texts)
        titled = [" ".join(filter(None, both)).strip() for both in zip(titles, texts, strict=True)]
        return _of_texts(titled, names, opener, name)
    if vector is not None:
        array = checked(np.array(table[vector], dtype=np.float32), name)
        return _collection(names, array, array, None, name)
    raise ValueError(
        f"{name} must have a column of texts ({', '.join(TEXTS)}) or of vectors (embedding), got {', '.join(table)}"
    )


def _collection(
    ids: Sequence[str],
    vectors: NDArray[np.float32],
    inputs: Any,
    contents: Tensor | None,
    name: str,
    texts: bool = False,
) -> Collection:
    if not len(ids):
        raise ValueError(f"{name} holds nothing: mining needs at least one query and one document")
    array = np.ascontiguousarray(vectors)
    if contents is None:  # equal to the last bit
        contents = content_ids(row.tobytes().hex() for row in array)
    unit = torch.nn.functional.normalize(torch.from_numpy(array).float())
    return Collection(tuple(ids), unit, inputs, contents, texts)
