"""Tables of texts as splits of rows: files, folders with a file for each split, BEIR's folders, and Hugging Face.

1. `text_splits` finds out which splits there are: the files of a folder, the values of a column `split`, the
   judgements of a BEIR folder, or the splits of a dataset of Hugging Face.
2. `TextColumns` says which columns hold what: the texts by input (`text`, or `query`, `document`, `negative_1`, ...),
   labels and groups.
3. Each split becomes `SplitOfTexts`; a row with several documents becomes several rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from antipodes.data.archives import is_archive, unpacked
from antipodes.data.caption_tables import SPLIT_NAMES, CaptionSplit, known_splits
from antipodes.data.hub import load_splits
from antipodes.data.on_disk import LABEL_COLUMNS, is_beir
from antipodes.data.saved_datasets import is_saved_dataset, is_saved_dataset_dict, read_saved_dataset
from antipodes.files import DataError
from antipodes.identity import NEGATIVE_INPUT
from antipodes.tables import (
    TABLES,
    Columns,
    column_values,
    count_rows,
    find_column,
    has_column,
    read_table,
    unused_columns,
)

QUERY_COLUMNS = ("query", "anchor", "question")
DOCUMENT_COLUMNS = ("document", "passage", "positive", "answer", "pos")
"""A column of each list makes pairs of queries and documents. A list in a document's column is several documents."""

OTHER_PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("source", "target"))
"""Further columns that make pairs; the first is the input `query`, the second `document`."""

NEGATIVE_COLUMN = re.compile(r"neg(ative)?s?(_\d+)?", re.IGNORECASE)
"""A column of documents that do not answer the row's query; a list in it is several."""

GROUP_COLUMNS = ("sample", "id", "group")
SPLIT_COLUMNS = ("split",)

_TEXT = ("text", "sentence", "content", "document", "title")


@dataclass(frozen=True)
class SplitOfTexts:
    """The rows of one split.

    Args:
        source: what is read, for messages.
        inputs: input -> its text by row; of `negative_1` to `negative_k` rows with fewer have empty texts.
        numbers: the number of every row in the source, from 1.
        labels: the label of every row, None without a column of labels.
        groups: the name of the sample that every row shows, None without such a column.
        unused: columns that nothing reads.
        names: of BEIR's rows the names of query and document.
        gains: of BEIR's rows how relevant the document is.
        corpus: of BEIR all documents by name.
    """

    source: str
    inputs: dict[str, list[str]]
    numbers: list[int]
    labels: list[str] | None = None
    groups: list[str] | None = None
    unused: Sequence[str] = ()
    names: list[tuple[str, str]] | None = None
    gains: list[float] | None = None
    corpus: dict[str, str] | None = None


@dataclass(frozen=True)
class TextColumns:
    """The columns that a caller names, where tables call them by other names than those above.

    Args:
        texts: the column of the texts, or the two of a pair; None finds them.
        label: the column of the labels; None finds it.
    """

    texts: Sequence[str] | str | None = None
    label: str | None = None

    def rows(self, table: Columns, source: str, numbers: Sequence[int] | None = None) -> SplitOfTexts:
        """Return the texts of some rows of a table.

        Args:
            table: the columns.
            source: what they are from, for messages.
            numbers: the rows, from 1; None takes all.

        Raises:
            DataError: if there is no column of texts.
        """
        path = Path(source)
        numbers = range(1, count_rows(table) + 1) if numbers is None else numbers
        inputs = self._inputs(table, path)
        given = [name for name in table if NEGATIVE_COLUMN.fullmatch(name.strip())] if "document" in inputs else []
        given = sorted((name for name in given if name not in inputs.values()), key=_natural)
        label, group, split = self._label(table, path, inputs), *_found(table, path, GROUP_COLUMNS, SPLIT_COLUMNS)
        values = {name: column_values(table, name) for name in (*inputs.values(), *given)}
        whole: list[tuple[int, str]] = [  # (row, document): an empty one is left out later, with its reason
            (number - 1, text)
            for number in numbers
            for text in _several(values[list(inputs.values())[-1]][number - 1]) or [""]
        ]
        texts = {name: [as_text(values[column][row]) for row, _ in whole] for name, column in inputs.items()}
        texts[list(inputs)[-1]] = [text for _, text in whole]
        negatives = {row: [text for name in given for text in _several(values[name][row])] for row, _ in whole}
        for place in range(max(map(len, negatives.values()), default=0)):
            texts[f"{NEGATIVE_INPUT}{place + 1}"] = [
                negatives[row][place] if place < len(negatives[row]) else "" for row, _ in whole
            ]
        return SplitOfTexts(
            source,
            texts,
            [row + 1 for row, _ in whole],
            _chosen(table, label, whole),
            _chosen(table, group, whole),
            unused_columns(table, [*inputs.values(), *given, label, group, split]),
        )

    def _inputs(self, table: Columns, path: Path) -> dict[str, str]:
        """Return the column of each input."""
        if self.texts is not None:
            listed = [self.texts] if isinstance(self.texts, str) else list(self.texts)
            if len(listed) not in (1, 2):
                raise DataError(f"columns must name one column of texts or two of a pair, got {len(listed)}")
            names = ("text",) if len(listed) == 1 else ("query", "document")
            return {
                name: find_column(table, (column,), path, "texts") for name, column in zip(names, listed, strict=True)
            }
        for queries, documents in ((QUERY_COLUMNS, DOCUMENT_COLUMNS), *(((one,), (two,)) for one, two in OTHER_PAIRS)):
            if has_column(table, queries) and has_column(table, documents):
                return {
                    "query": find_column(table, queries, path, "texts"),
                    "document": find_column(table, documents, path, "texts"),
                }
        return {"text": find_column(table, _TEXT, path, "texts, nor two of a pair such as query and document")}

    def _label(self, table: Columns, path: Path, inputs: dict[str, str]) -> str | None:
        if self.label is not None:
            return find_column(table, (self.label,), path, "labels")
        return next((name for name in table if name.lower() in LABEL_COLUMNS and name not in inputs.values()), None)


