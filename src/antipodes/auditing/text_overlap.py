"""Texts that are equal or nearly equal as strings: normalising, MinHash for candidates, word overlap to decide.

1. `normalise` removes what makes no difference: case, white space, Unicode forms, invisible characters. Equal results
   are exact duplicates.
2. `propose_texts` finds candidates: texts that share many character 4-grams, by MinHash and banding (Broder 1997). Its
   cost is linear in the texts.
3. `WordOverlap` decides: the words of both are aligned, typing errors are forgiven, and rare words weigh more than
   common ones. "to Paris" and "to Rome" differ in a rare word, "track my card" and "Track my crad!" in none.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.progress import Progress

SHARE = 0.85
"""Weighted share of words from which two texts are near duplicates."""

GRAM, BANDS, ROWS = 4, 24, 4  # texts of Jaccard similarity 0.6 share a band with probability 0.96, of 0.3 with 0.18
_BUCKET = 20  # texts of a bucket up to which all their pairs are candidates
_ALIGNED = 1000  # words up to which they are aligned; of longer texts the order of words is ignored
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+(?:['\u2019][^\W_]+)*")
_NEGATIONS = frozenset(
    ["not", "no", "never", "none", "cannot", "without", "n't", "nicht", "kein", "keine", "ne", "pas", "non"]
)

_GREETINGS = frozenset(["hi", "hello", "hey", "dear", "hallo", "bonjour", "hola"])
_COURTESY = _GREETINGS | frozenset(["please", "thanks", "bitte", "danke", "merci", "gracias"])


def normalise(text: str) -> str:
    r"""The text without differences of case, white space, Unicode form and invisible characters.

    Example:
        >>> normalise("  Caf\u00e9\u200b  AU\n lait "), normalise("\uff21bc")
        ('café au lait', 'abc')
    """
    composed = unicodedata.normalize("NFKC", text).casefold()
    if not composed.isascii():
        composed = "".join(letter for letter in composed if unicodedata.category(letter) != "Cf")
    return " ".join(composed.split())


def words_of(text: str) -> list[str]:
    """The words of a text, without punctuation; each Chinese, Japanese or Korean character counts as one.

    Example:
        >>> words_of("Don't pay -- 3.50 EUR!")
        ["don't", 'pay', '3', '50', 'eur']
    """
    return _WORD.findall(normalise(text).replace("\u2019", "'"))


def gram_hashes(text: str, sizes: Sequence[int] = (GRAM,)) -> NDArray[np.uint64]:
    """Different 64-bit hashes of the character n-grams of a text, sorted; a short text counts as one n-gram."""
    codes = np.frombuffer(f" {text} ".encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    found = []
    with np.errstate(over="ignore"):
        for size in sizes:
            width = min(size, len(codes))
            windows = np.lib.stride_tricks.sliding_window_view(codes, width)
            mixed = np.full(len(windows), size, dtype=np.uint64)
            for column in range(width):
                mixed = (mixed ^ windows[:, column]) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(29)
            found.append(mixed)
    return np.unique(np.concatenate(found))


def propose_texts(texts: Sequence[str], progress: Progress | None = None) -> Tensor:
    """Pairs (p, 2) of rows whose texts are likely to share most of their character 4-grams.

    1. The MinHash of a text keeps, for each of 96 hash functions, the least hash of its 4-grams. Two texts agree in one
       with a probability of their Jaccard similarity.
    2. The 96 numbers are cut into 24 bands of 4. Texts that agree in a whole band are candidates.

    Args:
        texts: n texts, normalised.
        progress: called with (texts done, texts in all).

    Example:
        >>> propose_texts(["how do i track my card", "an entirely other one", "how do i track my card?"]).tolist()
        [[0, 2]]
    """
    random = np.random.default_rng(0)
    factors = random.integers(1, 2**63, BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    signatures = np.zeros((len(texts), BANDS * ROWS), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for row, text in enumerate(texts):
            for part in np.array_split(gram_hashes(text), max(1, len(text) // 20_000)):
                least = ((part[:, None] * factors) >> np.uint64(16)).min(0) if len(part) else signatures[row]
                signatures[row] = least if not signatures[row].any() else np.minimum(signatures[row], least)
            if progress is not None and row % 1000 == 0:
                progress(row, len(texts))
        mixers = random.integers(1, 2**63, ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        bands = (signatures.reshape(len(texts), BANDS, ROWS) * mixers).sum(2, dtype=np.uint64)  # (n, BANDS)
    found = [np.zeros((0, 2), dtype=np.int64)]
    for band in bands.T:
        order = np.argsort(band, kind="stable")
        starts = np.flatnonzero(np.diff(band[order])) + 1
        found += [_within(rows) for rows in np.split(order, starts) if len(rows) > 1]
    return torch.from_numpy(np.unique(np.concatenate(found), axis=0))


def _within(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs of the rows of a bucket: all of a small one; of a large one those that follow each other, or the first."""
    if len(rows) <= _BUCKET:
        a, b = np.triu_indices(len(rows), 1)
        return np.stack((rows[a], rows[b]), axis=1)
    following, first = np.stack((rows[:-1], rows[1:]), axis=1), np.full(len(rows) - 1, rows[0])
    return np.concatenate((following, np.stack((first, rows[1:]), axis=1)))


