"""`antipodes.mine`: hard negatives for queries, and what among the candidates may be a false negative.

1. Queries and documents are embedded, unless they are vectors. Documents of equal content count once.
2. Every query finds its most similar documents, apart from its positives and copies of them or of itself. The search is
   exact, in blocks; a large corpus is searched through an inverted file.
3. A candidate is suspected to be a false negative if its similarity to the query exceeds that of the positive, less a
   margin, or if its similarity to the positive does. The k first of the others are the hard negatives.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.arguments import number, whole
from antipodes.auditing.mined_files import Format, check_outputs, write_mined
from antipodes.auditing.mining_inputs import Collection, Opener, open_collection, read_positives
from antipodes.neighbour_search import Search
from antipodes.progress import progress_bar

Rescore = Callable[[list[tuple[Any, Any]]], Any]
"""Pairs of a query and a document to a score for each, as a cross encoder's `predict`."""

DEPTH = 1000
"""Ranks that are searched at most if the rank range has no end."""

QUERIES = 512  # searched and judged at once
NUMBERS = 2**23  # of vectors that are gathered at a time, to compare candidates with positives


@dataclass(frozen=True)
class Mined:
    """Hard negatives of m queries.

    Args:
        indices: (m, k) int64, rows of the corpus, the most similar first; -1 where a query has fewer.
        scores: (m, k) float32, their cosine to the query, or what `rescore` says; NaN where there is none.
        suspected: a table of the candidates that were passed over, by column: `query` and `document` (rows), `score`,
            `positive_score` (of the positive that was least similar to the query) and `near`: which the candidate was
            too similar to, `query`, `positive` or `both`.
        false_negative_rate: the estimated share of false negatives among hard negatives without a margin: of the k
            nearest candidates of every query in the rank range, the share that is suspected.
        method: how the corpus was searched: `exact`, or the inverted file with its recall.
    """

    indices: NDArray[np.int64]
    scores: NDArray[np.float32]
    suspected: dict[str, NDArray[Any]] = field(repr=False)
    false_negative_rate: float
    method: str
    queries: Collection = field(repr=False)
    corpus: Collection = field(repr=False)
    positives: NDArray[np.int64] = field(repr=False)

    def save(self, path: str | Path, *, format: Format = "triplet", force: bool = False) -> None:
        """Write the negatives to a .parquet or .jsonl file, and what is suspected to a table next to it.

        Args:
            path: the file; `negatives.parquet` has its suspected candidates in `negatives.suspected.parquet`.
            format: `triplet` has columns anchor, positive and negative, a row for every positive and negative;
                `n-tuple` has anchor, positive, negative_1 to negative_k, without queries that have fewer; `list` has
                query, pos and neg, the last two as lists. Texts are written as such, other things by their names.
            force: replace files that are no earlier result.

        Raises:
            ValueError: if the files cannot be written, or other files are there.
        """
        write_mined(self, path, format, force)


