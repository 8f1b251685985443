"""Reading of features from `.npy` files, which protocols take instead of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antipodes.evaluation.subject import ClassifiedFeatures
from antipodes.runs.towers import PairedFeatures


def read_pairs(images: str, texts: str, owners: str | None = None) -> PairedFeatures:
    """Read features of images and texts.

    Args:
        images: File with (n, D) floats.
        texts: File with (m, D) floats.
        owners: File with (m,) integers, the image's row for each text; None if every image has the same number of
            texts, in the order of the images.

    Raises:
        ValueError: if a file cannot be read, or the shapes do not fit.
    """
    pictures, words = _read_both(images, texts)
    if owners is None:
        each, rest = divmod(len(words), len(pictures))
        if rest:
            raise ValueError(
                f"{len(words)} texts do not divide by {len(pictures)} images: give --owners, the image of each text"
            )
        return PairedFeatures(pictures, words, torch.arange(len(pictures)).repeat_interleave(each))
    return PairedFeatures(pictures, words, _read_numbers(owners, len(words), len(pictures), "rows of the images"))


def read_classified(images: str, classes: str, labels: str) -> ClassifiedFeatures:
    """Read features of images and of the texts that describe their classes.

    Args:
        images: File with (n, D) floats.
        classes: File with (K, D) floats, one vector for each class.
        labels: File with (n,) integers, the class's row for each image.

    Raises:
        ValueError: if a file cannot be read, or the shapes do not fit.
    """
    pictures, words = _read_both(images, classes)
    return ClassifiedFeatures(pictures, words, _read_numbers(labels, len(pictures), len(words), "rows of the classes"))


def _read_both(images: str, texts: str) -> tuple[Tensor, Tensor]:
    pictures, words = (_read_vectors(path) for path in (images, texts))
    if pictures.shape[1] != words.shape[1]:
        raise ValueError(f"images and texts must have the same width, got {pictures.shape[1]} and {words.shape[1]}")
    return pictures, words


def _read_vectors(path: str) -> Tensor:
    array = _read(path)
    if array.ndim != 2 or not len(array) or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(f"{path} must hold (n, D) finite floats, got {array.shape} of {array.dtype}")
    return torch.from_numpy(array).float()


def _read_numbers(path: str, count: int, below: int, what: str) -> Tensor:
    array = _read(path)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"{path} must hold {count} integers, got {array.shape} of {array.dtype}")
    numbers = torch.from_numpy(array.astype(np.int64))
    if count and not (int(numbers.min()) >= 0 and int(numbers.max()) < below):
        raise ValueError(f"{path} must hold {what}, 0..{below - 1}")
    return numbers


def _read(path: str) -> np.ndarray:
    if not Path(path).is_file():
        raise ValueError(f"{path} does not exist")
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as an .npy file: {error}") from error
    return found
