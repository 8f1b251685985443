"""Text encoders: their base with a vocabulary that is saved with the weights, and `BagOfWords`, the quickest."""

from __future__ import annotations

import re
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders.encoder import VOCABULARY, Encoder


class Tokenizer(Protocol):
    """Turns texts into token numbers."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without padding."""
        ...


class TextEncoder(Encoder):
    """A module that maps tokens (B, L) int64 to features (B, num_features), and texts to tokens.

    The vocabulary is a buffer of bytes, so checkpoints and exported files carry it and tokens mean the same wherever
    the weights are loaded. Token 0 is padding.

    Attributes:
        vocabulary: (bytes,) uint8; empty if there is none yet.
        max_length: the largest number of tokens; longer texts are cut.
    """

    modality = "text"
    max_length: int
    vocabulary: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(VOCABULARY, torch.empty(0, dtype=torch.uint8))
        self._tokenizer: Tokenizer | None = None

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return the tokens (b, L) int64 of b texts, cut to `max_length` and padded with 0 to the longest of them.

        Raises:
            ValueError: one of them is not a string, or there is no vocabulary yet.
        """
        wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
        if isinstance(texts, str) or wrong:
            raise ValueError(f"texts must be a list of strings, got {wrong[0] if wrong else 'one string'}")
        if self._tokenizer is None:
            if not len(self.vocabulary):
                raise ValueError(
                    f"{type(self).__name__} has no vocabulary yet: call fit_tokenizer with texts, or load weights"
                )
            self._tokenizer = self.build_tokenizer(bytes(self.vocabulary.cpu().numpy()))
        rows = self._tokenizer.encode(list(texts))
        tokens = torch.zeros(len(rows), max(map(len, rows), default=1) or 1, dtype=torch.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return tokens

    def fit_tokenizer(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from texts, for encoders without a fixed one; called once before training."""

    @abstractmethod
    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return the tokenizer that these bytes describe."""

    def set_vocabulary(self, vocabulary: bytes) -> None:
        """Replace the vocabulary."""
        self.vocabulary = torch.tensor(list(vocabulary), dtype=torch.uint8, device=self.vocabulary.device)
        self._tokenizer = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        given = state_dict.get(prefix + VOCABULARY)
        if given is not None:  # resize the buffer first: loading copies into the existing one
            self.vocabulary = torch.empty_like(given, device=self.vocabulary.device)
            self._tokenizer = None
        super()._load_from_state_dict(state_dict, prefix, *rest)


def encode_by_length(encoder: TextEncoder, tokens: Tensor, piece: int = 8) -> Tensor:
    """Return the features (B, F) of tokens (B, L), computed on a CPU in pieces of texts of similar length.

    Padding costs as much as words do: of 64 customer questions of Banking77 at random the longest has 53 tokens and the
    mean 16. Other devices take the batch in one piece.

    Args:
        encoder: Of texts; each text's features depend on its own tokens alone.
        tokens: Padded with 0 to the longest text.
        piece: Texts in a piece.
    """
    if tokens.device.type != "cpu" or len(tokens) <= piece:
        return encoder(tokens)  # type: ignore[no-any-return]
    # up to the last that is not 0: in CLIP's vocabulary 0 is also a word
    lengths = ((tokens != 0) * torch.arange(1, tokens.shape[1] + 1)).amax(1)
    order = lengths.argsort(stable=True)
    parts = [encoder(tokens[rows, : max(1, int(lengths[rows[-1]]))]) for rows in order.split(piece)]
    return torch.cat(parts)[order.argsort()]


_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
HASHED = b"hashed"
"""The content of the vocabulary buffer when words are hashed and no list of words is needed."""


class BagOfWords(TextEncoder):
    """The mean of the vectors of a text's words: tokens (B, L) int64, 0 where padded, to features (B, width).

    Args:
        words: "hashed" gives each word one of `vocabulary_size` vectors by its checksum and needs no corpus; "learned"
            gives each of the most frequent words of the corpus its own vector, and all other words one shared vector.
        vocabulary_size: number of vectors, padding included.
        width: length of a vector, and of the features.
        max_length: texts are cut to so many words.

    Words are runs of letters and digits in lower case. A text without words has features of 0.

    Raises:
        ValueError: words is something else, or a size is impossible.

    Example:
        >>> bag = BagOfWords(vocabulary_size=100, width=8)
        >>> bag(bag.tokenize(["a dog", "A dog!"])).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        words: Literal["hashed", "learned"] = "hashed",
        vocabulary_size: int = 16384,
        width: int = 256,
        max_length: int = 77,
    ) -> None:
        super().__init__()
        if words not in ("hashed", "learned"):
            raise ValueError(f"words must be 'hashed' or 'learned', got {words!r}")
        if vocabulary_size < 3 or min(width, max_length) < 1:
            raise ValueError(
                f"vocabulary_size must be at least 3, width and max_length at least 1, "
                f"got {vocabulary_size}, {width} and {max_length}"
            )
        self.words, self.vocabulary_size, self.max_length = words, vocabulary_size, max_length
        self.num_features = width
        self.embedding = nn.Embedding(vocabulary_size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        if words == "hashed":
            self.set_vocabulary(HASHED)

    def fit_tokenizer(self, texts: Iterable[str]) -> None:
        """Set the vocabulary to the most frequent words, ties in alphabetical order; hashed words need no corpus.

        Raises:
            ValueError: there are no words in the texts.
        """
        if self.words == "hashed":
            return
        counts = Counter(word for text in texts for word in _split(text))
        if not counts:
            raise ValueError("a vocabulary cannot be learned from texts without words: give the training captions")
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: self.vocabulary_size - 2]
        self.set_vocabulary("\n".join(ranked).encode())

    def build_tokenizer(self, vocabulary: bytes) -> Tokenizer:
        """Return the tokenizer for this vocabulary."""
        return WordTokenizer(None if self.words == "hashed" else vocabulary, self.vocabulary_size, self.max_length)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (B, width) of tokens (B, L)."""
        return F.embedding_bag(tokens, self.embedding.weight, mode="mean", padding_idx=0)


class WordTokenizer:
    """Tokenizer that numbers words from 1: by checksum, or by place in a list, where 1 stands for all other words."""

    def __init__(self, vocabulary: bytes | None, size: int, max_length: int) -> None:
        known = [] if vocabulary is None else vocabulary.decode().split("\n")
        self._numbers = {word: number for number, word in enumerate(known, start=2)}
        self._hashed, self._size, self._max_length = vocabulary is None, size, max_length

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the words of every text, without padding."""
        return [[self._number(word) for word in _split(text)[: self._max_length]] for text in texts]

    def _number(self, word: str) -> int:
        if self._hashed:
            return 1 + zlib.crc32(word.encode()) % (self._size - 1)
        return self._numbers.get(word, 1)


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())
