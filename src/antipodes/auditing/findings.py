"""What an audit finds in embeddings: pairs that are or may be the same thing, and samples that stand out.

In plain terms:
1. Every sample gets its nearest neighbours, and a background: how similar strangers are to it.
2. A pair is an `exact duplicate` when its files (or vectors) are equal; a `near duplicate` when both samples find the
   other close and, where there are pictures, the pixels agree; a likely `false negative` when each is among the other's
   neighbours and their similarity exceeds the thresholds of both.
3. A sample is an `outlier` when even its neighbours are far away compared with those of the rest, and of `other class`
   when its neighbours agree on a class that is not its label.
4. Duplicates are joined to groups, which the loss can read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.background import DISTANT, Background, measure_background
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.groups import equal_rows, join, listed_pairs
from antipodes.auditing.pair_columns import Pair as Pair
from antipodes.auditing.pair_columns import PairColumns
from antipodes.functional.neighbours import NearestRows
from antipodes.neighbour_search import nearest_others
from antipodes.progress import Progress

EXACT, NEAR, FALSE_NEGATIVE = "exact duplicate", "near duplicate", "false negative"
OUTLIER, OTHER_CLASS = "outlier", "other class"
KINDS = (EXACT, NEAR, FALSE_NEGATIVE)
DUPLICATES = frozenset((EXACT, NEAR, "same by review"))
"""The kinds of pairs that are the same thing."""
_AT_A_TIME = 2**14  # pairs whose vectors are compared at a time
_FEW = 50  # samples whose neighbours' pixels are all looked at: so few say little about what is close
_ROWS = 1024  # pairs whose vectors are in memory at a time
_ROBUST = 1.4826  # the median absolute deviation of a normal distribution, times this, is its standard deviation

Verify = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]
"""Rows (p,) and rows (p,) of pairs -> (p,) whether their pixels agree."""


@dataclass(frozen=True)
class Notice:
    """A sample that stands out.

    Args:
        row: of the sample.
        kind: why it stands out, such as `outlier`.
        score: what was measured.
        bound: what the score passed.
        suggestion: for `other class` that class, for kinds of pairs another row.
        reason: the score in words.
    """

    row: int
    kind: str
    score: float
    bound: float
    suggestion: int = -1
    reason: str = ""


@dataclass(frozen=True)
class Findings:
    """What an audit found.

    Args:
        pairs: by kind, then the most similar first.
        notices: by kind, then the most striking first.
        groups: (n,) int64, negative = alone.
        recall: the share of true neighbours that the search found in a sample; 1 if it was exact.
        linked: the kinds of pairs that make groups.
        links: further pairs of rows that make groups and are not listed.
    """

    pairs: PairColumns
    notices: tuple[Notice, ...]
    groups: NDArray[np.int64]
    recall: float = 1.0
    linked: frozenset[str] = frozenset((EXACT, NEAR))
    links: tuple[tuple[int, int], ...] = ()

    def count(self, kind: str) -> int:
        """How many pairs or samples of a kind there are."""
        return int(self.pairs.is_of((kind,)).sum()) + sum(notice.kind == kind for notice in self.notices)


@dataclass(frozen=True)
class AuditOptions:
    """What an audit looks for.

    Args:
        k: neighbours of every sample that are looked at.
        alpha: share of the others above a sample's threshold, as GloFND learns it; if not given the threshold is the
            similarity that about one of all pairs of unrelated samples would exceed.
        duplicate: closeness from which two samples are near duplicates: 0 is like a stranger, 1 the same. Of
            photos the pixels decide, of texts the words, and this is not used.
        margin: of pairs of queries and documents: another document is suspected to be a false negative if its
            similarity to the query exceeds s+ - margin |s+|, where s+ is that of the query's own document.
        group_false_negatives: put likely false negatives into groups too, not only duplicates.
        seed: of the random samples that make the background.
    """

    k: int = 10
    alpha: float | None = None
    duplicate: float = 0.9
    margin: float = 0.05
    group_false_negatives: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, got {self.k}: it is the number of neighbours that are looked at")
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise ValueError(f"alpha must be in (0, 1), got {self.alpha}: it is the share of false negatives")
        if not 0 < self.duplicate <= 1:
            raise ValueError(f"duplicate must be in (0, 1], got {self.duplicate}: 1 asks for equal vectors")


def audit_vectors(
    vectors: Vectors,
    options: AuditOptions | None = None,
    *,
    copies: Sequence[tuple[int, int]] | None = None,
    verify: Verify | None = None,
    candidate: float = 0.5,
    proposed: Tensor | None = None,
    thresholds: Tensor | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Find pairs that are or may be the same thing, and samples that stand out, among vectors.

    Args:
        vectors: of at least two samples.
        options: what to look for.
        copies: pairs of equal files; None calls equal vectors copies.
        verify: looks at the pixels of candidates for near duplicates; None goes by the embeddings alone.
        candidate: closeness from which pixels are looked at; those of a sample and its nearest in most cases, of few
            samples those of all neighbours.
        proposed: (p, 2) rows of further pairs whose pixels are looked at, whatever the embeddings say about them.
        thresholds: (n,) learned ones in place of estimated ones.
        progress: called with (done, in all) of the search for neighbours.
    """
    options = options or AuditOptions()
    matrix = torch.from_numpy(vectors.embeddings)
    neighbours = nearest_others(matrix, min(options.k, max(len(matrix) - 1, 1)), progress)
    background = measure_background(matrix, options.alpha, seed=options.seed)
    if thresholds is not None:
        background = Background(background.mean, background.deviation, thresholds)
    edges = _edges(neighbours)
    if proposed is not None:
        edges = _with_proposals(edges, proposed, matrix)
    copied = join(len(matrix), equal_rows(vectors.embeddings) if copies is None else copies)
    found = _exact(matrix, listed_pairs(copied))
    found = found.joined(_near(edges, background, options.duplicate, torch.from_numpy(copied), candidate, verify))
    same = join(len(matrix), found.rows())
    found = found.joined(_false_negatives(edges, background, torch.from_numpy(same)))
    kinds = KINDS if options.group_false_negatives else (EXACT, NEAR)
    groups = join(len(matrix), found.of_kinds(kinds).rows())
    notices = _outliers(neighbours, background)
    if vectors.labels is not None:
        notices += _other_classes(neighbours, vectors.labels)
    found = found.take(np.lexsort((found.b, found.a, -found.similarity)))
    found = found.take(np.concatenate([np.flatnonzero(found.is_of((kind,))) for kind in KINDS]))
    return Findings(found, tuple(notices), groups, neighbours.recall, frozenset(kinds))


