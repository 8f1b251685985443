"""Texts as an audit works on them: equal but for case and white space, equal but for a few words, or alike in meaning.

- **exact**: the normalised texts are equal (`text_overlap.normalise`);
- **near**: most words are the same (`text_overlap.WordOverlap`), among texts that MinHash or the vectors propose;
- **semantic**: their vectors are more similar than chance explains, as for all other data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import OUTLIER, Notice
from antipodes.auditing.text_overlap import SHARE, WordOverlap, normalise, propose_texts, words_of
from antipodes.auditing.text_vectors import open_text_encoder
from antipodes.progress import Progress, progress_bar

DAMAGED, ODD_LENGTH = "damaged characters", "odd length"
_MOJIBAKE = ("Ã©", "Ã¨", "Ã¤", "Ã¶", "Ã¼", "Ã±", "â€™", "â€œ", "â€“", "Â ", "ï»¿")
_DEVIATIONS = 6.0  # robust deviations of log length from the median beyond which a length is odd


@dataclass(frozen=True, kw_only=True)
class AuditedTexts(AuditedData):
    """Texts with their vectors.

    Args:
        texts: the texts, in the order of the vectors.
    """

    unit: ClassVar[str] = "text"
    notice_kinds: ClassVar[tuple[str, ...]] = (OUTLIER, DAMAGED, ODD_LENGTH)

    texts: tuple[str, ...]

    @cached_property
    def normalised(self) -> list[str]:
        """The texts without differences of case and white space."""
        return [normalise(text) for text in self.texts]

    @property
    def is_verified(self) -> bool:
        """The words of two texts decide whether they are near duplicates."""
        return True

    def copies(self) -> list[tuple[int, int]]:
        """Pairs of texts that are equal when they are normalised."""
        return equal_texts(self.normalised)

    def proposals(self, progress: Progress) -> Tensor | None:
        """Texts that share many character n-grams."""
        return propose_texts(self.normalised, progress)

    @cached_property
    def _overlap(self) -> WordOverlap:
        return WordOverlap(self.texts)

    def agree(self, first: NDArray[np.int64], second: NDArray[np.int64], progress: Progress) -> NDArray[np.bool_]:
        """Whether most words of pairs are the same."""
        answers = np.zeros(len(first), dtype=np.bool_)
        for place, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
            answers[place] = self._overlap(a, b) >= SHARE
            if place % 1000 == 0:
                progress(place, len(first))
        return answers

    def notices(self, progress: Progress) -> Sequence[Notice]:
        """Texts with damaged characters, and those much longer or shorter than the rest."""
        return [*damaged_texts(self.texts), *odd_lengths(self.texts)]

    def rank(self, row: int) -> tuple[float, ...]:
        """The text of the most words represents a group, and of equal ones the first."""
        return (float(len(words_of(self.texts[row]))),)

    def key(self, row: int) -> str:
        """The digest of the text: rows of a file move when lines are added."""
        return text_key(self.texts[row])

    def text(self, row: int) -> str:
        """The text as it was given."""
        return self.texts[row]


def audited_texts(
    texts: Sequence[str],
    names: Sequence[str],
    encoder: Any,
    shown: bool,
    *,
    tower: str | None = None,
    labels: NDArray[np.int64] | None = None,
    classes: tuple[str, ...] | None = None,
    splits: tuple[str, ...] = (),
    skipped: tuple[tuple[str, str], ...] = (),
) -> AuditedTexts:
    """Embed texts for an audit.

    Args:
        texts: at least two.
        names: of the texts.
        encoder: as `open_text_encoder` takes it, or vectors (n, F) of the texts.
        shown: whether progress is shown.
        tower: of a run that has several encoders.
        labels: (n,) or None.
        classes: the names of the labels.
        splits: of every text.
        skipped: what was left out.
    """
    if isinstance(encoder, np.ndarray | Tensor):
        matrix, name = np.asarray(encoder, dtype=np.float32), "given vectors"
    else:
        name, encode = open_text_encoder(encoder, tower)
        with progress_bar("embedding", shown=shown) as progress:
            matrix = encode(list(texts), progress)
    vectors = Vectors(matrix, tuple(names), labels, classes)
    return AuditedTexts(vectors=vectors, encoder=name, splits=splits, skipped=skipped, texts=tuple(texts))


def equal_texts(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of the first and every other of equal texts; empty texts are not compared.

    Example:
        >>> equal_texts(["a", "b", "a", "", ""])
        [(0, 2)]
    """
    firsts: dict[str, int] = {}
    pairs = ((firsts.setdefault(text, row), row) for row, text in enumerate(texts) if text)
    return [(first, row) for first, row in pairs if first != row]


def text_key(text: str) -> str:
    """A name of a text that does not depend on its row."""
    return f"text {blake2b(text.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


def damaged_texts(texts: Sequence[str]) -> list[Notice]:
    """Texts with replacement characters, control characters or UTF-8 that was read as Latin-1; the score is how many.

    Example:
        >>> [notice.reason for notice in damaged_texts(["cafe", "cafÃ©"])]
        ['1 damaged character(s), such as Ã©']
    """
    found = []
    for row, text in enumerate(texts):
        damage = [letter for letter in text if letter == "\ufffd" or (letter < " " and letter not in "\t\n\r")]
        damage += [part for part in _MOJIBAKE for _ in range(text.count(part))]
        if damage:
            reason = f"{len(damage)} damaged character(s), such as {damage[0]}"
            found.append(Notice(row, DAMAGED, float(len(damage)), 0.0, reason=reason))
    return sorted(found, key=lambda notice: (-notice.score, notice.row))


def odd_lengths(texts: Sequence[str]) -> list[Notice]:
    """Texts whose length in characters is far from that of the others, on a logarithmic scale."""
    lengths = np.array([max(len(text), 1) for text in texts], dtype=np.float64)
    logs = np.log(lengths)
    middle = float(np.median(logs))
    spread = max(1.4826 * float(np.median(np.abs(logs - middle))), 0.1)
    low, high = math.exp(middle - _DEVIATIONS * spread), math.exp(middle + _DEVIATIONS * spread)
    found = []
    for row in np.flatnonzero((lengths < low) | (lengths > high)).tolist():
        bound = low if lengths[row] < low else high
        reason = f"{lengths[row]:,.0f} characters, usual {math.ceil(low):,} to {math.floor(high):,}"
        found.append(Notice(row, ODD_LENGTH, float(lengths[row]), bound, reason=reason))
    return sorted(found, key=lambda notice: (-abs(math.log(max(notice.score, 1)) - middle), notice.row))
