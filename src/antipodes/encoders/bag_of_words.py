"""`BagOfWords`: the mean of the word vectors of a text, an encoder that trains on a CPU in seconds."""

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders.text import TextEncoder, Tokenizer

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
