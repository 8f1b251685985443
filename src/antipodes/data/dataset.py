"""What a dataset is here: a table of rows 0..n-1, with a column for every input and labels when there are any.

`Samples` is what training asks for: named inputs of some rows. Sources (a folder, a table, tar files, ...) derive from
it and fill its columns.

Labels are optional everywhere: nothing in training needs them except the oracle, and evaluation says so when they are
missing. A dataset's fingerprint goes into checkpoints, so that a run is only resumed on the data it was started on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from antipodes.data.columns import Column, Modality, PixelColumn, Raw
from antipodes.data.describe import Described
from antipodes.data.judgements import Judgements
from antipodes.files import DataError as DataError

Split = Literal["train", "test"]

Classes = int | list[str] | str | None
"""How many classes to keep, or which: a list of names, or one text with commas between them. None keeps all."""

_LIMIT_SEED = 20_000  # fixed for good: a limited dataset has to be the same one in every run and version
_CLASSES_SEED = 20_001  # likewise
_SAMPLED = 64  # images that stand for the content of a dataset which is not in memory
_CHUNK = 4096


class Samples(Described, Dataset[tuple[int, Tensor, int]]):
    """A table of samples: rows 0..n-1 of named inputs, what training, evaluation and tables go by.

    A source fills ``columns``; a class of your own may instead define ``modalities``, ``__len__``, ``inputs`` and
    ``fingerprint``. A dataset of images is also a map-style torch dataset of ``(id, image, label)``.

    Attributes:
        name: what the dataset calls itself, e.g. ``"cifar10"``.
        columns: name of an input -> its values by row.
        modalities: name of an input -> its modality. An input is what one tower sees: ``{"image": "image"}``,
            ``{"image": "image", "text": "text"}``.
        samples: (n,) int64, the sample that every row shows, or None where each row is a sample of its own. Rows of one
            sample (five captions of an image, two records of a patient) are never negatives of each other.
        image_size: side H = W of the views that are made of its images; 0 where it has none.
        in_memory: True when ``inputs`` is an index into memory, False when it decodes (see ``Loader``'s workers).
        labels: (n,) int64 or None; (n, classes) where a row may have several: 1, 0, or -1 for not counted.
        coarse_labels: (n,) int64 or None, the level above ``labels`` where the dataset has one.
        classes: the names of the labels, or None.
        coarse_classes: the names of the coarse labels, or None.
    """

    name: str
    columns: Mapping[str, Column] = {}
    modalities: Mapping[str, Modality] = {"image": "image"}
    samples: Tensor | None = None
    image_size: int = 0
    in_memory: bool = False
    labels: Tensor | None = None
    coarse_labels: Tensor | None = None
    classes: tuple[str, ...] | None = None
    coarse_classes: tuple[str, ...] | None = None

    @property
    def input_ids(self) -> Mapping[str, Tensor] | None:
        """The identity of every text of pairs by input, (n,) int64, where equal numbers are one thing; None elsewhere.

        A loss on pairs compares these in two spaces: the ids of queries, and those of documents and given negatives.
        """
        return None

    @property
    def judged(self) -> Judgements | None:
        """The relevance judgements that came with pairs of texts; None where the rows alone say which texts match."""
        return None

    def _fill(self, columns: Mapping[str, Column]) -> None:
        """Set the columns of the table, all of one length."""
        self.columns = columns
        self.modalities = {name: column.modality for name, column in columns.items()}

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return the raw inputs of these rows, (b,) int64, by name.

        Args:
            rows: which ones.
            draw: numbers, such as seed and epoch, from which a choice among several inputs of a row (one of its five
                captions) follows, with the row alone; None takes the first.

        Returns:
            Of an image (b, 3, H, W) uint8, of a text a list of b strings, of a vector (b, F) float32.

        Raises:
            ValueError: if a row lies outside 0..n-1 or rows is not a vector of int64.
        """
        check_row_numbers(rows, len(self))
        return {name: column.take(rows, draw) for name, column in self.columns.items()}

    def inputs_without(
        self, names: frozenset[str], rows: Tensor, draw: tuple[int, ...] | None = None
    ) -> dict[str, Raw]:
        """Return the inputs of these rows but for some that are not used, which are not fetched."""
        if not names or not self.columns:
            return {name: raw for name, raw in self.inputs(rows, draw).items() if name not in names}
        check_row_numbers(rows, len(self))
        return {name: column.take(rows, draw) for name, column in self.columns.items() if name not in names}

    def fetch(self, ids: Tensor) -> Tensor:
        """Return the images of these rows, (b,) int64 -> (b, 3, H, W) uint8.

        Raises:
            ValueError: if the rows have none, or one lies outside 0..n-1.
        """
        if self.modalities.get("image") != "image":
            raise ValueError(f"dataset {self.name} has no images, only {', '.join(self.modalities)}")
        images = self.inputs_without(frozenset(self.modalities) - {"image"}, ids)["image"]
        assert isinstance(images, Tensor)
        return images

    def __getitem__(self, i: int) -> tuple[int, Tensor, int]:
        """Return id, image (3, H, W) uint8 and label (-1 when there is none, or several)."""
        if not 0 <= i < len(self):
            raise IndexError(f"id {i} is outside 0..{len(self) - 1} of dataset {self.name}")
        single = self.labels is not None and self.labels.ndim == 1
        return i, self.fetch(torch.tensor([i]))[0], int(self.labels[i]) if single else -1  # type: ignore[index]

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the content, by which a run knows the data it was started on."""
        return content_digest(self, tuple(self.modalities))

    def corpus(self, name: str) -> list[str]:
        """Return every text that the input of that name can show, for vocabularies and for locked encoders."""
        if name in self.columns:
            return self.columns[name].texts()
        texts: dict[str, None] = {}
        for rows in torch.arange(len(self)).split(_CHUNK):
            texts |= dict.fromkeys(self.inputs(rows)[name])
        return list(texts)

    def captions(self, row: int) -> list[str]:
        """Return all captions of the image that a row shows; none where images have none."""
        return self.columns["text"].captions(row) if "text" in self.columns and "image" in self.columns else []

    def sample_ids(self, rows: Tensor) -> Tensor:
        """Return the samples that these rows show."""
        return rows if self.samples is None else self.samples[rows]

    def image_ids(self, rows: Tensor) -> Tensor:
        """Return the images that these rows show: their samples, but where one image is several samples."""
        return self.sample_ids(rows)

    def repeated(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return where rows share the input of that name: the first row of each, and which of these every row shows.

        None where every row has one of its own.
        """
        return None

    def keys(self) -> Tensor | None:
        """Return digests of every row's name and content, (n, 2) int64; None where rows have no names.

        By these a row is known again when the data has grown (see ``row_keys``).
        """
        return None

    def held_out(self, limit: int | None = None) -> Samples | None:
        """Return the test split that belongs to this dataset, None when there is none or this is it."""
        return None

    def validation(self, limit: int | None = None) -> Samples | None:
        """Return the split to choose by while training, where the dataset has one apart from the test split."""
        return None


def content_digest(dataset: Samples, names: Sequence[str]) -> str:
    """Return a short hex digest of the count, the labels and some inputs (of a sample of rows if not in memory)."""
    digest = hashlib.blake2b(f"{len(dataset)} {dataset.image_size}".encode(), digest_size=8)
    for labels in (dataset.labels, dataset.coarse_labels):
        digest.update(b"none" if labels is None else labels.numpy().tobytes())
    shown = len(dataset) if dataset.in_memory else min(len(dataset), _SAMPLED)
    rows = torch.arange(shown) * len(dataset) // max(shown, 1)
    for chunk in torch.split(rows, _CHUNK):
        found = dataset.inputs_without(frozenset(dataset.modalities) - set(names), chunk)
        for name in names:
            raw = found[name]
            text = "\0".join(raw).encode(errors="surrogateescape") if isinstance(raw, list) else None
            digest.update(raw.contiguous().numpy().data if isinstance(raw, Tensor) else text or b"")
    return digest.hexdigest()


class TensorImages(Samples):
    """Images that live in memory; most named datasets are one.

    Args:
        images: (n, 3, H, H) uint8.
        labels: (n,) integers, or None.
        coarse_labels: (n,) integers, or None.
        classes: names of the labels.
        coarse_classes: names of the coarse labels.
        name: what the dataset calls itself.
        limit: keep only this many samples, as described at ``limited``.
        only: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, None for the images' own.

    Raises:
        ValueError: if a shape or type is another one, the limit or size is below 1, or there are no such classes.

    Example:
        >>> data = TensorImages(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), labels=torch.arange(5))
        >>> data.fetch(torch.tensor([4, 0])).shape
        torch.Size([2, 3, 8, 8])
    """

    in_memory = True

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        coarse_labels: Tensor | None = None,
        *,
        classes: Sequence[str] | None = None,
        coarse_classes: Sequence[str] | None = None,
        name: str = "tensor",
        limit: int | None = None,
        only: Classes = None,
        size: int | None = None,
    ) -> None:
        square_rgb = images.ndim == 4 and images.shape[1] == 3 and images.shape[2] == images.shape[3]
        if images.dtype != torch.uint8 or not square_rgb:
            raise ValueError(f"images must be (n, 3, H, H) uint8, got {tuple(images.shape)} {images.dtype} in {name}")
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        if only is not None:
            chosen, numbers, classes = choose_classes(
                [] if labels is None else labels.tolist(), classes or _numbers(labels), only, name
            )
            images, labels = images[chosen], torch.tensor(numbers)
            coarse_labels = None if coarse_labels is None else coarse_labels[chosen]
        keep = limited(len(images), limit)
        self._fill({"image": PixelColumn(images if keep is None else images[keep])})
        self.labels = _take_labels(labels, len(images), keep, f"labels of {name}")
        self.coarse_labels = _take_labels(coarse_labels, len(images), keep, f"coarse labels of {name}")
        self.classes = None if classes is None else tuple(classes)
        self.coarse_classes = None if coarse_classes is None else tuple(coarse_classes)
        self.name = name
        self.image_size = images.shape[2] if size is None else size

    @property
    def images(self) -> Tensor:
        """The images, (n, 3, H, H) uint8."""
        column = self.columns["image"]
        assert isinstance(column, PixelColumn)
        return column.images


