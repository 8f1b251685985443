"""Images in a NumPy ``.npz`` file, which is also the form in which downloaded datasets are kept."""

from pathlib import Path
from typing import TypedDict
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.dataset import Classes, Split, TensorImages, check_split
from antipodes.files import DataError

Arrays = dict[str, NDArray[np.generic]]


class Contents(TypedDict):
    """The arguments of ``TensorImages`` that come from a file."""

    images: Tensor
    labels: Tensor | None
    coarse_labels: Tensor | None
    classes: tuple[str, ...] | None
    coarse_classes: tuple[str, ...] | None


_ARRAYS = ("images", "labels", "coarse_labels")
_NAMES = ("classes", "coarse_classes")


class Npz(TensorImages):
    """The arrays of one ``.npz`` file, read without pickle.

    The file holds ``images``, uint8 of shape (n, H, H, 3), (n, 3, H, H), (n, H, H, 1) or (n, H, H), and optionally
    integers ``labels`` and ``coarse_labels`` (n,) and their names ``classes`` and ``coarse_classes``.
    A test split is held in ``test_images``, ``test_labels``, ``test_coarse_labels``.

    Args:
        path: the file.
        split: "train" or "test".
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images; None is the images' own.

    Raises:
        ValueError: if the file is missing, is no ``.npz`` or does not hold such arrays.
    """

    def __init__(
        self,
        path: str,
        split: Split = "train",
        limit: int | None = None,
        classes: Classes = None,
        size: int | None = None,
    ) -> None:
        check_split(split)
        self.path, self.split, self._only = path, split, classes
        arrays = read_arrays(Path(path).expanduser(), split)
        super().__init__(**contents(arrays, path), name=Path(path).stem, limit=limit, only=classes, size=size)

    def held_out(self, limit: int | None = None) -> "Npz | None":
        """Return the test split, None when the file has none or this is it."""
        if self.split == "test":
            return None
        with np.load(Path(self.path).expanduser(), allow_pickle=False) as file:
            if "test_images" not in file.files:
                return None
        return Npz(self.path, "test", limit, self._only, self.image_size)


def read_arrays(path: Path, split: Split) -> Arrays:
    """Read the arrays of one split, under the names they have in the train split.

    Raises:
        DataError: if the file is missing, unreadable, or has no images of this split.
    """
    prefix = "test_" if split == "test" else ""
    try:
        with np.load(path, allow_pickle=False) as file:
            wanted = {name: prefix + name for name in _ARRAYS} | {name: name for name in _NAMES}
            arrays = {name: file[key] for name, key in wanted.items() if key in file.files}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: give the path of an .npz file") from error
    except (OSError, EOFError, ValueError, TypeError, BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz file without pickle ({error}): save it again") from error
    if "images" not in arrays:
        raise DataError(f"{path} has no array {prefix}images: save it with numpy.savez(path, {prefix}images=...)")
    return arrays


def contents(arrays: Arrays, where: str) -> Contents:
    """Turn the arrays of a split into what ``TensorImages`` takes.

    Raises:
        DataError: if an array has another type or shape.
    """
    images = arrays["images"]
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or not {1, 3} & {images.shape[-1], images.shape[1]}:
        raise DataError(
            f"images in {where} must be uint8 of shape (n, H, H, 3), (n, 3, H, H) or (n, H, H), "
            f"got {images.dtype} {arrays['images'].shape}"
        )
    if images.shape[-1] in (1, 3):
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    return {
        "images": torch.from_numpy(images).expand(-1, 3, -1, -1),
        "labels": _integers(arrays, "labels", where),
        "coarse_labels": _integers(arrays, "coarse_labels", where),
        "classes": _names(arrays, "classes"),
        "coarse_classes": _names(arrays, "coarse_classes"),
    }


def _integers(arrays: Arrays, name: str, where: str) -> Tensor | None:
    if name not in arrays:
        return None
    if arrays[name].dtype.kind not in "iu":
        raise DataError(f"{name} in {where} must be integers, got {arrays[name].dtype}")
    return torch.from_numpy(arrays[name].astype(np.int64))


def _names(arrays: Arrays, name: str) -> tuple[str, ...] | None:
    return tuple(str(entry) for entry in arrays[name]) if name in arrays else None
