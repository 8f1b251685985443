"""Datasets of other libraries: Hugging Face's and any map-style torch dataset. Neither library is imported.

Both are read once at construction, and the images are kept in memory if they fit; otherwise ``fetch`` decodes.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sized
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.data.captioned import choices
from antipodes.data.dataset import ImageDataset, Modality, Raw
from antipodes.data.decode import square, to_pillow

_MEMORY_LIMIT = 2_000_000_000


class _Adapter(ImageDataset):
    """What the two have in common: ``_item`` decodes one image to (3, size, size)."""

    def __init__(self, dataset: Any, size: int, name: str, memory_limit: int) -> None:
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                f"{type(dataset).__name__} has no length or no items by number: give a map-style dataset, not a stream"
            )
        self.dataset, self.image_size, self.name = dataset, size, name
        self.in_memory = len(dataset) * 3 * size * size <= memory_limit
        self.images: Tensor | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    @abstractmethod
    def _item(self, i: int) -> Tensor: ...

    def _images(self, ids: Tensor) -> Tensor:
        if self.images is not None:
            return self.images[ids]
        return torch.stack([self._item(i) for i in ids.tolist()])

    def _square(self, image: Any, i: int) -> Tensor:
        try:
            return torch.from_numpy(square(to_pillow(image), self.image_size))
        except ValueError as error:
            raise ValueError(f"item {i} of dataset {self.name} cannot be used: {error}") from error


class HuggingFaceImages(_Adapter):
    """A Hugging Face dataset (one split of it) with a column of images.

    Args:
        dataset: e.g. ``datasets.load_dataset("beans", split="train")``.
        image: the column of images.
        label: the column of integer labels, None for no labels.
        coarse_label: the column of coarse labels, None for none.
        size: side of the images: the shorter side is scaled to it and the centre cropped.
        name: what the dataset calls itself.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if a column is missing or does not hold images or integers.
    """

    def __init__(
        self,
        dataset: Any,
        image: str = "image",
        label: str | None = None,
        coarse_label: str | None = None,
        size: int = 32,
        name: str = "huggingface",
        memory_limit: int = _MEMORY_LIMIT,
    ) -> None:
        super().__init__(dataset, size, name, memory_limit)
        self.column = image
        for column in (image, label, coarse_label):
            if column is not None and column not in dataset.column_names:
                raise ValueError(f"dataset {name} has no column {column!r}, only {', '.join(dataset.column_names)}")
        if label is not None:
            self.labels, self.classes = _labels(dataset, label)
        if coarse_label is not None:
            self.coarse_labels, self.coarse_classes = _labels(dataset, coarse_label)
        if self.in_memory:
            self.images = torch.stack([self._item(i) for i in range(len(dataset))])

    def _item(self, i: int) -> Tensor:
        return self._square(self.dataset[i][self.column], i)


class HuggingFaceCaptions(_Adapter):
    """A Hugging Face dataset (one split of it) with a column of images and one of captions, as `image` and `text`.

    A row is an image. A caption is a text, or a list of them, of which one is drawn by ``draw`` and the row. Rows
    without a caption are left out and listed in ``skipped``.

    Args:
        dataset: e.g. ``datasets.load_dataset("nlphuji/flickr30k", split="test")``.
        image: the column of images.
        caption: the column of captions.
        size: side of the images: the shorter side is scaled to it and the centre cropped.
        name: what the dataset calls itself.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if a column is missing, or no row has a caption.
    """

    modalities: Mapping[str, Modality] = {"image": "image", "text": "text"}

    def __init__(
        self,
        dataset: Any,
        image: str = "image",
        caption: str = "caption",
        size: int = 64,
        name: str = "huggingface",
        memory_limit: int = _MEMORY_LIMIT,
    ) -> None:
        super().__init__(dataset, size, name, memory_limit)
        for column in (image, caption):
            if column not in dataset.column_names:
                raise ValueError(f"dataset {name} has no column {column!r}, only {', '.join(dataset.column_names)}")
        self.column = image
        texts = [_texts(value) for value in dataset[caption]]
        self._rows = [row for row, several in enumerate(texts) if several]
        self.skipped = [(f"row {row}", "no caption") for row, several in enumerate(texts) if not several]
        if not self._rows:
            raise ValueError(f"no row of dataset {name} has a caption in column {caption!r}: name another column")
        self._texts = [texts[row] for row in self._rows]
        self._counts = np.array([len(several) for several in self._texts])
        if self.in_memory:
            self.images = torch.stack([self._item(i) for i in range(len(self))])

    def __len__(self) -> int:
        return len(self._rows)

    def _item(self, i: int) -> Tensor:
        return self._square(self.dataset[self._rows[i]][self.column], self._rows[i])

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return `image`, (b, 3, H, W) uint8, and `text`, one caption of every row: the first without ``draw``."""
        return self.inputs_without(frozenset(), rows, draw)

    def inputs_without(
        self, names: frozenset[str], rows: Tensor, draw: tuple[int, ...] | None = None
    ) -> dict[str, Raw]:
        """Return the inputs of these rows but for some that are not used: their images are not decoded."""
        found: dict[str, Raw] = {} if "image" in names else {"image": self.fetch(rows)}
        which = [0] * len(rows) if draw is None else choices(draw, rows.numpy(), self._counts[rows.numpy()]).tolist()
        return found | {"text": [self._texts[i][k] for i, k in zip(rows.tolist(), which, strict=True)]}

    def captions(self, row: int) -> list[str]:
        """Return all captions of a row."""
        return list(self._texts[row])

    def corpus(self, name: str) -> list[str]:
        """Return every caption that a row can show, each once."""
        return list(dict.fromkeys(text for several in self._texts for text in several))

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the images (of a sample of them if they are not in memory) and of all captions."""
        digest = hashlib.blake2b(super().fingerprint.encode(), digest_size=8)
        digest.update("\0".join(text for several in self._texts for text in (*several, "")).encode())
        return digest.hexdigest()


class TorchImages(_Adapter):
    """Any map-style torch dataset whose items are ``image`` or ``(image, label)``.

    Images are Pillow images, tensors (1|3, H, W) or arrays (H, W, 3), uint8 or float in [0, 1]. Leave random
    augmentation and normalisation out of it: both belong after the loader.

    Args:
        dataset: the dataset.
        size: side of the images: the shorter side is scaled to it and the centre cropped.
        name: what the dataset calls itself.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if it is an iterable dataset or an item holds no image.
    """

    def __init__(self, dataset: Any, size: int = 32, name: str = "torch", memory_limit: int = _MEMORY_LIMIT) -> None:
        super().__init__(dataset, size, name, memory_limit)
        images, labels = [], []
        for i in range(len(dataset)):
            item = dataset[i]
            if isinstance(item, (tuple, list)) and len(item) > 1:
                labels.append(int(item[1]))
            if self.in_memory:
                images.append(self._square(_image_of(item), i))
        if labels and len(labels) < len(dataset):
            raise ValueError(
                f"only {len(labels)} of the {len(dataset)} items of dataset {name} have a label: give all or none"
            )
        self.labels = torch.tensor(labels) if labels else None
        self.images = torch.stack(images) if images else None

    def _item(self, i: int) -> Tensor:
        return self._square(_image_of(self.dataset[i]), i)


def _texts(value: Any) -> list[str]:
    """One caption or several, without empty ones."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [text for each in several if each is not None and (text := str(each).strip())]


def _image_of(item: Any) -> Any:
    return item[0] if isinstance(item, (tuple, list)) else item


def _labels(dataset: Any, column: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Read a column of integers and, where the dataset declares them, their names."""
    values = list(dataset[column])
    if not all(isinstance(value, int) for value in values):
        raise ValueError(
            f"column {column!r} must hold integers: encode it with dataset.class_encode_column({column!r})"
        )
    feature = getattr(dataset, "features", None) or {}
    names = getattr(feature.get(column), "names", None)
    return torch.tensor(values, dtype=torch.int64), None if names is None else tuple(names)
