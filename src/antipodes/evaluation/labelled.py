"""Protocols that train a classifier on labelled images: a run's own or other datasets', all of them or a part.

1. `LabelledSplits` are the training and test images of a dataset with their labels.
2. `labelled_shares` yields the rows that are used: shares of the labels, or lists in files.
3. `TrainedProtocol` does the rest for protocols that can train on some rows: names, settings by share, the mean.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from antipodes.data import Samples, subset
from antipodes.evaluation.accuracy import Accuracy, MeanPrecision
from antipodes.evaluation.features import class_balanced_subset, stratified_split
from antipodes.evaluation.protocol import LABELS_ARE_NEEDED, Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import number_classes

METRICS = ("top-1", "mean per class", "mAP")
"""The values of a dataset's `metric`: the names of scores."""


@dataclass(frozen=True)
class LabelledSplits:
    """Training images and test images with labels.

    Args:
        train: Training images.
        labels: (n,) their labels in 0..K-1, or (n, K) of 1, 0 and -1 (not counted) with several labels an image.
        test: Test images.
        test_labels: (m,) or (m, K) their labels, with the same numbers.
        classes: K.
        pixels: The mean and std that normalise all images.
    """

    train: Samples
    labels: Tensor
    test: Samples
    test_labels: Tensor
    classes: int
    pixels: Mapping[str, Sequence[float]]

    @classmethod
    def of(cls, train: Samples, test: Samples, pixels: Mapping[str, Sequence[float]]) -> LabelledSplits:
        """Number the classes of two splits without gaps."""
        assert train.labels is not None
        assert test.labels is not None
        if train.labels.ndim == 2:
            return cls(train, train.labels, test, test.labels, train.labels.shape[1], pixels)
        labels, test_labels, classes = number_classes(train.labels, test.labels)
        return cls(train, labels, test, test_labels, classes, pixels)


def own_splits(subject: Subject) -> LabelledSplits:
    """Return the labelled images of a run."""
    assert subject.method is not None
    return LabelledSplits.of(*subject.labelled_images(), subject.method.pixels)


def other_splits(other: Samples, subject: Subject, protocol: str) -> LabelledSplits:
    """Return the labelled images of another dataset; one without a test split is divided, class by class.

    Args:
        other: The training split.
        subject: The subject, for its limit of test images and its choice of pixel statistics.
        protocol: The name of the protocol, for messages.

    Raises:
        ValueError: if there are no labels.
    """
    assert subject.method is not None
    test = other.held_out(subject.test_limit)
    for part, data in (("train", other), ("test", test)):
        if data is not None and data.labels is None:
            raise ValueError(f"{other.name}: " + LABELS_ARE_NEEDED.format(protocol=protocol, part=part))
    assert other.labels is not None
    train = other
    if test is None:
        kept, held = stratified_split(other.labels, 0.2, 0)  # as `split_features` divides
        train, test = subset(other, kept), subset(other, held)
    own = subject.other_pixels(train)
    return LabelledSplits.of(train, test, subject.method.pixels if own is None else own)


def labelled_shares(
    prefix: str, splits: LabelledSplits, fractions: Sequence[float], ids: str | Sequence[str] | None, seed: int
) -> Iterator[tuple[str, Tensor, dict[str, float]]]:
    """Yield the labelled parts of a training set that a protocol is asked for.

    Args:
        prefix: Of the names of scores.
        splits: The images.
        fractions: Shares of the labels, drawn class by class.
        ids: Files that list the labelled images instead, see `read_listed_rows`: of each share, or any.
        seed: Seed of the draw.

    Yields:
        The name of the scores (`PREFIX` of all labels alone, `PREFIX 10 % labels` of a share, `PREFIX labels of FILE`
        of a list unless there is one of each of several shares), the rows (m,), and the share that was used where
        rounding in small classes changed it.
    """
    names = [prefix if tuple(fractions) == (1.0,) else f"{prefix} {100 * share:g} % labels" for share in fractions]
    if ids is not None:
        files = [ids] if isinstance(ids, str) else ids
        if len(files) != len(names) or len(files) == 1:
            names = [f"{prefix} labels of {Path(file).stem}" for file in files]
        for name, file in zip(names, files, strict=True):
            yield name, read_listed_rows(file, splits.train), {}
        return
    for name, fraction in zip(names, fractions, strict=True):
        rows = class_balanced_subset(splits.labels, fraction, seed)
        yield name, rows, used_share(name, len(rows), len(splits.labels), fraction)


def rate_name(protocol: str, name: str) -> str:
    """Return the name under which the rate of a score is reported.

    Example:
        >>> rate_name("fine-tune", "fine-tune on pets 10 % labels"), rate_name("linear-sgd", "linear-sgd")
        ('fine-tune rate, pets 10 % labels', 'linear-sgd rate')
    """
    part = name.removeprefix(protocol).strip().removeprefix("on ")
    return f"{protocol} rate, {part}" if part else f"{protocol} rate"


