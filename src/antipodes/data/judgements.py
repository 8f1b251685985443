"""Relevance judgements: which documents of a dataset of text pairs answer which queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from antipodes.data.dataset import Samples

_CHUNK = 4096


@dataclass(frozen=True)
class Judgements:
    """What a search for queries among documents should find.

    Args:
        queries: m different queries.
        documents: n documents, among which to search.
        relevant: (p, 2) int64, the numbers of a query and of a document that answers it; every query is in a pair.
        gains: (p,) how relevant the document is, above 0.
    """

    queries: list[str]
    documents: list[str]
    relevant: Tensor
    gains: Tensor


def judgements(data: Samples, inputs: tuple[str, str] = ("query", "document")) -> Judgements:
    """Return the different queries and documents of a dataset, and which of them match.

    1. A dataset with judgements of its own, such as a folder in BEIR's layout, gives these.
    2. Otherwise a query and a document match if they stand in one row, or in rows of one sample. Equal texts
       are one text, so that no copy of the right document is counted as a wrong one.

    Args:
        data: Rows of two texts.
        inputs: The names of the two inputs.
    """
    if data.judged is not None and inputs == ("query", "document"):
        return data.judged
    different: list[list[str]] = []
    places: list[list[int]] = []
    for name in inputs:
        number: dict[str, int] = {}
        texts = (cast("list[str]", data.inputs(rows)[name]) for rows in torch.arange(len(data)).split(_CHUNK))
        places.append([number.setdefault(text, len(number)) for some in texts for text in some])
        different.append(list(number))
    members: dict[int, list[int]] = {}
    for row, sample in enumerate(data.sample_ids(torch.arange(len(data))).tolist()):
        members.setdefault(sample, []).append(row)
    pairs = {(places[0][a], places[1][b]) for rows in members.values() for a in rows for b in rows}
    return Judgements(different[0], different[1], torch.tensor(sorted(pairs)), torch.ones(len(pairs)))
