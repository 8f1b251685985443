"""Descriptions of a dataset: what was found and left out, which rows are equal, and the mean colour of its images."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

import torch
from torch import Tensor

from antipodes.files import DataError, replacing
from antipodes.plain_text import csv_cell
from antipodes.plain_text import printable as printable

if TYPE_CHECKING:
    from antipodes.data.dataset import Samples

_MANY = 200_000  # rows up to which exact duplicates are looked for unasked, where no digests are at hand
_CHUNK = 1024
_STATISTICS_CHUNK = 256
_SAMPLED = 10_000  # images, evenly spread, whose colours are measured where they have to be decoded


class Statistics(NamedTuple):
    """Mean and standard deviation of red, green and blue in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Described:
    """The part of every dataset that describes it.

    Attributes:
        skipped: (path, reason) of everything that was left out.
        unused_columns: those of its table that nothing reads.
        metric: by which a classifier on this dataset is customarily judged: the share of right answers, its mean over
            classes, or the mean average precision of several labels a row.
        knows_duplicates: whether ``groups`` follows from digests that are at hand, without reading every row.
    """

    skipped: Sequence[tuple[str, str]] = ()
    unused_columns: Sequence[str] = ()
    metric: Literal["top-1", "mean per class", "mAP"] = "top-1"
    knows_duplicates: bool = False

    def describe(self) -> list[str]:
        """Return a few lines for people: how many samples and classes, of which size, and what was left out."""
        data = cast("Samples", self)
        side = getattr(data, "image_size", 0)
        lines = [
            f"{len(data):,} images of {side} x {side} pixels"
            if side and set(data.modalities) == {"image"}
            else f"{len(data):,} rows of {' and '.join(data.modalities)}"
        ]
        if data.samples is not None:
            lines.append(f"{int(data.samples.unique().numel()):,} samples")
        if data.labels is not None and data.labels.ndim == 2:
            lines.append(f"{data.labels.shape[1]:,} classes, several a row")
        elif data.labels is not None:
            lines.append(f"{len(data.classes) if data.classes else int(data.labels.unique().numel()):,} classes")
        return lines + self._closing_lines()

    def groups(self) -> Tensor:
        """Return the group of exact duplicates that every row belongs to, (n,) int64; -1 for a row that is alone.

        Two images are the same when their files are, or their decoded pixels; a caption counts for nothing there. Two
        rows of texts or vectors are the same when all their inputs are. Rows of one sample (several captions of an
        image) are no duplicates of each other, and share their sample's group. The policy ``Known`` takes the groups.
        """
        return self._duplicates

    @cached_property
    def _duplicates(self) -> Tensor:
        return group_equal(_contents(cast("Samples", self)))

    def statistics(self) -> Statistics:
        """Return the mean and standard deviation of the colours, as ``pixel_statistics`` does."""
        return pixel_statistics(cast("Samples", self))

    def write_skipped(self, path: str | Path) -> None:
        """Write what was left out as a table of path and reason, ``skipped.csv``; it appears whole or not at all."""
        with (
            replacing(Path(path)) as partial,
            partial.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(("path", "reason"))
            writer.writerows(map(csv_cell, row) for row in self.skipped)

    def _closing_lines(self) -> list[str]:
        """What the description of every dataset ends with: exact duplicates, what was left out, and unused columns."""
        return [*self._duplicate_lines(), *self._skipped_lines(), *self._column_lines()]

    def _column_lines(self) -> list[str]:
        """One line that names the columns of the table that nothing reads."""
        names = ", ".join(map(printable, self.unused_columns))
        return [f"columns that are not used: {names}"] if names else []

    def _duplicate_lines(self) -> list[str]:
        data = cast("Samples", self)
        if not self.knows_duplicates and (not data.in_memory or len(data) > _MANY):
            return []  # every row would have to be read for it
        groups = self.groups()
        grouped = int((groups >= 0).sum())
        if not grouped:
            return ["no exact duplicates"]
        return [f"{grouped:,} rows are exact duplicates of each other, in {int(groups.max()) + 1:,} groups"]

    def _skipped_lines(self) -> list[str]:
        """One line for every reason, the most frequent first, with an example."""
        reasons = Counter(reason for _, reason in self.skipped)
        first = {reason: path for path, reason in reversed(self.skipped)}
        return [
            f"left out {count:,}: {printable(reason)} ({printable(first[reason])}{', ...' if count > 1 else ''})"
            for reason, count in reasons.most_common()
        ]


def duplicates(dataset: Samples) -> Tensor:
    """Return the group of exact duplicates that every row belongs to; see ``Samples.groups``."""
    return dataset.groups()


def group_equal(*keys: Sequence[Hashable]) -> Tensor:
    """Return (n,) int64: rows that share any key, directly or through others, have one number, all others -1.

    Groups are numbered in the order of their first rows.

    Example:
        >>> group_equal(["a", "b", "c", "a", "d"], [1, 2, 3, 4, 2]).tolist()
        [0, 1, -1, 0, 1]
    """
    count = len(keys[0])
    parents = list(range(count))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for column in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column):
            one, other = root(row), root(first.setdefault(key, row))
            parents[max(one, other)] = min(one, other)
    roots = torch.tensor([root(row) for row in range(count)], dtype=torch.int64)
    several = torch.bincount(roots, minlength=count) > 1 if count else torch.zeros(0, dtype=torch.bool)
    number = torch.where(several, several.cumsum(0) - 1, -1)
    return number[roots]


def _contents(dataset: Samples) -> list[bytes]:
    """Return a digest of every row: of its image where it has one, else of all its inputs."""
    images = "image" in dataset.modalities and dataset.modalities["image"] == "image"
    keys = []
    for rows in torch.arange(len(dataset)).split(_CHUNK):
        inputs = dataset.inputs(rows)
        columns = [inputs["image"]] if images else list(inputs.values())
        for row in range(len(rows)):
            digest = hashlib.blake2b(digest_size=12)
            for column in columns:
                value = column[row]
                content = value.encode(errors="surrogateescape") if isinstance(value, str) else value.numpy().tobytes()
                digest.update(len(content).to_bytes(8, "little") + content)
            keys.append(digest.digest())
    return keys


def pixel_statistics(dataset: Samples) -> Statistics:
    """Return the statistics of all pixels of all images (of 10,000 images where they have to be decoded).

    A channel that never changes gets a standard deviation of 1, as nothing else could divide it.

    Raises:
        DataError: if the dataset has no images.

    Example:
        >>> from antipodes.data import TensorImages
        >>> data = TensorImages(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4))
        >>> pixel_statistics(data).mean
        (0.5, 0.5, 0.5)
    """
    name = next((name for name, modality in dataset.modalities.items() if modality == "image"), None)
    if name is None or not len(dataset):
        raise DataError(f"dataset {dataset.name} has no images whose colours could be measured")
    count = len(dataset) if dataset.in_memory else min(len(dataset), _SAMPLED)
    histograms = torch.zeros(3, 256, dtype=torch.int64)
    for rows in (torch.arange(count) * len(dataset) // count).split(_STATISTICS_CHUNK):
        images = dataset.inputs(rows)[name]
        assert isinstance(images, torch.Tensor)
        for channel, histogram in zip(images.transpose(0, 1).flatten(1), histograms, strict=True):
            histogram += torch.bincount(channel, minlength=256)
    shares = histograms.double() / histograms[0].sum()
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
    std = torch.where(std > 0, std, 1.0)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))