@dataclass(frozen=True)
class _Edges:
    """Pairs a < b (p,) of which one is a neighbour of the other, their similarity, whether both are, whether one is the
    nearest of the other; and whether patches have proposed them, which may add pairs that are not neighbours.
    """

    a: Tensor
    b: Tensor
    similarity: Tensor
    mutual: Tensor
    nearest: Tensor
    proposed: Tensor


def _edges(neighbours: NearestRows) -> _Edges:
    n, k = neighbours.rows.shape
    first = torch.arange(n).repeat_interleave(k)
    second = neighbours.rows.flatten()
    known = second >= 0  # an approximate search may find fewer than k
    first, second = first[known], second[known]
    a, b = torch.minimum(first, second), torch.maximum(first, second)
    key, inverse, count = torch.unique(a * n + b, return_inverse=True, return_counts=True)
    similarity = torch.zeros(len(key)).index_copy_(0, inverse, neighbours.similarities.flatten()[known])
    first_place = (torch.arange(n * k) % k == 0)[known]
    nearest = torch.zeros(len(key), dtype=torch.bool)
    nearest[inverse[first_place]] = True
    none = torch.zeros(len(key), dtype=torch.bool)
    return _Edges(key // n, key % n, similarity.clamp(-1, 1), count > 1, nearest, none)


def _with_proposals(edges: _Edges, proposed: Tensor, vectors: Tensor) -> _Edges:
    """The edges with those pairs that are proposed (p, 2) marked, and added where they are none yet."""
    n = len(vectors)
    known = edges.a * n + edges.b
    wanted = torch.unique(proposed.amin(1) * n + proposed.amax(1))
    new = wanted[~torch.isin(wanted, known)]
    a, b = new // n, new % n
    similarity = torch.empty(len(new))
    for part, one, other in zip(similarity.split(_ROWS), a.split(_ROWS), b.split(_ROWS), strict=True):
        torch.clamp(torch.cosine_similarity(vectors[one], vectors[other]), -1, 1, out=part)
    neither = torch.zeros(len(new), dtype=torch.bool)
    return _Edges(
        torch.cat((edges.a, a)),
        torch.cat((edges.b, b)),
        torch.cat((edges.similarity, similarity)),
        torch.cat((edges.mutual, neither)),
        torch.cat((edges.nearest, neither)),
        torch.cat((torch.isin(known, wanted), ~neither)),
    )


def _near(
    edges: _Edges,
    background: Background,
    duplicate: float,
    copied: Tensor,
    candidate: float,
    verify: Verify | None,
) -> PairColumns:
    bars = background.similarity_at(duplicate if verify is None else candidate)
    bar = torch.maximum(bars[edges.a], bars[edges.b])
    close = edges.similarity >= bar
    if verify is not None:  # of heavily changed copies the encoder only knows that nothing else is closer
        bars = background.similarity_at(DISTANT)
        close |= edges.nearest & (edges.similarity >= torch.maximum(bars[edges.a], bars[edges.b]))
        close |= edges.proposed
        if len(bars) <= _FEW:
            close = torch.ones_like(close)
    close &= (copied[edges.a] < 0) | (copied[edges.a] != copied[edges.b])
    chosen = close.nonzero().flatten()
    if verify is not None and len(chosen):
        chosen = chosen[torch.from_numpy(verify(edges.a[chosen].numpy(), edges.b[chosen].numpy()))]
    return _pairs(edges, chosen, bar, NEAR)


def _false_negatives(edges: _Edges, background: Background, same: Tensor) -> PairColumns:
    bar = torch.maximum(background.threshold[edges.a], background.threshold[edges.b])
    apart = (same[edges.a] < 0) | (same[edges.a] != same[edges.b])
    return _pairs(edges, (edges.mutual & (edges.similarity > bar) & apart).nonzero().flatten(), bar, FALSE_NEGATIVE)


def _exact(vectors: Tensor, copies: Sequence[tuple[int, int]]) -> PairColumns:
    """Pairs of equal samples, with the similarity of their vectors."""
    rows = torch.tensor(copies, dtype=torch.int64).reshape(-1, 2)
    parts = [torch.cosine_similarity(vectors[part[:, 0]], vectors[part[:, 1]]) for part in rows.split(_AT_A_TIME)]
    similarity = torch.cat(parts).clamp(-1, 1)
    return PairColumns.of_kind(EXACT, rows[:, 0].numpy(), rows[:, 1].numpy(), similarity.numpy(), np.ones(len(rows)))


def _pairs(edges: _Edges, chosen: Tensor, bar: Tensor, kind: str) -> PairColumns:
    columns = (edges.a, edges.b, edges.similarity, bar)
    return PairColumns.of_kind(kind, *(column[chosen].numpy() for column in columns))


def similarity_of(vectors: Tensor, a: int, b: int) -> float:
    """The cosine of two rows of vectors."""
    return float(torch.cosine_similarity(vectors[a], vectors[b], dim=0).clamp(-1, 1))


def _outliers(neighbours: NearestRows, background: Background, deviations: float = 4.0) -> list[Notice]:
    """Samples whose neighbours are, on average, much less close than those of the others."""
    known = neighbours.rows >= 0
    every = torch.arange(len(known))[:, None].expand_as(known)
    close = background.closeness(neighbours.similarities, every).masked_fill(~known, 0.0)
    score = close.sum(1) / known.sum(1).clamp(min=1)
    middle = score.median()
    spread = _ROBUST * (score - middle).abs().median()
    bound = middle - deviations * spread
    chosen = (score < bound).nonzero().flatten()
    notices = [Notice(row, OUTLIER, float(score[row]), float(bound)) for row in chosen.tolist()]
    return sorted(notices, key=lambda notice: (notice.score, notice.row))


def _other_classes(neighbours: NearestRows, labels: NDArray[np.int64], share: float = 0.8) -> list[Notice]:
    """Samples of whose labelled neighbours at least `share` (and three) are of one class that is not theirs."""
    label = torch.from_numpy(labels)
    near = torch.where(neighbours.rows >= 0, label[neighbours.rows.clamp(min=0)], -1)
    votes = torch.zeros(len(label), int(label.max()) + 2).scatter_add_(
        1, near + 1, torch.ones_like(neighbours.similarities)
    )[:, 1:]
    counted = votes.sum(1)
    best, winner = votes.max(1)
    won = best / counted.clamp(min=1)
    chosen = ((label >= 0) & (winner != label) & (won >= share) & (counted >= 3)).nonzero().flatten()
    notices = [Notice(row, OTHER_CLASS, float(won[row]), share, int(winner[row])) for row in chosen.tolist()]
    return sorted(notices, key=lambda notice: (-notice.score, notice.row))
