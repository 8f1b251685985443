"""Pairs of a query and a document, or of a caption and an image, as an audit works on them.

Training pushes a query away from the documents of other pairs. That is wrong where

1. several queries have one document (`same document`), or equal queries have different ones (`same query`);
2. another document is about as similar to the query as its own (`false negative`): s > s+ - margin |s+|, and above what
   chance explains.

Pairs that share a query or a document, directly or through others, are one group: a connected component. A sample is
`nearer to another query` when another query is more similar to its document than its own, and an `unlike pair` when
query and document are no more similar than strangers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.audited_texts import equal_texts, text_key
from antipodes.auditing.findings import EXACT, FALSE_NEGATIVE, NEAR, AuditOptions, Findings, Notice, Pair, similarity_of
from antipodes.auditing.groups import join, listed_pairs
from antipodes.auditing.pair_columns import PairColumns
from antipodes.auditing.photos import Photos
from antipodes.auditing.text_overlap import SHARE, WordOverlap, normalise, propose_texts
from antipodes.neighbour_search import Search
from antipodes.progress import Progress, progress_bar
from antipodes.seeding import generator

SAME_DOCUMENT, SAME_QUERY = "same document", "same query"
NEARER, UNLIKE = "nearer to another query", "unlike pair"
_REFERENCE = 1024  # random documents or queries that say how similar strangers are
_BLOCK = 512


@dataclass(frozen=True, kw_only=True)
class AuditedPairs(AuditedData):
    """Pairs with the vectors of both sides in one space; `vectors` are those of the queries.

    Args:
        queries: n texts.
        documents: n texts, or the paths of n images.
        document_vectors: (n, F).
        photos: the images, where the documents are images.
        image_rows: (n,) which of them each pair has.
    """

    unit: ClassVar[str] = "pair"
    pair_kinds: ClassVar[tuple[str, ...]] = (EXACT, NEAR, SAME_DOCUMENT, SAME_QUERY, FALSE_NEGATIVE)
    notice_kinds: ClassVar[tuple[str, ...]] = (NEARER, UNLIKE)

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    document_vectors: NDArray[np.float32]
    photos: Photos | None = None
    image_rows: NDArray[np.int64] | None = None

    def search(self, options: AuditOptions, shown: bool) -> Findings:
        """Find pairs that share a query or a document, suspected false negatives, and pairs that stand out."""
        count = len(self)
        with progress_bar("copies", shown=shown) as progress:
            queries = _Side(self.queries, progress)
            documents = _Side(self.documents, progress) if self.photos is None else self._images()
        queries_unit, documents_unit = (_unit(each) for each in (self.vectors.embeddings, self.document_vectors))
        found = self._shared(queries, documents, queries_unit, documents_unit)
        linked = ((int(a), int(b)) for side in (queries.near, documents.near) for a, b in _chains(side))
        links = tuple(linked)
        groups = join(count, links)
        own = (queries_unit * documents_unit).sum(1)
        with progress_bar("neighbours", shown=shown) as progress:
            suspected = _suspected(queries_unit, documents_unit, own, documents.near, groups, options, progress)
        notices = [
            *_nearer(queries_unit, documents_unit, own, queries.near, groups),
            *_unlike(queries_unit, documents_unit, own, options.seed),
        ]
        kinds = (FALSE_NEGATIVE,) if options.group_false_negatives else ()
        if options.group_false_negatives:
            groups = join(count, [*links, *((pair.a, pair.b) for pair in suspected)])
        pairs = sorted([*found, *suspected], key=lambda p: (self.pair_kinds.index(p.kind), -p.similarity, p.a, p.b))
        return Findings(PairColumns.of(pairs), tuple(notices), groups, linked=frozenset(kinds), links=links)

    def _images(self) -> _Side:
        """Images as documents: equal where their files are; all captions of one image have one sample."""
        assert self.photos is not None
        assert self.image_rows is not None
        copies = self.photos.copies() or []
        content = np.arange(len(self.photos))
        for first, other in copies:
            content[other] = content[first]
        return _Side.of_contents(content[self.image_rows], self.image_rows)

    def _shared(self, queries: _Side, documents: _Side, queries_unit: Tensor, documents_unit: Tensor) -> list[Pair]:
        """Pairs that have the same query, the same document or both."""
        found = []
        seen = set()
        for side in (queries, documents):
            for a, b in listed_pairs(side.near):
                if (a, b) in seen or documents.is_one_sample(a, b):
                    continue
                seen.add((a, b))
                same_query, same_document = queries.are_near(a, b), documents.are_near(a, b)
                if same_query and same_document:
                    kind = EXACT if queries.are_equal(a, b) and documents.are_equal(a, b) else NEAR
                else:
                    kind = SAME_QUERY if same_query else SAME_DOCUMENT
                vectors = documents_unit if kind == SAME_QUERY else queries_unit  # the side that differs
                found.append(Pair(a, b, similarity_of(vectors, a, b), 1.0, kind))
        return found

    def rank(self, row: int) -> tuple[float, ...]:
        """The pair with the longest document represents a group."""
        return (float(len(self.documents[row])) if self.photos is None else 0.0, float(len(self.queries[row])))

    def key(self, row: int) -> str:
        """The digest of both sides."""
        return text_key(f"{self.queries[row]}\0{self.documents[row]}")

    def image(self, row: int) -> Image.Image | None:
        """The image of a pair, if the documents are images."""
        if self.photos is None or self.image_rows is None:
            return None
        try:
            return self.photos.image(int(self.image_rows[row]))
        except (ValueError, OSError):
            return None

    def text(self, row: int) -> str:
        """Both sides, or the caption of an image."""
        return f"{self.queries[row]}\n→ {self.documents[row]}" if self.photos is None else self.queries[row]

    def fields(self, row: int) -> dict[str, str]:
        """Both sides by the names of their columns."""
        second = "document" if self.photos is None else "image"
        return {"query" if self.photos is None else "caption": self.queries[row], second: self.documents[row]}


class _Side:
    """The queries or the documents: which are equal, and which nearly.

    Attributes:
        equal: (n,) group of equal ones, negative = alone.
        near: (n,) group of equal and nearly equal ones, directly or through others.
    """

    def __init__(self, texts: Sequence[str], progress: Progress) -> None:
        normalised = [normalise(text) for text in texts]
        self.samples: NDArray[np.int64] | None = None
        copies = equal_texts(normalised)
        self.equal = join(len(texts), copies)
        later = {other for _, other in copies}
        firsts = [row for row in range(len(texts)) if row not in later]
        distinct = [texts[row] for row in firsts]
        overlap = WordOverlap(distinct)
        proposed = propose_texts([normalised[row] for row in firsts], progress).tolist()
        near = [(firsts[a], firsts[b]) for a, b in proposed if overlap(a, b) >= SHARE]
        self.near = join(len(texts), [*copies, *near])

    @classmethod
    def of_contents(cls, contents: NDArray[np.int64], samples: NDArray[np.int64]) -> _Side:
        """A side of numbered contents, some of which belong to one sample by design."""
        side = cls.__new__(cls)
        firsts: dict[int, int] = {}
        links = [(firsts.setdefault(int(content), row), row) for row, content in enumerate(contents)]
        side.equal = side.near = join(len(contents), [(a, b) for a, b in links if a != b])
        side.samples = samples
        return side

    def are_equal(self, a: int, b: int) -> bool:
        return bool(self.equal[a] >= 0 and self.equal[a] == self.equal[b])

    def are_near(self, a: int, b: int) -> bool:
        return bool(self.near[a] >= 0 and self.near[a] == self.near[b])

    def is_one_sample(self, a: int, b: int) -> bool:
        return self.samples is not None and bool(self.samples[a] == self.samples[b])


def _unit(vectors: NDArray[np.float32]) -> Tensor:
    return torch.nn.functional.normalize(torch.from_numpy(vectors).float())


def _chains(groups: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs that connect each group: its first row with every other."""
    firsts: dict[int, int] = {}
    links = ((firsts.setdefault(int(groups[row]), row), row) for row in np.flatnonzero(groups >= 0).tolist())
    return [(first, row) for first, row in links if first != row]


