"""`Pair`: two samples that are or may be the same thing; and `PairColumns`, very many of them as columns.

A pair is an object only while something looks at it: in columns it takes 35 bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

_AT_A_TIME = 2**14  # pairs that are made into objects by a loop


@dataclass(frozen=True)
class Pair:
    """Two samples with their similarity and the threshold that it exceeds.

    Args:
        a: row of the first.
        b: row of the other.
        similarity: cosine of their vectors.
        threshold: that the similarity exceeds.
        kind: what the pair is.
        decision: what a person decided: `same`, `different` or `skip`; empty if nothing.
        found_as: the kind before the decision changed it.
    """

    a: int
    b: int
    similarity: float
    threshold: float
    kind: str
    decision: str = ""
    found_as: str = ""

    @property
    def found(self) -> str:
        """The kind as the audit found it."""
        return self.found_as or self.kind


@dataclass(frozen=True, eq=False)
class PairColumns(Sequence[Pair]):
    """Pairs as columns.

    Args:
        a: (p,) int64 rows of the first.
        b: (p,) int64 rows of the other.
        similarity: (p,) float64.
        threshold: (p,) float64.
        codes: (3, p) uint8 places of kind, decision and `found_as` in `words`.
        words: what the codes stand for.

    Example:
        >>> pairs = PairColumns.of([Pair(0, 1, 0.9, 0.5, "near duplicate"), Pair(1, 2, 0.6, 0.5, "false negative")])
        >>> pairs[1].kind, len(pairs.of_kinds(["near duplicate"]))
        ('false negative', 1)
    """

    a: NDArray[np.int64]
    b: NDArray[np.int64]
    similarity: NDArray[np.float64]
    threshold: NDArray[np.float64]
    codes: NDArray[np.uint8]
    words: tuple[str, ...]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> PairColumns:
        """Return the table of some pairs."""
        if isinstance(pairs, cls):
            return pairs
        pairs, words = list(pairs), {"": 0}
        codes = [
            [words.setdefault(word, len(words)) for word in (pair.kind, pair.decision, pair.found_as)] for pair in pairs
        ]
        return cls(
            np.array([pair.a for pair in pairs], np.int64),
            np.array([pair.b for pair in pairs], np.int64),
            np.array([pair.similarity for pair in pairs], np.float64),
            np.array([pair.threshold for pair in pairs], np.float64),
            np.array(codes, np.uint8).reshape(-1, 3).T,
            tuple(words),
        )

    @classmethod
    def of_kind(cls, kind: str, a: Any, b: Any, similarity: Any, threshold: Any) -> PairColumns:
        """Return pairs of one kind by columns (p,), without decisions."""
        codes = np.zeros((3, len(a)), np.uint8)
        codes[0] = 1
        similarity, threshold = np.asarray(similarity, np.float64), np.asarray(threshold, np.float64)
        return cls(np.asarray(a, np.int64), np.asarray(b, np.int64), similarity, threshold, codes, ("", kind))

    def __len__(self) -> int:
        return len(self.a)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> PairColumns: ...
    def __getitem__(self, place: int | slice) -> Pair | PairColumns:
        if isinstance(place, slice):
            return self.take(place)
        numbers = (int(self.a[place]), int(self.b[place]), float(self.similarity[place]), float(self.threshold[place]))
        return Pair(*numbers, *(self.words[code] for code in self.codes[:, place].tolist()))

    def __iter__(self) -> Iterator[Pair]:
        for start in range(0, len(self), _AT_A_TIME):
            part = slice(start, start + _AT_A_TIME)
            columns = (self.a, self.b, self.similarity, self.threshold)
            numbers = zip(*(column[part].tolist() for column in columns), strict=True)
            for row, codes in zip(numbers, self.codes[:, part].T.tolist(), strict=True):
                yield Pair(*row, *(self.words[code] for code in codes))

    def take(self, places: Any) -> PairColumns:
        """Return the pairs at these places, or where a mask is true, in that order."""
        columns = (self.a[places], self.b[places], self.similarity[places], self.threshold[places])
        return PairColumns(*columns, self.codes[:, places], self.words)

    def joined(self, other: PairColumns) -> PairColumns:
        """Return these pairs, then the others."""
        words = tuple(dict.fromkeys((*self.words, *other.words)))
        theirs = np.array([words.index(word) for word in other.words], np.uint8)[other.codes]
        return PairColumns(
            np.concatenate((self.a, other.a)),
            np.concatenate((self.b, other.b)),
            np.concatenate((self.similarity, other.similarity)),
            np.concatenate((self.threshold, other.threshold)),
            np.concatenate((self.codes, theirs), axis=1),
            words,
        )

    def changed(self, pairs: Mapping[int, Pair]) -> PairColumns:
        """Return the pairs with some of them, by place, as others."""
        places = np.array(list(pairs), np.int64)
        rest = np.delete(np.arange(len(self)), places)
        order = np.argsort(np.concatenate((rest, places)), kind="stable")
        return self.take(rest).joined(PairColumns.of(pairs.values())).take(order)

    def is_of(self, kinds: Collection[str]) -> NDArray[np.bool_]:
        """Return which pairs (p,) are of these kinds."""
        chosen: NDArray[np.bool_] = np.array([word in kinds for word in self.words])[self.codes[0]]
        return chosen

    def of_kinds(self, kinds: Collection[str]) -> PairColumns:
        """Return the pairs of these kinds."""
        return self.take(self.is_of(kinds))

    @property
    def decided(self) -> PairColumns:
        """The pairs that a person has decided about."""
        return self.take(np.array([bool(word) for word in self.words])[self.codes[1]])

    def kinds(self) -> dict[str, NDArray[np.int64]]:
        """Return the places of the pairs of each kind, in the order in which the kinds come."""
        found = [np.flatnonzero(self.codes[0] == code) for code in range(len(self.words))]
        held = [(places[0], word, places) for word, places in zip(self.words, found, strict=True) if len(places)]
        return {word: places for _, word, places in sorted(held, key=lambda each: each[0])}

    def column(self, name: str) -> NDArray[np.object_]:
        """Return `kind`, `decision` or `found` of every pair, (p,)."""
        codes = self.codes[{"kind": 0, "decision": 1, "found": 2}[name]]
        if name == "found":
            codes = np.where(codes == self.words.index(""), self.codes[0], codes)
        column: NDArray[np.object_] = np.array(self.words, dtype=object)[codes]
        return column

    def rows(self) -> Iterator[tuple[int, int]]:
        """Yield both rows of every pair."""
        for start in range(0, len(self), _AT_A_TIME):
            part = slice(start, start + _AT_A_TIME)
            yield from zip(self.a[part].tolist(), self.b[part].tolist(), strict=True)