def read_listed_rows(file: str, data: Samples) -> Tensor:
    """Read which images of a training set are labelled: one a line, by file name (SimCLR's lists) or by row number.

    Args:
        file: The text file; empty lines do not count.
        data: The training set; file names need a folder of images.

    Returns:
        The rows (m,) in rising order.

    Raises:
        ValueError: if the file cannot be read, is empty, or names an image that the training set lacks.
    """
    try:
        lines = [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as a list of labelled images: {error}") from error
    if not lines:
        raise ValueError(f"{file} lists no image")
    if all(line.isdecimal() for line in lines):
        places = {str(row): row for row in range(len(data))}
        lines = [str(int(line)) for line in lines]
    else:
        paths: Sequence[str] = getattr(data, "paths", ())
        if not paths:
            raise ValueError(f"{file} lists file names, and {data.name} is no folder of images: list row numbers")
        places = {Path(path).name: row for row, path in enumerate(paths)}
        if len(places) < len(paths):
            raise ValueError(f"{file} lists file names, and two images of {data.name} have one: list row numbers")
        lines = [Path(line).name for line in lines]
    if missing := [line for line in lines if line not in places]:
        raise ValueError(f"{file} lists {missing[0]}, which {data.name} does not have ({len(missing)} are missing)")
    return torch.tensor(sorted({places[line] for line in lines}))


def used_share(name: str, used: int, count: int, fraction: float) -> dict[str, float]:
    """Return `NAME, used %` if the share of labels that were drawn differs from `fraction` by more than 1 % of it.

    Example:
        >>> used_share("linear 1 % labels", 10, 100, 0.01), used_share("linear 10 % labels", 10, 100, 0.1)
        ({'linear 1 % labels, used %': 10.0}, {})
    """
    share = used / count
    return {f"{name}, used %": 100 * share} if abs(share - fraction) > 0.01 * fraction else {}


def custom_metric(data: Samples) -> str:
    """Return the name of a dataset's usual score: mAP with several labels an image, else its `metric`.

    Raises:
        ValueError: if `metric` is not one of METRICS, or needs several labels an image.
    """
    if data.labels is not None and data.labels.ndim == 2:
        return "mAP"
    if data.metric not in METRICS or data.metric == "mAP":
        raise ValueError(f"dataset {data.name} cannot be judged by {data.metric!r}: there are {', '.join(METRICS)}")
    return data.metric


class TrainedProtocol(Protocol):
    """A protocol that trains a classifier on labelled images; a frozen dataclass with the options that follow.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
        ids: Files with the labelled images of each share, or of any: file names (SimCLR's lists) or row numbers.

    Attributes:
        prefix: Of the names of scores.
        by_share: Options that are one value for all shares of the labels, or a value for each.
    """

    prefix: ClassVar[str]
    by_share: ClassVar[tuple[str, ...]]
    fractions: tuple[float, ...]
    ids: str | tuple[str, ...] | None

    @abstractmethod
    def trained(self, subject: Subject, splits: LabelledSplits, rows: Tensor) -> tuple[Accuracy | MeanPrecision, float]:
        """Train on some training images (m,), and return the accuracy on the test images and the learning rate."""

    def run(self, subject: Subject) -> dict[str, float]:
        """Return the scores and the rate for every dataset and share of the labels: top-1, top-5 and mean per class, or
        mAP with several labels an image; of several shares also their mean; of several other datasets also the mean of
        usual scores, of the last share.

        Raises:
            ValueError: if a dataset has no labels.
        """
        if not self.takes_others:
            return self._scores_on(subject, own_splits(subject), self.prefix)
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            found = self._scores_on(subject, other_splits(other, subject, self.name), f"{self.prefix} on {other.name}")
            customs.append([score for name, score in found.items() if name.endswith(f" {custom_metric(other)}")][-1])
            scores |= found
        if len(customs) > 1:
            scores[f"{self.prefix} on others, mean"] = fmean(customs)
        return scores

    def check_shares(self) -> None:
        """Refuse shares that are none, and options whose values are not one for each share.

        Raises:
            ValueError: the message names the option.
        """
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ValueError(f"fractions must be shares in (0, 1], got {list(self.fractions)}")
        files = [self.ids] if isinstance(self.ids, str) else self.ids or []
        if missing := [file for file in files if not Path(file).is_file()]:
            raise ValueError(f"ids names {missing[0]}, which is not a file: give lists of labelled images")
        shares = len(files or self.fractions)
        for name in self.by_share:
            if len(values := self.values(name)) not in (1, shares):
                raise ValueError(f"{name} must be one value, or one for each of {shares} shares, got {list(values)}")

    def values(self, option: str) -> Sequence[Any]:
        """Return the values of an option that may have one for each share."""
        value = getattr(self, option)
        return value if isinstance(value, (tuple, list)) else (value,)

    def _scores_on(self, subject: Subject, splits: LabelledSplits, prefix: str) -> dict[str, float]:
        scores: dict[str, float] = {}
        mains = []
        shares = labelled_shares(prefix, splits, self.fractions, self.ids, subject.seed)
        for place, (name, rows, used) in enumerate(shares):
            own = {option: self.values(option)[place % len(self.values(option))] for option in self.by_share}
            one: TrainedProtocol = replace(self, fractions=(1.0,), ids=None, **own)  # type: ignore[type-var]
            found, rate = one.trained(subject, splits, rows)
            scores |= found.named(name) | used | {rate_name(self.prefix, name): rate}
            mains.append(100 * found.main)
        if len(mains) > 1:
            scores[f"{prefix} mean of shares"] = fmean(mains)
        return scores