def _contents(groups: NDArray[np.int64]) -> Tensor:
    """A number of each row's content: that of its group, or one of its own."""
    rows = torch.arange(len(groups))
    known = torch.from_numpy(groups)
    return torch.where(known >= 0, known, rows + len(groups))


def _suspected(
    queries: Tensor,
    documents: Tensor,
    own: Tensor,
    near: NDArray[np.int64],
    groups: NDArray[np.int64],
    options: AuditOptions,
    progress: Progress,
) -> list[Pair]:
    """Documents of other pairs that are about as similar to a query as its own, and more than chance explains."""
    content = _contents(near)
    firsts, _ = _firsts(content)
    component = _contents(groups)
    search = Search(documents[firsts].contiguous())
    mean, deviation = _strangers(queries, documents, options.seed)
    z = NormalDist().inv_cdf(1 - 1 / max(len(queries), 2) ** 2)
    bounds = torch.maximum(own - options.margin * own.abs(), mean + z * deviation)
    found: dict[tuple[int, int], Pair] = {}
    for start in range(0, len(queries), _BLOCK):
        similarities, columns, _ = search(queries[start : start + _BLOCK], min(options.k + 1, len(firsts)))
        rows = firsts[columns.clamp(min=0)]
        asked = torch.arange(start, start + len(rows))[:, None]
        good = (columns >= 0) & (component[rows] != component[asked]) & (similarities > bounds[asked])
        for place, column in good.nonzero().tolist():
            a, b = start + place, int(rows[place, column])
            similarity = min(float(similarities[place, column]), 1.0)
            other = found.get((b, a))
            if other is None:
                found[a, b] = Pair(a, b, similarity, float(bounds[a]), FALSE_NEGATIVE)
        progress(min(start + _BLOCK, len(queries)), len(queries))
    return list(found.values())


