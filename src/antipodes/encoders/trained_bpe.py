"""Byte pairs that are learned from a run's own texts with the package `import_tokenizers`."""

from collections.abc import Iterable, Sequence
from typing import Any


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
