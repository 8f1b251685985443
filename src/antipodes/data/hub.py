"""Datasets of other libraries: Hugging Face's, by name or opened already, and any map-style torch dataset.

An opened dataset is read once at construction, and its images are kept in memory if they fit; otherwise they are
decoded whenever they are asked for. No library is imported before a dataset is opened by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Sized
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antipodes.data.caption_tables import IMAGE_COLUMNS
from antipodes.data.columns import CaptionColumn, Column, ItemColumn, PixelColumn
from antipodes.data.dataset import Samples, content_digest, limited
from antipodes.data.decode import square, to_pillow
from antipodes.files import DataError
from antipodes.plain_text import printable

_HELD_OUT = ("test", "validation", "val")
_MEMORY_LIMIT = 2_000_000_000


class _Opened(Samples):
    """A dataset of another library, whose items have an image."""

    def __init__(self, dataset: Any, size: int, name: str, memory_limit: int) -> None:
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise ValueError(
                f"{type(dataset).__name__} has no length or no items by number: give a map-style dataset, not a stream"
            )
        self.dataset, self.image_size, self.name = dataset, size, name
        self.in_memory = len(dataset) * 3 * size * size <= memory_limit
        self._items: Sequence[int] = range(len(dataset))

    def _image_column(self) -> Column:
        """The images of the items, decoded now if they fit into memory."""
        if not self.in_memory:
            return ItemColumn(len(self._items), self._decode)
        return PixelColumn(torch.stack([self._decode(row) for row in range(len(self._items))]))

    def _image(self, item: Any) -> Any:
        return item[self._image_name]

    _image_name = "image"

    def _decode(self, row: int) -> Tensor:
        """The image of a row, (3, size, size)."""
        number = self._items[row]
        try:
            return torch.from_numpy(square(to_pillow(self._image(self.dataset[number])), self.image_size))
        except ValueError as error:
            raise ValueError(f"item {number} of dataset {self.name} cannot be used: {error}") from error


class HuggingFaceImages(_Opened):
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
        _check_columns(dataset, name, image, label, coarse_label)
        self._image_name = image
        if label is not None:
            self.labels, self.classes = _labels(dataset, label)
        if coarse_label is not None:
            self.coarse_labels, self.coarse_classes = _labels(dataset, coarse_label)
        self._fill({"image": self._image_column()})


class HuggingFaceCaptions(_Opened):
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
        _check_columns(dataset, name, image, caption)
        texts = [_texts(value) for value in dataset[caption]]
        self._image_name = image
        self._items = [row for row, several in enumerate(texts) if several]
        self.skipped = [(f"row {row}", "no caption") for row, several in enumerate(texts) if not several]
        if not self._items:
            raise ValueError(f"no row of dataset {name} has a caption in column {caption!r}: name another column")
        self._captions = [texts[row] for row in self._items]
        self._fill({"image": self._image_column(), "text": CaptionColumn(self._captions)})

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the images (of a sample of them if they are not in memory) and of all captions."""
        digest = hashlib.blake2b(content_digest(self, ("image",)).encode(), digest_size=8)
        digest.update("\0".join(text for several in self._captions for text in (*several, "")).encode())
        return digest.hexdigest()


class TorchImages(_Opened):
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
        items = (dataset[i] for i in range(len(dataset)))
        labels = [int(item[1]) for item in items if isinstance(item, (tuple, list)) and len(item) > 1]
        if labels and len(labels) < len(dataset):
            raise ValueError(
                f"only {len(labels)} of the {len(dataset)} items of dataset {name} have a label: give all or none"
            )
        self.labels = torch.tensor(labels) if labels else None
        self._fill({"image": self._image_column()})

    def _image(self, item: Any) -> Any:
        return item[0] if isinstance(item, (tuple, list)) else item