def _nearer(
    queries: Tensor, documents: Tensor, own: Tensor, near: NDArray[np.int64], groups: NDArray[np.int64]
) -> list[Notice]:
    """Pairs whose document is more similar to the query of another group than to its own."""
    firsts, _ = _firsts(_contents(near))
    component = _contents(groups)
    search = Search(queries[firsts].contiguous())
    found = []
    for start in range(0, len(documents), _BLOCK):
        similarities, columns, _ = search(documents[start : start + _BLOCK], min(3, len(firsts)))
        for place in range(len(columns)):
            row = start + place
            for similarity, column in zip(similarities[place].tolist(), columns[place].tolist(), strict=True):
                other = int(firsts[column]) if column >= 0 else row
                if component[other] != component[row]:
                    if similarity > float(own[row]):
                        reason = f"its own query has {float(own[row]):.3f}, another {similarity:.3f}"
                        found.append(Notice(row, NEARER, float(own[row]), similarity, other, reason))
                    break
    return sorted(found, key=lambda notice: (notice.score - notice.bound, notice.row))


def _unlike(queries: Tensor, documents: Tensor, own: Tensor, seed: int) -> list[Notice]:
    """Pairs that are no more similar than strangers are on average."""
    mean, _ = _strangers(queries, documents, seed)
    rows = (own < mean).nonzero().flatten().tolist()
    found = [
        Notice(row, UNLIKE, float(own[row]), float(mean[row]), reason="no more similar than strangers") for row in rows
    ]
    return sorted(found, key=lambda notice: (notice.score - notice.bound, notice.row))


def _strangers(queries: Tensor, documents: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (n,) of every query's similarity to random documents of other pairs."""
    chosen = torch.randperm(len(documents), generator=generator("audit", seed))[:_REFERENCE]
    sums, squares = torch.zeros(len(queries)), torch.zeros(len(queries))
    counts = torch.zeros(len(queries))
    for start in range(0, len(queries), _BLOCK):
        similarity = queries[start : start + _BLOCK] @ documents[chosen].T
        own = chosen == torch.arange(start, start + len(similarity))[:, None]
        similarity = similarity.masked_fill(own, 0.0)
        rows = slice(start, start + len(similarity))
        counts[rows] = (~own).sum(1).float().clamp(min=1)
        sums[rows], squares[rows] = similarity.sum(1), similarity.square().sum(1)
    mean = sums / counts
    return mean, (squares / counts - mean.square()).clamp(min=0).sqrt()


def _firsts(content: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of each content, and the number of the content of every row."""
    names, number = content.unique(return_inverse=True)
    firsts = torch.full((len(names),), len(content))
    firsts.scatter_reduce_(0, number, torch.arange(len(content)), "amin")
    return firsts, number