class Subset(Samples):
    """Some rows of a dataset, renumbered 0..m-1; made by ``subset``. Its other splits are those of the whole."""

    def __init__(self, dataset: Samples, rows: Tensor) -> None:
        check_row_numbers(rows, len(dataset))
        self.dataset, self.rows = dataset, rows
        self.name, self.modalities, self.in_memory = dataset.name, dataset.modalities, dataset.in_memory
        self.image_size, self.metric = dataset.image_size, dataset.metric
        self.classes, self.coarse_classes = dataset.classes, dataset.coarse_classes
        self.labels = None if dataset.labels is None else dataset.labels[rows]
        self.coarse_labels = None if dataset.coarse_labels is None else dataset.coarse_labels[rows]
        self._has_images_alone = set(dataset.modalities) == {"image"} and dataset.samples is None
        self.samples = None if self._has_images_alone else dataset.sample_ids(rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest: of the images themselves, or else of the whole dataset and the rows."""
        if self._has_images_alone:
            return content_digest(self, ("image",))
        digest = hashlib.blake2b(self.dataset.fingerprint.encode(), digest_size=8)
        digest.update(self.rows.numpy().tobytes())
        return digest.hexdigest()

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        """Return the inputs of these rows, as the whole dataset has them."""
        return self.inputs_without(frozenset(), rows, draw)

    def inputs_without(
        self, names: frozenset[str], rows: Tensor, draw: tuple[int, ...] | None = None
    ) -> dict[str, Raw]:
        """Return the inputs of these rows but for some, as the whole dataset has them."""
        check_row_numbers(rows, len(self))
        return self.dataset.inputs_without(names, self.rows[rows], draw)

    @property
    def input_ids(self) -> Mapping[str, Tensor] | None:
        """The identities of these rows' texts, as the whole dataset has them."""
        ids = self.dataset.input_ids
        return None if ids is None else {name: each[self.rows] for name, each in ids.items()}

    def captions(self, row: int) -> list[str]:
        """Return all captions of the image that a row shows, as the whole dataset has them."""
        return self.dataset.captions(int(self.rows[row]))

    def image_ids(self, rows: Tensor) -> Tensor:
        """Return the images that these rows show: their own numbers, or as the whole dataset numbers them."""
        return rows if self._has_images_alone else self.dataset.image_ids(self.rows[rows])

    def keys(self) -> Tensor | None:
        """Return the digests of these rows, where the whole dataset has them."""
        keys = self.dataset.keys()
        return None if keys is None else keys[self.rows]

    def held_out(self, limit: int | None = None) -> Samples | None:
        """Return the test split of the dataset this was taken from."""
        return self.dataset.held_out(limit)

    def validation(self, limit: int | None = None) -> Samples | None:
        """Return the validation split of the dataset this was taken from."""
        return self.dataset.validation(limit)


def subset(dataset: Samples, ids: Tensor) -> Samples:
    """Return the rows with these ids, (m,) int64, as a dataset of their own with ids 0..m-1.

    Raises:
        ValueError: if an id lies outside the dataset.
    """
    return Subset(dataset, ids)


def limited(count: int, limit: int | None) -> Tensor | None:
    """Return which of ``count`` samples a limit keeps, (min(limit, count),) int64, or None to keep all as they are.

    The samples are the first of one fixed permutation. So the choice does not depend on the run's seed, sorted
    classes are mixed, and limits are nested: sample i is the same image under every limit above i.

    Raises:
        ValueError: if the limit is below 1.
    """
    if limit is None:
        return None
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}: it is the number of samples to keep")
    return torch.randperm(count, generator=torch.Generator().manual_seed(_LIMIT_SEED))[:limit]