class HubCaptions(HuggingFaceCaptions):
    """Images with captions of Hugging Face, where `datasets` is installed; on the command line ``hf:<name or folder>``.

    `datasets` loads by its own rules, which for a name may mean a download. The test split is its ``test`` or
    ``validation``.

    Args:
        path: a name on the hub, or a folder that `load_dataset` or `load_from_disk` reads.
        split: the name of the split; with one split only, that is the one.
        image: the column of images.
        caption: the column of captions: texts, or lists of them.
        config: the name of a configuration, where the dataset has several.
        size: side of the images: the shorter side is scaled to it and the centre cropped.
        limit: keep only this many rows, as described at ``limited``.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if `datasets` cannot be imported or cannot load it, or a split or column is missing.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        image: str = "image",
        caption: str = "caption",
        config: str | None = None,
        size: int = 64,
        limit: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        self.path, self.split = path, split
        self._options: dict[str, Any] = {"image": image, "caption": caption, "config": config}
        self._options |= {"memory_limit": memory_limit}
        splits = load_splits(path, config)
        self._splits = set(splits)
        if split not in splits and len(splits) > 1:
            raise DataError(f"hf:{path} has no {split} split, only {', '.join(splits)}")
        chosen = splits[split] if split in splits else next(iter(splits.values()))
        keep = limited(len(chosen), limit)
        if keep is not None:
            chosen = chosen.select(keep.tolist())
        super().__init__(chosen, image, caption, size, printable(Path(path).name), memory_limit)

    def held_out(self, limit: int | None = None) -> HubCaptions | None:
        """Return the test or validation split, None when there is neither or this is it."""
        for split in _HELD_OUT if self.split not in _HELD_OUT and len(self._splits) > 1 else ():
            if split in self._splits:
                return HubCaptions(self.path, split, size=self.image_size, limit=limit, **self._options)
        return None


def dataset_on_hub(name: str) -> str:
    """Return the dotted path of the dataset class for `hf:<name>`: images with captions, or a table of texts.

    Opening a dataset that cannot be loaded says why.
    """
    try:
        first = next(iter(load_splits(name.removeprefix("hf:"), None).values()))
    except DataError:
        return "antipodes.data.hub.HubCaptions"
    columns = set(first.column_names or ())
    return "antipodes.data.hub.HubCaptions" if columns & set(IMAGE_COLUMNS) else "antipodes.data.texts.Texts"


def load_splits(path: str, config: str | None) -> dict[str, Any]:
    """Return the splits of a dataset of Hugging Face by name.

    Args:
        path: its name on the hub, also as owner/name/configuration, or a folder that `load_dataset` or
            `load_from_disk` reads.
        config: the name of a configuration, where there are several.

    Raises:
        DataError: if `datasets` cannot be imported, or cannot load it.
    """
    try:
        import datasets
    except Exception as error:  # an installed library that is built for another one fails with anything
        raise DataError(
            f"data 'hf:{path}' needs the library datasets, which cannot be imported here ({error}): "
            "pip install datasets, or give a table or a folder"
        ) from error
    folder = Path(path).expanduser()
    if config is None and path.count("/") == 2 and not folder.exists():
        path, _, config = path.rpartition("/")
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))  # by `save_to_disk`
    try:
        found = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(path, config)
    except Exception as error:  # the library raises whatever its readers and the network do
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"datasets could not load 'hf:{path}': {first}") from error
    return dict(found) if isinstance(found, Mapping) else {"train": found}


def _check_columns(dataset: Any, name: str, *columns: str | None) -> None:
    """Refuse a column that a dataset of Hugging Face does not have."""
    for column in columns:
        if column is not None and column not in dataset.column_names:
            raise ValueError(f"dataset {name} has no column {column!r}, only {', '.join(dataset.column_names)}")


def _texts(value: Any) -> list[str]:
    """One caption or several, without empty ones."""
    several = value if isinstance(value, (list, tuple)) else [value]
    return [text for each in several if each is not None and (text := str(each).strip())]


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
