"""Images that a list names, with one class or several each."""

import os
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.data.classes import Classes, choose_classes
from antipodes.data.dataset import DataError, ImageDataset, Split, limited
from antipodes.data.decode import Source
from antipodes.data.pictures import decode_all
from antipodes.data.sizes import decode_size


class Listed(NamedTuple):
    """The images of a split: their paths, their classes by number, the classes' names.

    Where an image may have several classes, its labels are one number for every class: 1, 0, or -1 for not counted.
    """

    files: list[Path]
    labels: list[int] | list[list[int]]
    classes: list[str]


class ListedImages(ImageDataset):
    """Image files that a list names; made by the classes that know the list.

    Attributes:
        base: the folder in which all of them are.
        files: their paths within it.
        decode: side of the decoded images, from which views are cut.
    """

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
        self.base = Path(os.path.commonpath([file.parent for file in files]))
        sources = [Source(str(file)) for file in files]
        shown = [os.path.relpath(file, self.base) for file in files]
        self.image_size, self.decode = decode_size(sources, size, decode)
        self.pictures = decode_all(
            self.base,
            shown,
            sources,
            self.decode,
            part=self.split,
            workers=workers,
            memory_limit=memory_limit,
            cache=cache,
        )
        good = self.pictures.readable
        self.skipped = [(shown[i], why) for i, why in self.pictures.problems.items()]
        if not good:
            raise DataError(
                f"none of the {len(files)} images of {self.name} can be read, the first is {shown[0]} "
                f"({self.pictures.problems[0]}): get it again"
            )
        self.in_memory, self.classes = self.pictures.in_memory, tuple(names)
        self.files = tuple(shown[i] for i in good)
        self.labels = labels[good]
        if labels.ndim == 2:
            self.metric = "mAP"

    def __len__(self) -> int:
        return len(self.files)

    def _images(self, ids: Tensor) -> Tensor:
        return self.pictures.fetch(ids)

    @property
    def paths(self) -> list[str]:
        """The path of every row's file."""
        return [os.path.join(self.base, file) for file in self.files]

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the files' names and content, their labels, and the size they are scaled to."""
        assert self.labels is not None  # a list always has them
        return self.pictures.fingerprint(self.files, self.name, self.image_size, self.labels.tolist())
