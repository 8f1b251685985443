"""Identities of texts: equal numbers for equal strings, so that a loss can compare them as int64."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

NEGATIVE_INPUT = "negative_"
"""How the names of inputs begin that hold given negatives: negative_1, negative_2, ..."""


def content_ids(texts: Iterable[str]) -> Tensor:
    """Return one identity per text: equal exactly when the texts are equal, character by character.

    White space and case count, so normalise the texts first if " Cats" and "cats" are the same thing to you. The
    identity is a 63-bit BLAKE2b hash of the UTF-8 bytes, the same on every machine and in every version. Two different
    texts among n share one with probability of about n² / 2^64: 5 in 100,000 for 30 million texts.

    Args:
        texts: n strings.

    Returns:
        (n,) int64, none of them negative.

    Raises:
        TypeError: for a single string, or for anything in `texts` that is not a string; the sentence names its place.

    Example:
        >>> cats, dogs, again = content_ids(["cats", "dogs", "cats"])
        >>> bool(cats == again), bool(cats == dogs)
        (True, False)
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise TypeError(f"content_ids needs a list of texts, got a {type(texts).__name__}")
    return torch.tensor([_hash(place, text) for place, text in enumerate(texts)], dtype=torch.int64)


def _hash(place: int, text: Any) -> int:
    if not isinstance(text, str):
        raise TypeError(f"content_ids needs texts, got a {type(text).__name__} at position {place}")
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # 63 bits: negative numbers mark empty slots


def identities(given: Any, name: str = "ids") -> Tensor:
    """Return whole numbers as they are, and texts as `content_ids`.

    Args:
        given: n whole numbers of at least 0, or n strings: a tensor, an array, a column of a table or a list.
        name: What the caller calls them, for error messages.

    Returns:
        (n,) int64 on the CPU.

    Raises:
        ValueError: for numbers that are negative, have fractions or do not fit int64, and for anything but (n,) values
            of one kind.

    Example:
        >>> identities([3, 1, 3]), bool((identities(["a", "b"]) == content_ids(["a", "b"])).all())
        (tensor([3, 1, 3]), True)
    """
    values = given.detach().cpu().numpy() if isinstance(given, Tensor) else _array(given, name)
    if values.ndim != 1:
        raise ValueError(f"{name} must be (n,) whole numbers or texts, got shape {values.shape}")
    if values.dtype.kind in "OUT":
        texts = values.tolist()
        wrong = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            what = type(texts[wrong]).__name__
            raise ValueError(
                f"{name} must be whole numbers or texts, all of one kind, got a {what} at position {wrong}"
            )
        return content_ids(texts)
    if values.dtype.kind == "f" and values.size:
        exact = (np.abs(values) < 2 / np.finfo(values.dtype).eps) & (values == np.floor(values))
        if not exact.all():
            raise ValueError(f"{name} must be whole numbers or texts, got {values.dtype} that is not exact")
    elif values.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be whole numbers or texts, got {values.dtype}")
    if values.size and not 0 <= int(values.min()) <= int(values.max()) <= np.iinfo(np.int64).max:
        raise ValueError(f"{name} must be in 0..2^63-1, got {values.min()} to {values.max()}: -1 marks an empty slot")
    return torch.from_numpy(values.astype(np.int64))


def _array(given: Any, name: str) -> np.ndarray:
    """Values as an array that keeps numbers and texts apart, where numpy would write the numbers as texts."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be (n,) whole numbers or texts, got a {type(given).__name__}")
    if hasattr(given, "__array__"):
        return np.asarray(given)
    values = [each.item() if isinstance(each, Tensor) and not each.dim() else each for each in given]
    if values and all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values):
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError as error:
            raise ValueError(f"{name} must be in 0..2^63-1: give larger numbers as texts") from error
    if all(isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in values):
        return np.array(values, dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
