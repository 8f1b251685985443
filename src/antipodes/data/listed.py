"""Images that a list names, with one class or several each."""

import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from antipodes.data.classes import Classes, choose_classes
from antipodes.data.dataset import DataError, Split, limited
from antipodes.data.image_files import ImageFiles


class Listed(NamedTuple):
    """The images of a split: their paths, their classes by number, the classes' names.

    Where an image may have several classes, its labels are one number for every class: 1, 0, or -1 for not counted.
    """

    files: list[Path]
    labels: list[int] | list[list[int]]
    classes: list[str]


class ListedImages(ImageFiles):
    """Image files that a list names; made by the classes that know the list."""

    split: Split

    def _open(
        self,
        listed: Listed,
        *,
        size: int | None,
        decode: int | None,
        limit: int | None,
        classes: Classes,
        cache: bool,
        workers: int | None,
        memory_limit: int,
    ) -> None:
        """Choose classes and images, decode them, and leave out what cannot be read."""
        files, labels, names = listed.files, torch.tensor(listed.labels), listed.classes
        if classes is not None:
            if labels.ndim == 2:
                raise DataError(f"the images of {self.name} have several labels each, so no classes can be chosen")
            keep, numbers, names = choose_classes(labels.tolist(), names, classes, self.name)
            files, labels = [files[i] for i in keep], torch.tensor(numbers)
        if (kept := limited(len(files), limit)) is not None:
            files, labels = [files[i] for i in kept.tolist()], labels[kept]
        if not files:
            raise DataError(f"{self.name} lists no images: get it again")
        base = Path(os.path.commonpath([file.parent for file in files]))
        shown = [os.path.relpath(file, base) for file in files]
        self.skipped = self._decode(
            base,
            shown,
            size=size,
            decode=decode,
            part=self.split,
            cache=cache,
            workers=workers,
            memory_limit=memory_limit,
        )
        if not self.files:
            path, reason = self.skipped[0]
            raise DataError(
                f"none of the {len(files)} images of {self.name} can be read, the first is {path} ({reason}): "
                "get it again"
            )
        self.classes = tuple(names)
        self.labels = labels[self.pictures.readable]
        if labels.ndim == 2:
            self.metric = "mAP"

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the files' names and content, their labels, and the size they are scaled to."""
        assert self.labels is not None  # a list always has them
        return self.pictures.fingerprint(self.files, self.name, self.image_size, self.labels.tolist())