def choose_classes(
    labels: Sequence[int], names: Sequence[str], classes: Classes, where: str
) -> tuple[list[int], list[int], list[str]]:
    """Keep the samples of some classes, which are renumbered in the dataset's order.

    A number keeps the first of one fixed permutation of the classes. So the choice does not depend on the run's seed,
    neighbours in an ordered list of classes (all the fish) are not chosen as a block, and choices are nested: the 10
    classes are among the 20.

    Args:
        labels: (n,) class of every sample.
        names: the names of the classes.
        classes: how many, or which.
        where: what the dataset is called, for the sentence of a refusal.

    Returns:
        The positions of the samples that are kept, their new labels, and the names that these stand for.

    Raises:
        ValueError: if there are no labels, fewer classes than that, or no class of that name.

    Example:
        >>> choose_classes([0, 1, 2, 1], ["cat", "dog", "owl"], "owl,dog", "photos")
        ([1, 2, 3], [0, 1, 0], ['dog', 'owl'])
    """
    if not names:
        raise ValueError(f"{where} has no labels, so no classes can be chosen: leave classes out")
    if isinstance(classes, str):
        classes = int(classes) if classes.isdecimal() else [name.strip() for name in classes.split(",")]
    if isinstance(classes, int):
        if not 1 <= classes <= len(names):
            raise ValueError(f"classes must be in 1..{len(names)}, the classes of {where}, got {classes}")
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(_CLASSES_SEED))
        chosen = sorted(order[:classes].tolist())
    else:
        unknown = [name for name in classes or () if name not in names]
        if unknown or not classes:
            some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ValueError(f"{where} has no class {', '.join(map(repr, unknown)) or '[]'}: it has {some}")
        chosen = sorted({list(names).index(name) for name in classes})
    new = {old: number for number, old in enumerate(chosen)}
    keep = [i for i, label in enumerate(labels) if label in new]
    return keep, [new[labels[i]] for i in keep], [names[i] for i in chosen]


