"""Byte pairs: CLIP's own list (Radford et al. 2021), and pairs that are learned from a run's texts.

CLIP's merges come from the package ``open_clip_torch``. Its tokenizer does this:

1. A text is cleaned and put in lower case.
2. It is cut into words, single digits and runs of other signs.
3. Inside each of these, the pair of pieces that comes first in the list of merges is joined, until no pair is left.

Learned pairs need the package ``tokenizers``.
"""

from __future__ import annotations

import gzip
import html
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from antipodes.encoders.packages import find_packaged, require_packaged

PACKAGES = ("open_clip_torch",)
FILE = "bpe_simple_vocab_16e6.txt.gz"
MERGES = 49152 - 256 - 2  # the part of the list that CLIP uses
SIZE = 2 * 256 + MERGES + 2
START, END = SIZE - 2, SIZE - 1
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")
_STRAIGHT = str.maketrans(dict.fromkeys(range(0x2018, 0x201C), "'") | dict.fromkeys(range(0x201C, 0x2020), '"'))
_WORD_END = "</w>"


def read_merges() -> bytes:
    """Read CLIP's list of merges, one a line, from the installed package, without importing it.

    Raises:
        ValueError: the package is not installed.
    """
    path = require_packaged("CLIP's byte pairs", "open_clip", PACKAGES, FILE)
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    return "\n".join(lines[1 : MERGES + 1]).encode()


def find_merges() -> bytes | None:
    """Read the same list if the package is installed; return None otherwise."""
    return None if find_packaged(PACKAGES, FILE) is None else read_merges()


class ClipTokenizer:
    """Tokenizer: a start token, the byte pairs of the text, cut to a maximum length, and an end token.

    Args:
        merges: the bytes that `read_merges` returned.
        max_length: largest number of tokens, start and end included.
    """

    def __init__(self, merges: bytes, max_length: int = 77) -> None:
        pairs = [tuple(line.split()) for line in merges.decode().split("\n")]
        letters = list(_letters().values())
        names = [*letters, *(letter + _WORD_END for letter in letters), *("".join(pair) for pair in pairs)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._ranks = {pair: rank for rank, pair in enumerate(pairs)}
        self._room = max_length - 2
        self._word = lru_cache(maxsize=100_000)(self._merge)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        rows = []
        for text in texts:
            row: list[int] = []
            for word in split_words(clean_text(text)):
                row += self._word(word)
                if len(row) >= self._room:
                    break
            rows.append([START, *row[: self._room], END])
        return rows

    def _merge(self, word: str) -> tuple[int, ...]:
        letters = _letters()
        pieces = [letters[byte] for byte in word.encode()]
        pieces[-1] += _WORD_END
        while len(pieces) > 1:
            pair = min(pairwise(pieces), key=lambda pair: self._ranks.get(pair, SIZE))
            if pair not in self._ranks:
                break
            joined: list[str] = []
            for piece in pieces:
                # Left to right, and a piece that has just been joined is not joined again in the same pass.
                if joined and (joined[-1], piece) == pair:
                    joined[-1] = "\0" + joined[-1] + piece
                else:
                    joined.append(piece)
            pieces = [piece.lstrip("\0") for piece in joined]
        return tuple(self._numbers[piece] for piece in pieces)

    def __reduce__(self) -> tuple[object, ...]:
        merges = "\n".join(" ".join(pair) for pair in self._ranks).encode()
        return ClipTokenizer, (merges, self._room + 2)


def clean_text(text: str) -> str:
    """Put a text into lower case with single spaces, straight quotes and no HTML escapes or ligatures.

    CLIP also repairs wrongly decoded texts with the package ftfy; this function does not.
    """
    text = html.unescape(html.unescape(text)).translate(_STRAIGHT)
    text = "".join(unicodedata.normalize("NFKC", sign) if _is_variant(sign) else sign for sign in text)
    return " ".join(unicodedata.normalize("NFC", text).split()).strip().lower()


def split_words(text: str) -> Iterator[str]:
    """Cut a text into contractions ('s, 't, ...), words, single digits and runs of other signs.

    Example:
        >>> list(split_words("it's 2 dogs!!"))
        ['it', "'s", '2', 'dogs', '!!']
    """
    at = 0
    while at < len(text):
        contraction = next((part for part in CONTRACTIONS if text.startswith(part, at)), None)
        if contraction is not None:
            yield contraction
            at += len(contraction)
            continue
        kind, end = _kind(text[at]), at + 1
        while end < len(text) and kind in ("letter", "other") and _kind(text[end]) == kind:
            end += 1
        if kind != "space":
            yield text[at:end]
        at = end


def _kind(sign: str) -> str:
    if sign.isspace():
        return "space"
    return {"L": "letter", "N": "number"}.get(unicodedata.category(sign)[0], "other")


def _is_variant(sign: str) -> bool:
    """Return True if a sign is a Latin ligature or a full-width or half-width form."""
    return "\ufb00" <= sign <= "\ufb06" or "\uff01" <= sign <= "\uffef"


@lru_cache(maxsize=1)
def _letters() -> dict[int, str]:
    """Return a printable letter for each byte: first the printable ones unchanged, the others as signs from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def import_tokenizers() -> Any:
    """Import the package `import_tokenizers`, or name the extra of antipodes that installs it.

    Raises:
        ValueError: it is not installed.
    """
    try:
        import tokenizers as package
    except ImportError as error:
        raise ValueError(
            "this text encoder needs the package tokenizers, which is not installed: pip install '.[text]'"
        ) from error
    return package


def train_bpe(texts: Iterable[str], size: int) -> bytes:
    """Learn at most `size` byte pairs from texts in lower case; the same texts give the same bytes (JSON).

    All 256 bytes are included, so every text can be tokenized.

    Raises:
        ValueError: size is below 256, or there is no text.
    """
    if size < 256:
        raise ValueError(f"a vocabulary of byte pairs has at least 256 entries, the bytes themselves, got {size}")
    package = import_tokenizers()
    tokenizer = package.Tokenizer(package.models.BPE())
    tokenizer.normalizer = package.normalizers.Sequence([package.normalizers.NFC(), package.normalizers.Lowercase()])
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = package.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    seen = 0

    def counted() -> Iterable[str]:
        nonlocal seen
        for text in texts:
            seen += 1
            yield text

    tokenizer.train_from_iterator(counted(), trainer)
    if seen == 0:
        raise ValueError("a vocabulary cannot be learned from no texts: give the captions of the training data")
    return str(tokenizer.to_str()).encode()


class TrainedTokenizer:
    """Tokenizer: a start token, the byte pairs of the text, cut to a maximum length, and an end token.

    Args:
        vocabulary: the bytes that `train_bpe` returned.
        start: number of the start token.
        end: number of the end token.
        max_length: largest number of tokens, start and end included.
    """

    def __init__(self, vocabulary: bytes, start: int, end: int, max_length: int) -> None:
        self._tokenizer: Any = import_tokenizers().Tokenizer.from_str(vocabulary.decode())
        self.start, self.end, self.room = start, end, max_length - 2

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[self.start, *encoding.ids[: self.room], self.end] for encoding in found]