def without_courtesy(words: list[str]) -> list[str]:
    """The words without greetings, please and thanks; all words where there are no others.

    Example:
        >>> without_courtesy(["hello", "there", "please", "track", "my", "card"]), without_courtesy(["hi", "there"])
        (['track', 'my', 'card'], ['hi', 'there'])
    """
    start = 2 if words[:1] and words[0] in _GREETINGS and words[1:2] == ["there"] else 0
    return [word for word in words[start:] if word not in _COURTESY] or words


class WordOverlap:
    """How much of two texts is the same, word by word, where words that few texts have weigh more.

    Greetings, please and thanks do not count, and one word may stand at another place if nothing else differs.

    Args:
        texts: all texts, whose words are counted.

    Example:
        >>> overlap = WordOverlap(["track my card", "track my crad", "track my parcel", "pay my bill"])
        >>> overlap(0, 1), round(overlap(0, 2), 2)
        (1.0, 0.32)
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.words = [without_courtesy(words_of(text)) for text in texts]
        counts = Counter(word for words in self.words for word in set(words))
        self.weights = {word: 1 + math.log(len(texts) / count) for word, count in counts.items()}
        self.counts = counts

    def __call__(self, a: int, b: int) -> float:
        """The share of the words of texts a and b that both have, in [0, 1]; 0 where numbers or negations differ."""
        one, other = self.words[a], self.words[b]
        if not one or not other:
            return 0.0
        both, left, right = self._aligned(one, other)
        changed = [*left, *right]
        if any(map(_decides, changed)):
            return 0.0
        if left == right and len(left) < 2:  # two words that change places, as in "from Rome to Paris", differ
            return 1.0
        missing = sum(self.weights[word] for word in changed)
        return max(0.0, 1 - missing / (sum(self.weights[word] for word in both) + missing))

    def _aligned(self, one: list[str], other: list[str]) -> tuple[list[str], list[str], list[str]]:
        """The words that both have, with typing errors, and those that only the one or the other has."""
        if max(len(one), len(other)) > _ALIGNED:
            left, right = Counter(one), Counter(other)
            return list((left & right).elements()), list((left - right).elements()), list((right - left).elements())
        both: list[str] = []
        left_over: list[str] = []
        right_over: list[str] = []
        for kind, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
            left_words, right_words = one[a:b], other[c:d]
            if kind == "equal" or "".join(left_words) == "".join(right_words):
                both += left_words
                continue
            for word in left_words:  # in order, so that each word of the other side is used once
                place = next((i for i, each in enumerate(right_words) if self._is_typo(word, each)), None)
                if place is None:
                    left_over.append(word)
                else:
                    both.append(word)
                    right_over += right_words[:place]
                    right_words = right_words[place + 1 :]
            right_over += right_words
        return both, left_over, right_over

    def _is_typo(self, a: str, b: str) -> bool:
        """Whether one of two words is the other with a typing error: words that several texts have are words."""
        if min(self.counts[a], self.counts[b]) > 2 or any(map(str.isdigit, a + b)):
            return False
        if _without_accents(a).replace("'", "") == _without_accents(b).replace("'", ""):
            return True
        shorter = min(len(a), len(b))
        return shorter >= 4 and edits(a, b, 2) <= (2 if shorter >= 8 else 1)


def _decides(word: str) -> bool:
    """Whether a word changes what a text says wherever it is added, left out or moved: a negation or a number."""
    return word in _NEGATIONS or word.endswith("n't") or any(map(str.isdigit, word))


def _without_accents(word: str) -> str:
    return (
        word
        if word.isascii()
        else "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))
    )


def edits(a: str, b: str, most: int) -> int:
    """How many letters must be added, removed, changed or exchanged with their neighbour; most + 1 if more than that.

    Example:
        >>> edits("card", "crad", 2), edits("parcel", "parcels", 2), edits("paris", "rome", 2)
        (1, 1, 3)
    """
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(b, start=1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return min(row[-1], most + 1)
