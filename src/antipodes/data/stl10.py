"""STL-10: 96 x 96 photos of 10 classes, 5,000 of them labelled for training and 100,000 unlabelled."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from antipodes.data.classes import Classes
from antipodes.data.dataset import DataError, ImageDataset, Split, TensorImages, check_split
from antipodes.data.transfer_set import find_part

_ARCHIVE = "stl10_binary.tar.gz"
_DIGEST = "md5:91f7769df0f17e558f3565bffb0c7dfb"
_SIDE = 96


class STL10(TensorImages):
    """STL-10 (Coates, Ng, Lee 2011), read from ``stl10_binary.tar.gz`` in ``root`` or unpacked next to it.

    The pixels are mapped into memory, so that the unlabelled images take none before they are shown.

    Args:
        split: "train" or "test" (8,000).
        root: folder to look in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        part: of the train split, the "labelled" images or the "unlabelled" ones, which have no labels.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images; None is 96.
        verify: whether the archive must have its official digest.

    Raises:
        ValueError: if the archive is not there, has another digest, or does not hold what it should.
    """

    def __init__(
        self,
        split: Split = "train",
        root: str | None = None,
        part: Literal["labelled", "unlabelled"] = "labelled",
        limit: int | None = None,
        classes: Classes = None,
        size: int | None = None,
        verify: bool = True,
    ) -> None:
        check_split(split)
        if part not in ("labelled", "unlabelled"):
            raise ValueError(f'part must be "labelled" or "unlabelled", got {part!r}')
        self.split, self.root, self._only, self._verify = split, root, classes, verify
        base = find_part("stl10", "stl10_binary", _ARCHIVE, _DIGEST, root, verify)
        name = "unlabeled" if split == "train" and part == "unlabelled" else split
        images = _images(base / f"{name}_X.bin")
        labels = None if name == "unlabeled" else _labels(base / f"{name}_y.bin", len(images))
        try:
            names = (base / "class_names.txt").read_text().split()
        except OSError as error:
            raise DataError(f"{base} has no class_names.txt ({error}): get {_ARCHIVE} again") from error
        super().__init__(
            images,
            labels,
            classes=None if labels is None else names,
            name="stl10",
            limit=limit,
            only=classes,
            size=size,
        )

    def held_out(self, limit: int | None = None) -> ImageDataset | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        return STL10("test", self.root, "labelled", limit, self._only, self.image_size, self._verify)


def _images(path: Path) -> Tensor:
    """Map a file of images (n, 3, 96, 96), which are stored column by column."""
    try:
        count, rest = divmod(path.stat().st_size, 3 * _SIDE**2)
        if rest or not count:
            raise DataError(f"{path} does not hold whole images of 96 x 96: get {_ARCHIVE} again")
        # Copy on write: torch wants memory that it may write to, and the file stays as it is.
        pixels = np.memmap(path, np.uint8, "c", shape=(count, 3, _SIDE, _SIDE))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): get {_ARCHIVE} again") from error
    return torch.from_numpy(pixels).transpose(2, 3)


def _labels(path: Path, count: int) -> Tensor:
    try:
        labels = np.fromfile(path, np.uint8).astype(np.int64) - 1
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): get {_ARCHIVE} again") from error
    if len(labels) != count or not (labels.min() >= 0 and labels.max() < 10):
        raise DataError(f"{path} does not hold {count} labels from 1 to 10: get {_ARCHIVE} again")
    return torch.from_numpy(labels)
