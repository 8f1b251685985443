"""Vectors on disk, such as embeddings of any origin: one ``.npy`` file for every input, mapped into memory."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.columns import VectorColumn
from antipodes.data.dataset import Classes, Samples, Split, check_split, choose_classes, limited
from antipodes.files import DataError

_LABELS, _SAMPLES = "labels", "samples"
_TEST = "test_"
_SAMPLED = 64  # rows that stand for the content in the fingerprint


class Vectors(Samples):
    """Rows of one or several ``.npy`` files of shape (n, F), each an input of its own.

    - A file is one input, ``vector``, with the labels of a ``labels.npy`` next to it.
    - A folder has an input for every file, under the file's name: ``image.npy`` and ``text.npy`` are ``image`` and
      ``text``. ``labels.npy`` (n,) has the labels and ``samples.npy`` (n,) the sample that every row shows.
    - ``image=a.npy,text=b.npy`` names files that lie anywhere.
    - Files ``test_...`` in the same folder are the test split, of the same inputs.

    Args:
        path: the file, the folder, or names with files.
        split: "train" or "test".
        limit: keep only this many rows, as described at ``limited``.
        classes: keep only so many classes, or those with these numbers as names, as described at ``choose_classes``.

    Raises:
        ValueError: if a file is missing, is no (n, F) array of numbers, or the files differ in their rows.
    """

    in_memory = True

    def __init__(self, path: str, split: Split = "train", limit: int | None = None, classes: Classes = None) -> None:
        check_split(split)
        self.path, self.split, self._classes = path, split, classes
        files = _files(path)
        prefix = _TEST if split == "test" else ""
        wanted = {name: prefix + name for name in files if not name.startswith(_TEST)}
        missing = [key for name, key in wanted.items() if key not in files and name not in (_LABELS, _SAMPLES)]
        if missing or not set(wanted) - {_LABELS, _SAMPLES}:
            raise DataError(f"{path} has no {' and no '.join(missing) or 'vectors'}.npy: give one .npy file per input")
        arrays = {name: _mapped(files[key]) for name, key in wanted.items() if key in files}
        labels, samples = (_integers(arrays.pop(name, None), name, path) for name in (_LABELS, _SAMPLES))
        for name, array in arrays.items():
            if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
                raise DataError(
                    f"{name}.npy of {path} must be numbers of shape (n, F), got {array.dtype} {array.shape}"
                )
        counts = {name: len(array) for name, array in arrays.items()}
        counts |= {name: len(array) for name, array in ((_LABELS, labels), (_SAMPLES, samples)) if array is not None}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            raise DataError(f"the files of {path} differ in their rows ({found}): row i must be the same thing in each")

        self.name = Path(path).stem if len(arrays) == 1 else "+".join(arrays)
        self.features = {name: array.shape[1] for name, array in arrays.items()}
        kept = torch.arange(next(iter(counts.values())))
        if labels is not None:
            self.classes = tuple(str(number) for number in range(int(labels.max()) + 1))
        if classes is not None:
            names = [] if self.classes is None else list(self.classes)
            chosen, new, names = choose_classes([] if labels is None else labels.tolist(), names, classes, path)
            kept, self.classes = torch.tensor(chosen, dtype=torch.int64), tuple(names)
            assert labels is not None
            labels = labels.index_put((kept,), torch.tensor(new))
        if (some := limited(len(kept), limit)) is not None:
            kept = kept[some]
        self.labels = None if labels is None else labels[kept]
        self.samples = None if samples is None else samples[kept]
        self._fill({name: VectorColumn(array, kept, f"{name}.npy of {path}") for name, array in arrays.items()})

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the shapes, the labels and some of the vectors."""
        digest = hashlib.blake2b(f"{len(self)} {self.features}".encode(), digest_size=8)
        for numbers in (self.labels, self.samples):
            digest.update(b"none" if numbers is None else numbers.numpy().tobytes())
        shown = torch.arange(min(len(self), _SAMPLED)) * len(self) // min(len(self), _SAMPLED)
        for column in self.columns.values():
            assert isinstance(column, VectorColumn)
            digest.update(np.ascontiguousarray(column.array[column.rows[shown].numpy()]).tobytes())
        return digest.hexdigest()

    def held_out(self, limit: int | None = None) -> Vectors | None:
        """Return the test split, None when there is none or this is it."""
        has_test = any(name.startswith(_TEST) for name in _files(self.path))
        return Vectors(self.path, "test", limit, self._classes) if self.split == "train" and has_test else None

    def describe(self) -> list[str]:
        """Say how many vectors there are, of which length, and whether they have labels."""
        inputs = ", ".join(f"{name} ({features:,})" for name, features in self.features.items())
        classes = "no labels" if self.labels is None else f"{self.labels.unique().numel():,} classes"
        return [f"{len(self):,} rows of vectors: {inputs}", classes, *self._closing_lines()]


def _files(path: str) -> dict[str, Path]:
    """Return the ``.npy`` files by the names of what they hold."""
    place = Path(path).expanduser()
    if "=" in path and not place.exists():
        return {name: Path(file).expanduser() for name, _, file in (part.partition("=") for part in path.split(","))}
    if place.is_dir():
        found = {file.stem: file for file in sorted(place.glob("*.npy"))}
        if wrong := [name for name in found if not re.fullmatch(r"\w+", name)]:
            raise DataError(f"{path} has {wrong[0]}.npy: name it by letters, digits and _, as the input is called so")
        return found
    companions = {name: place.parent / f"{name}.npy" for name in (_LABELS, _SAMPLES, f"{_TEST}{_LABELS}")}
    vectors = {"vector": place, f"{_TEST}vector": place.with_name(f"{_TEST}{place.name}")}
    return {"vector": place} | {name: file for name, file in (vectors | companions).items() if file.is_file()}


def _mapped(file: Path) -> NDArray[Any]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{file} does not exist: give the path of an .npy file") from error
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read as an .npy file without pickle ({error}): save it again") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file} is no .npy file: save it with numpy.save")
    return array


def _integers(array: NDArray[Any] | None, name: str, path: str) -> Tensor | None:
    if array is None:
        return None
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and int(array.min()) < 0):
        raise DataError(f"{name}.npy of {path} must be integers of at least 0, (n,), got {array.dtype} {array.shape}")
    return torch.from_numpy(array.astype(np.int64))
