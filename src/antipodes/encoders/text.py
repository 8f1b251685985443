"""`TextEncoder`: the base of text encoders, with a vocabulary that is saved with the weights."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

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