def mine(
    queries: Any,
    corpus: Any,
    positives: Any,
    *,
    encoder: Any = None,
    k: int = 8,
    margin: float = 0.05,
    relative: bool = True,
    ranks: tuple[int, int | None] = (0, None),
    rescore: Rescore | None = None,
    out: str | Path | None = None,
    format: Format = "triplet",
    progress: bool = False,
    force: bool = False,
) -> Mined:
    """Mine hard negatives: for every query the k most similar documents that are unlikely to be relevant.

    Args:
        queries: a list of texts or of photos, vectors (n, F), what `antipodes.embed` returns, a table by column, or the
            path of a table (csv, tsv, jsonl, json, parquet) with a column of texts or embeddings and one of ids, of
            texts one a line (.txt), of vectors (.npy, .npz), or of a folder of photos.
        corpus: the documents, likewise.
        positives: for every query the row or the id of its document, or a list of several; a mapping of the ids of
            queries to those of documents; or a file of pairs: relevance judgements (query-id, corpus-id, score; TREC's
            four columns), or rows of one set (row and group, row and other), as an audit writes them.
        encoder: a run, the name of an encoder, what `antipodes.load` returns, or for texts any function of a list, such
            as a sentence-transformers model's `encode`. By default MiniLM for texts and EfficientNet-Lite0 for photos.
        k: negatives of every query.
        margin: a candidate is kept if its score s <= s+ - margin |s+| (relative) or s <= s+ - margin, where s+ is the
            score of the query's positive, of several the lowest. Its similarity to a positive must satisfy the same.
        relative: whether the margin is a share of the positive's score.
        ranks: the first rank of candidates and the rank to stop before. Rank 0 is the most similar document that is
            neither a positive nor a copy. Without an end the search goes as deep as it must, at most 1,000 ranks.
        rescore: a function of pairs (query, document) that gives each a better score, such as a cross encoder's
            `predict`. It scores the candidates in the rank range (without an end 10 k of them) and the positives; the
            similarity to the positive stays that of the vectors.
        out: file for the negatives, as `Mined.save` writes it; nothing is written if not given.
        format: of that file.
        progress: show on standard error how far the work is.
        force: replace files at `out` that are no earlier result.

    Returns:
        The negatives by query; a query without a positive has none.

    Raises:
        ValueError: for input that cannot be read or does not match; nothing is written then.

    Example:
        >>> documents = np.array([[1.0, 0.0], [0.9, 0.1], [0.6, 0.8], [0.0, 1.0]])
        >>> mine(documents[:1], documents, [0], k=2).indices.tolist()
        [[2, 3]]
    """
    k, margin = whole("k", k, least=1), number("margin", margin)
    first, last = _rank_range(ranks)
    if rescore is not None and not callable(rescore):
        raise ValueError(f"rescore must be a function of pairs (query, document), got a {type(rescore).__name__}")
    if out is not None:
        check_outputs(out, format, force)
    opener = Opener(encoder, progress)
    documents = open_collection(corpus, "corpus", opener)  # first: encoders that are fitted are fitted to the documents
    asked = open_collection(queries, "queries", opener)
    if asked.vectors.shape[1] != documents.vectors.shape[1]:
        raise ValueError(
            f"queries have {asked.vectors.shape[1]} numbers each and the corpus {documents.vectors.shape[1]}: embed "
            "both with one encoder"
        )
    pairs = read_positives(positives, asked, documents)
    mining = _Mining(asked, documents, pairs, k, margin, bool(relative), first, last, rescore)
    with progress_bar("mining", shown=progress) as told:
        mined = mining.run(told)
    if out is not None:
        mined.save(out, format=format, force=force)
    return mined


class _Judged(NamedTuple):
    """Candidates (b, K) of some queries in the order of their scores.

    Attributes:
        rows: numbers of contents.
        scores: to the query.
        inside: whether their rank is in the range.
        near_query: whether the score exceeds the limit.
        near_positive: whether the similarity to a positive does.
        leading: whether they are among the k most similar in the rank range.
        lowest: (b,) score of the positive that is least similar to the query.
    """

    rows: Tensor
    scores: Tensor
    inside: Tensor
    near_query: Tensor
    near_positive: Tensor
    leading: Tensor
    lowest: Tensor

    @property
    def suspected(self) -> Tensor:
        """Whether they are in the rank range and near the query or a positive."""
        return self.inside & (self.near_query | self.near_positive)

    @property
    def kept(self) -> Tensor:
        """Whether they are in the rank range and near neither."""
        return self.inside & ~(self.near_query | self.near_positive)


