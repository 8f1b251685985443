"""Texts as data: single ones, or pairs of queries and documents with given negatives."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antipodes.data.caption_tables import CaptionSplit
from antipodes.data.columns import Modality, Raw
from antipodes.data.dataset import Classes, Samples, check_row_numbers, choose_classes, limited
from antipodes.data.describe import group_equal
from antipodes.data.folder import natural
from antipodes.data.judgements import Judgements
from antipodes.data.pictures import row_keys
from antipodes.data.text_tables import SplitOfTexts, TextColumns, text_splits
from antipodes.files import DataError
from antipodes.identity import NEGATIVE_INPUT, content_ids
from antipodes.plain_text import printable


class Texts(Samples):
    """Rows of texts, as input `text`, or of pairs of texts, as inputs `query` and `document`.

    - A ``.txt`` file has one text a line.
    - A table (csv, tsv, jsonl, json, parquet) has a column ``text``, or two columns that make pairs: ``query``,
      ``anchor`` or ``question`` with ``document``, ``passage``, ``positive`` or ``answer``. ``negative``,
      ``negative_1`` to ``negative_k`` hold documents that do not answer the row's query, and become the inputs
      ``negative_1`` to ``negative_k``. A list in a cell is several documents.
    - ``split`` (train, validation, test), ``label`` and ``id`` or ``group`` are read, too: rows of one group are never
      negatives of each other. All other columns are not used, and ``describe`` names them.
    - In a folder, ``train.*``, ``val.*`` and ``test.*`` are the splits; a folder that ``save_to_disk`` of Hugging Face
      datasets wrote is read as it is.
    - A folder or archive in BEIR's layout has ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/train.tsv`` and so on; a
      row is a query with a document that is relevant for it.
    - ``hf:<dataset>`` is a table of Hugging Face, by name or folder, where the library `datasets` is installed.

    Empty texts and those that are too long are left out and listed in ``skipped``.

    Args:
        path: the file or the folder.
        split: "train", "val" or "test".
        limit: keep only this many rows, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        longest: characters that a text may have.
        negatives: given negatives of a row, at most; None takes all.
        columns: the column of the texts, or the two of a pair, where they have other names.
        label: the column of the labels, where it has another name.
        config: the configuration of a dataset of Hugging Face that has several.

    Raises:
        ValueError: if the file is missing, cannot be read, has no such column, or no text that can be used.
    """

    in_memory = True

    def __init__(
        self,
        path: str,
        split: CaptionSplit = "train",
        limit: int | None = None,
        classes: Classes = None,
        longest: int = 100_000,
        negatives: int | None = None,
        columns: Sequence[str] | None = None,
        label: str | None = None,
        config: str | None = None,
    ) -> None:
        if split not in ("train", "val", "test"):
            raise ValueError(f'split must be "train", "val" or "test", got {split!r}')
        if negatives is not None and negatives < 0:
            raise ValueError(f"negatives must be at least 0, got {negatives}")
        self.path, self.split = path, split
        self._options: dict[str, Any] = {
            "classes": classes,
            "longest": longest,
            "negatives": negatives,
            "columns": columns,
        }
        self._options |= {"label": label, "config": config}
        splits = text_splits(path, TextColumns(columns, label), config)
        self._splits = frozenset(splits)
        if split not in splits:
            there = f"only {', '.join(sorted(splits))}" if splits else "give a table, or a folder with train.*"
            raise DataError(f"{path} has no {split} split: {there}")
        rows = splits[split]()
        self.name = printable(Path(path.removeprefix("hf:")).expanduser().resolve().stem)
        self.unused_columns = rows.unused
        inputs = {name: texts for name, texts in rows.inputs.items() if _wanted(name, negatives)}
        keep = self._usable(rows, inputs, longest)
        names = sorted(set(rows.labels or ()), key=natural)
        number = {name: place for place, name in enumerate(names)}
        labels = [number[rows.labels[i]] for i in keep] if rows.labels is not None else []
        if classes is not None:
            chosen, labels, names = choose_classes(labels, names, classes, path)
            keep = [keep[i] for i in chosen]
        if (some := limited(len(keep), limit)) is not None:
            keep, labels = [keep[i] for i in some.tolist()], [labels[i] for i in some.tolist()] if names else []
        self._texts = {name: [column[i] for i in keep] for name, column in inputs.items()}
        self.modalities: dict[str, Modality] = dict.fromkeys(inputs, "text")
        if names:
            self.labels, self.classes = torch.tensor(labels), tuple(names)
        if rows.groups is not None:
            sample = {name: place for place, name in enumerate(dict.fromkeys(rows.groups))}
            self.samples = torch.tensor([sample[rows.groups[i]] for i in keep])
        self._beir = rows if rows.corpus is not None else None
        self._names = None if rows.names is None else [rows.names[i] for i in keep]

    def _usable(self, rows: SplitOfTexts, inputs: dict[str, list[str]], longest: int) -> list[int]:
        """Return the rows whose texts can be used, and list the others in `skipped`."""
        whole = [name for name in inputs if not name.startswith(NEGATIVE_INPUT)]
        keep, skipped = [], []
        for place, number in enumerate(rows.numbers):
            lengths = [len(inputs[name][place]) for name in inputs]
            if not all(inputs[name][place] for name in whole):
                skipped.append((f"{Path(rows.source).name} row {number}", "empty text"))
            elif max(lengths) > longest:
                skipped.append((f"{Path(rows.source).name} row {number}", f"text of more than {longest:,} characters"))
            else:
                keep.append(place)
        self.skipped = skipped
        if not keep:
            raise DataError(f"{rows.source} holds no text that can be used: it needs one in every row")
        return keep

    def __len__(self) -> int:
        return len(next(iter(self._texts.values())))

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return the texts of these rows by input, a list of b strings each."""
        check_row_numbers(rows, len(self))
        return {name: [column[i] for i in rows.tolist()] for name, column in self._texts.items()}

    @cached_property
    def input_ids(self) -> dict[str, Tensor] | None:
        """The identity of every text of pairs, (n,) int64 by input: equal texts are one; -1 where there is none.

        Queries of one group are one query, so that a document of the group is no negative of any of them.
        """
        if "query" not in self._texts:
            return None
        found = {name: content_ids(column) for name, column in self._texts.items()}
        for name, column in self._texts.items():
            if name.startswith(NEGATIVE_INPUT):
                found[name][torch.tensor([not text for text in column])] = -1
        if self.samples is not None:
            groups = group_equal(self._texts["query"], self.samples.tolist())
            alone = groups < 0
            found["query"] = torch.where(alone, int(groups.max()) + 1 + torch.arange(len(groups)), groups)
        return found

    @property
    def judged(self) -> Judgements | None:
        """What the judgements of a BEIR folder say: all of these queries', among the whole corpus; None elsewhere."""
        rows = self._beir
        if rows is None or rows.corpus is None or rows.names is None or rows.gains is None or self._names is None:
            return None
        asked = dict(zip((query for query, _ in self._names), self._texts["query"], strict=True))
        number = {name: place for place, name in enumerate(asked)}
        place = {name: number for number, name in enumerate(rows.corpus)}
        gains = {
            (number[query], place[document]): gain
            for (query, document), gain in zip(rows.names, rows.gains, strict=True)
            if query in number and document in place
        }
        relevant, values = torch.tensor(list(gains)), torch.tensor(list(gains.values()))
        return Judgements(list(asked.values()), list(rows.corpus.values()), relevant, values)

    def describe(self) -> list[str]:
        """Say what was found; given negatives are counted instead of named."""
        _, *others = super().describe()
        given = [name for name in self._texts if name.startswith(NEGATIVE_INPUT)]
        whole = " and ".join(name for name in self._texts if name not in given)
        return [f"{len(self):,} rows of {whole}" + (f" with up to {len(given)} negatives" if given else ""), *others]

    def keys(self) -> Tensor:
        """Return digests of every row's texts, which are its name and its content."""
        rows = ["\0".join(texts) for texts in zip(*self._texts.values(), strict=True)]
        return row_keys(rows, rows)

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of all texts, labels and groups."""
        digest = hashlib.blake2b(" ".join(self._texts).encode(), digest_size=8)
        for column in self._texts.values():
            digest.update("\0".join(column).encode(errors="surrogateescape"))
        for numbers in (self.labels, self.samples):
            digest.update(b"none" if numbers is None else numbers.numpy().tobytes())
        return digest.hexdigest()

    def held_out(self, limit: int | None = None) -> Texts | None:
        """Return the test split, or the validation split where there is no test; None when neither or this is it."""
        return self._other("test", limit) or self._other("val", limit)

    def validation(self, limit: int | None = None) -> Texts | None:
        """Return the validation split where there is also a test split."""
        return self._other("val", limit) if "test" in self._splits else None

    def _other(self, split: CaptionSplit, limit: int | None) -> Texts | None:
        """Return another split than that of training; None where there is none, or this is no training split."""
        if self.split != "train" or split not in self._splits:
            return None
        return Texts(self.path, split, limit, **self._options)


def _wanted(name: str, negatives: int | None) -> bool:
    """Return True for texts, queries, documents and the first given negatives."""
    return (
        negatives is None or not name.startswith(NEGATIVE_INPUT) or int(name.removeprefix(NEGATIVE_INPUT)) <= negatives
    )