Splits = dict[CaptionSplit, Callable[[], SplitOfTexts]]
"""A function for each split that reads its rows."""


def text_splits(path: str, columns: TextColumns, config: str | None = None) -> Splits:
    """Return the splits of texts at a path; none if there are no such data.

    Args:
        path: a table, a .txt file, a folder of splits, a folder or archive in BEIR's layout, or `hf:<dataset>`.
        columns: which columns hold what.
        config: the configuration of a dataset of Hugging Face.

    Raises:
        DataError: if something cannot be read.
    """
    if path.startswith("hf:"):
        loaded = load_splits(path.removeprefix("hf:"), config)
        return {
            SPLIT_NAMES.get(name, "train"): partial(columns.rows, loaded[name].to_dict(), f"{path} {name}")
            for name in reversed(loaded)
        }
    place = Path(path).expanduser()
    if place.is_file() and is_archive(place):
        place = unpacked(place)
    if is_beir(place):
        judged = sorted(file for file in (place / "qrels").iterdir() if file.suffix == ".tsv")
        return {SPLIT_NAMES[file.stem]: partial(_of_beir, place, file) for file in judged if file.stem in SPLIT_NAMES}
    if place.is_file() or is_saved_dataset(place):
        return _by_column(_read(place), str(place), columns)
    saved = is_saved_dataset_dict(place)
    found: Splits = {}
    for stem, split in SPLIT_NAMES.items():
        files = [place / stem] if saved else [place / f"{stem}{end}" for end in (*TABLES, ".txt")]
        file = next((each for each in files if each.exists()), None)
        if file is not None and split not in found:
            found[split] = partial(lambda file: columns.rows(_read(file), str(file)), file)
    return found


def as_text(value: Any) -> str:
    """Return a value of a table as a text without white space around it."""
    return "" if value is None else str(value).strip()


def _read(file: Path) -> Columns:
    if file.is_dir():
        return read_saved_dataset(file)
    if file.suffix != ".txt":
        return read_table(file)
    try:
        return {"text": file.read_text(encoding="utf-8-sig").split("\n")}
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as text ({error}): save it in UTF-8") from error


def _by_column(table: Columns, source: str, columns: TextColumns) -> Splits:
    """Return the splits that a column `split` names; without one all rows are `train`."""
    if not has_column(table, SPLIT_COLUMNS):
        return {"train": partial(columns.rows, table, source)}
    values = column_values(table, find_column(table, SPLIT_COLUMNS, Path(source), "splits"))
    numbers: dict[CaptionSplit, list[int]] = {}
    for number, split in enumerate(known_splits(values, Path(source)), start=1):
        numbers.setdefault(split or "train", []).append(number)
    return {split: partial(columns.rows, table, source, some) for split, some in numbers.items()}


def _of_beir(folder: Path, judgements: Path) -> SplitOfTexts:
    """Return the relevant pairs of a file of judgements; a title goes in front of its document's text."""
    corpus, queries = (_named_texts(folder / name) for name in ("corpus.jsonl", "queries.jsonl"))
    table = read_table(judgements)
    query, document, score = (
        column_values(table, find_column(table, (name,), judgements, "judgements"))
        for name in ("query-id", "corpus-id", "score")
    )
    pairs, gains, numbers = [], [], []
    for number, row in enumerate(zip(query, document, score, strict=True), start=1):
        try:
            gain = float(row[2])
        except (TypeError, ValueError) as error:
            raise DataError(f"{judgements} has no number as score in row {number}: {row[2]!r}") from error
        if gain > 0:
            pairs.append((str(row[0]), str(row[1])))
            gains.append(gain)
            numbers.append(number)
    texts = {
        "query": [queries.get(name, "") for name, _ in pairs],
        "document": [corpus.get(name, "") for _, name in pairs],
    }
    return SplitOfTexts(str(judgements), texts, numbers, names=pairs, gains=gains, corpus=corpus)


def _named_texts(file: Path) -> dict[str, str]:
    """Return the texts of a file of BEIR by name."""
    table = read_table(file)
    names, texts = (column_values(table, find_column(table, (name,), file, "texts")) for name in ("_id", "text"))
    titles = column_values(table, "title") if "title" in table else [None] * len(names)
    return {
        str(name): " ".join(filter(None, (as_text(title), as_text(text))))
        for name, title, text in zip(names, titles, texts, strict=True)
    }


def _found(table: Columns, path: Path, *kinds: Sequence[str]) -> list[str | None]:
    """Return the column of each kind, None where there is none."""
    return [find_column(table, names, path, "") if has_column(table, names) else None for names in kinds]


def _chosen(table: Columns, name: str | None, whole: Sequence[tuple[int, str]]) -> list[str] | None:
    """Return a column's values of some rows as texts; None without the column."""
    if name is None:
        return None
    values = column_values(table, name)
    return [str(values[row]) for row, _ in whole]


def _several(value: Any) -> list[str]:
    """Return the texts of a cell: those of a list, or one; empty texts are none."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return [text for text in map(as_text, values) if text]


def _natural(name: str) -> tuple[str, int]:
    """Return a key that sorts negative_2 before negative_10."""
    stem, _, number = name.strip().lower().partition("_")
    return stem, int(number or 0)