class _Mining:
    """The work of one call of `mine`: contents instead of documents, so that copies are one candidate."""

    def __init__(
        self,
        queries: Collection,
        corpus: Collection,
        positives: NDArray[np.int64],
        k: int,
        margin: float,
        relative: bool,
        first: int,
        last: int | None,
        rescore: Rescore | None,
    ) -> None:
        self.queries, self.corpus, self.positives = queries, corpus, positives
        self.k, self.margin, self.relative = k, margin, relative
        self.first, self.last, self.rescore = first, last, rescore
        contents, number_of = corpus.contents.unique(return_inverse=True)
        # the first document of every content stands for all of them
        firsts = torch.full((len(contents),), len(corpus))
        firsts.scatter_reduce_(0, number_of, torch.arange(len(corpus)), "amin")
        numbers = torch.arange(len(contents))
        if len(contents) == len(corpus):  # no copies: numbers are rows, and no vector has to be moved
            numbers, number_of, self.vectors = firsts, torch.arange(len(corpus)), corpus.vectors
            self.representatives = number_of
        else:
            self.representatives, self.vectors = firsts, corpus.vectors[firsts]
        pairs = torch.from_numpy(positives)
        distinct = torch.stack((pairs[:, 0], number_of[pairs[:, 1]])).unique(dim=1).contiguous()
        self.pair_queries, self.pair_contents = distinct
        place = torch.searchsorted(contents, queries.contents).clamp(max=len(contents) - 1)
        itself = (contents[place] == queries.contents).nonzero()[:, 0]  # queries that are in the corpus as well
        own = torch.stack((itself, numbers[place[itself]]))
        self.excluded = torch.cat((distinct, own), dim=1).unique(dim=1).contiguous()
        self.search = Search(self.vectors)

    def run(self, progress: Callable[[int, int], None]) -> Mined:
        """Search and judge some queries at a time."""
        count = len(self.queries)
        indices, scores = torch.full((count, self.k), -1), torch.full((count, self.k), torch.nan)
        passed: list[dict[str, NDArray[Any]]] = []
        suspected = leading = 0
        have = torch.zeros(count, dtype=torch.bool)
        have[self.pair_queries] = True
        asked = have.nonzero()[:, 0]
        if len(asked) < count:
            warnings.warn(
                f"{count - len(asked)} of {count} queries have no positive: they get no negatives", stacklevel=3
            )
        for start in range(0, len(asked), QUERIES):
            rows = asked[start : start + QUERIES]
            for some, judged in self._judged(rows):
                kept = judged.kept
                place = kept.cumsum(1) - kept.long()  # how many were kept before
                chosen = kept & (place < self.k)
                line, column = chosen.nonzero(as_tuple=True)
                found = judged.rows[line, column]
                indices[some[line], place[line, column]] = self.representatives[found]
                scores[some[line], place[line, column]] = judged.scores[line, column]
                passed.append(self._passed_over(some, judged, judged.suspected & (place < self.k)))
                suspected += int((judged.leading & judged.suspected).sum())
                leading += int(judged.leading.sum())
            progress(min(start + QUERIES, len(asked)), len(asked))
        short = int(((indices < 0).any(1) & have).sum())
        if short:
            warnings.warn(self._shortage(short, suspected, leading), stacklevel=3)
        table = {name: np.concatenate([part[name] for part in passed]) for name in passed[0]}
        rate = suspected / leading if leading else math.nan
        return Mined(
            indices.numpy(), scores.numpy(), table, rate, self.search.method, self.queries, self.corpus, self.positives
        )

    def _shortage(self, short: int, suspected: int, leading: int) -> str:
        """Say that some queries have too few negatives; and why, where the margin is asked of many positives."""
        sentence = f"{short} of {len(self.queries)} queries have fewer than {self.k} negatives in the rank range"
        several = len(self.pair_queries) / max(len(self.pair_queries.unique()), 1)
        if 2 * suspected < leading or several < 2:
            return sentence
        return (
            f"{sentence}: the margin goes by a query's least similar positive, and there are {several:.0f} a query. "
            "If every relevant document is listed, no margin is needed: give margin=-2 and relative=False"
        )

    def _judged(self, rows: Tensor) -> Iterator[tuple[Tensor, _Judged]]:
        """Judge queries; those without k negatives again with more candidates, as long as the rank range allows it."""
        every = self.vectors.shape[0]
        end = self.last if self.last is not None else self.first + (10 * self.k if self.rescore else DEPTH)
        depth = end if self.rescore is not None or self.last is not None else self.first + 4 * self.k
        while len(rows):
            depth = min(depth, end)
            judged = self._judge(rows, depth)
            done = judged.kept.sum(1) >= self.k
            if depth >= min(end, every):
                done[:] = True
            yield rows[done], _Judged(*(part[done] for part in judged))
            rows, depth = rows[~done], 4 * depth

    def _judge(self, rows: Tensor, depth: int) -> _Judged:
        """Judge the candidates of some queries up to a rank."""
        queries, positives = self.queries.vectors[rows], self._lists(rows, self.pair_queries, self.pair_contents)
        excluded = self._lists(rows, self.excluded[0], self.excluded[1])
        scores, candidates, _ = self.search(queries, min(depth + excluded.shape[1], len(self.vectors)))
        here = (candidates >= 0) & ~_is_in(candidates, excluded)
        rank = here.cumsum(1) - 1
        inside = here & (rank >= self.first) & (rank < depth)
        leading = inside & (rank < self.first + self.k)
        of_positives = torch.einsum("bd,bpd->bp", queries, self.vectors[positives.clamp(min=0)])
        of_positives = of_positives.masked_fill(positives < 0, torch.inf)
        near_positive = self._near_positives(candidates, positives, self._limit(of_positives))
        if self.rescore is not None:
            scores, of_positives = self._rescored(rows, candidates, inside, scores, positives, of_positives)
        lowest = of_positives.amin(1)
        near_query = scores > self._limit(lowest)[:, None]
        judged = _Judged(candidates, scores, inside, near_query, near_positive, leading, lowest)
        if self.rescore is None:
            return judged
        order = scores.masked_fill(~inside, -torch.inf).argsort(dim=1, descending=True, stable=True)
        sorted_rows, scores, inside, near_query, near_positive, leading = (
            part.gather(1, order) for part in judged[:-1]
        )
        return _Judged(sorted_rows, scores, inside, near_query, near_positive, leading, lowest)

    def _limit(self, positives: Tensor) -> Tensor:
        """The highest score that a negative may have if the positive has this score."""
        return positives - self.margin * (positives.abs() if self.relative else 1.0)

    def _near_positives(self, candidates: Tensor, positives: Tensor, limits: Tensor) -> Tensor:
        """Whether candidates (b, K) are more similar to one of the positives (b, P) than its limit (b, P) allows."""
        each = max(1, (candidates.shape[1] + positives.shape[1]) * self.vectors.shape[1])
        found = []
        for part in torch.arange(len(candidates)).split(max(1, NUMBERS // each)):
            theirs, ours = self.vectors[candidates[part].clamp(min=0)], self.vectors[positives[part].clamp(min=0)]
            found.append((torch.bmm(theirs, ours.mT) > limits[part][:, None]).any(2))
        return torch.cat(found)

    def _rescored(
        self, rows: Tensor, candidates: Tensor, inside: Tensor, scores: Tensor, positives: Tensor, of_positives: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The scores of candidates in the rank range and of positives by the user's function."""
        assert self.rescore is not None
        scores, of_positives = scores.clone(), of_positives.clone()
        for places, contents, numbers in ((inside, candidates, scores), (positives >= 0, positives, of_positives)):
            line, column = places.nonzero(as_tuple=True)
            documents = self.representatives[contents[line, column]].tolist()
            pairs = [
                (self.queries.inputs[query], self.corpus.inputs[document])
                for query, document in zip(rows[line].tolist(), documents, strict=True)
            ]
            answer = torch.as_tensor(np.asarray(self.rescore(pairs) if pairs else [], dtype=np.float32))
            if answer.shape != (len(pairs),) or not bool(answer.isfinite().all()):
                raise ValueError(
                    f"rescore must return a finite number for each of {len(pairs)} pairs, got {tuple(answer.shape)}"
                )
            numbers[line, column] = answer
        return scores, of_positives

    def _lists(self, rows: Tensor, owners: Tensor, contents: Tensor) -> Tensor:
        """The contents of some queries (b, P), filled up with -1; owners (L,) are sorted."""
        start, end = torch.searchsorted(owners, rows), torch.searchsorted(owners, rows, right=True)
        place = start[:, None] + torch.arange(int((end - start).max()))
        return torch.where(place < end[:, None], contents[place.clamp(max=len(contents) - 1)], -1)

    def _passed_over(self, rows: Tensor, judged: _Judged, which: Tensor) -> dict[str, NDArray[Any]]:
        """The table of candidates that are suspected."""
        line, column = which.nonzero(as_tuple=True)
        query, positive = judged.near_query[line, column], judged.near_positive[line, column]
        names = np.array(["", "query", "positive", "both"], dtype=object)
        return {
            "query": rows[line].numpy(),
            "document": self.representatives[judged.rows[line, column]].numpy(),
            "score": judged.scores[line, column].numpy(),
            "positive_score": judged.lowest[line].numpy(),
            "near": names[(query + 2 * positive.long()).numpy()],
        }


def _is_in(candidates: Tensor, excluded: Tensor) -> Tensor:
    """Whether candidates (b, K) are in the list of their row (b, P); entries of the lists below 0 are none."""
    if not excluded.shape[1]:
        return torch.zeros_like(candidates, dtype=torch.bool)
    ordered = excluded.sort(1).values
    place = torch.searchsorted(ordered, candidates.contiguous()).clamp(max=ordered.shape[1] - 1)
    return (ordered.gather(1, place) == candidates) & (candidates >= 0)


def _rank_range(ranks: Any) -> tuple[int, int | None]:
    """The first rank, and the one to stop before.

    Raises:
        ValueError: if they are no such range.
    """
    if not isinstance(ranks, (tuple, list)) or len(ranks) != 2:
        raise ValueError(f"ranks must be two, the first and the one to stop before or None, got {ranks!r}")
    first = whole("ranks", ranks[0], least=0)
    last = None if ranks[1] is None else whole("ranks", ranks[1], least=0)
    if last is not None and last <= first:
        raise ValueError(f"ranks must end after they begin, got {first} to {last}")
    return first, last