def check_split(split: str) -> None:
    """Refuse a split that is not "train" or "test"."""
    if split not in ("train", "test"):
        raise ValueError(f'split must be "train" or "test", got {split!r}')


def require_trainable(dataset: Samples, batch_size: int) -> None:
    """Refuse a dataset that is too small to contrast anything, or smaller than one batch.

    Raises:
        ValueError: if there are fewer than two samples, or fewer than ``batch_size``.
    """
    if len(dataset) < 2:
        raise ValueError(
            f"dataset {dataset.name} has {len(dataset)} image(s): contrastive training needs at least 2, add images"
        )
    if batch_size > len(dataset):
        raise ValueError(
            f"batch_size {batch_size} exceeds the {len(dataset)} images of dataset {dataset.name}: "
            f"choose a batch size of at most {len(dataset)}"
        )


def check_row_numbers(ids: Tensor, count: int) -> None:
    """Refuse rows that are no vector of int64 in 0..count-1."""
    if ids.ndim != 1 or ids.dtype != torch.int64:
        raise ValueError(f"ids must be a vector of int64, got {tuple(ids.shape)} {ids.dtype}")
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < count):
        raise ValueError(f"ids must lie in 0..{count - 1}, got {int(ids.min())}..{int(ids.max())}")


def _numbers(labels: Tensor | None) -> list[str]:
    """The numbers of the classes as their names."""
    return [] if labels is None or not len(labels) else [str(number) for number in range(int(labels.max()) + 1)]


def _take_labels(labels: Tensor | None, count: int, keep: Tensor | None, what: str) -> Tensor | None:
    if labels is None:
        return None
    if labels.shape != (count,) or labels.is_floating_point():
        raise ValueError(f"{what} must be {count} integers, got {tuple(labels.shape)} {labels.dtype}")
    return labels.long() if keep is None else labels[keep].long()
