"""`transfer`: the linear probe on other datasets than the one an encoder was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.data.hub import HubCaptions
from antipodes.data.image_files import ImageFiles
from antipodes.evaluation.accuracy import average_precision
from antipodes.evaluation.features import FeatureSet
from antipodes.evaluation.labelled import custom_metric
from antipodes.evaluation.linear import STRENGTHS, fit_logistic, linear_probe
from antipodes.evaluation.protocol import LABELS_ARE_NEEDED, Protocol
from antipodes.evaluation.subject import Subject
from antipodes.registry import find
from antipodes.runs.build import build_data
from antipodes.seeding import generator


@dataclass(frozen=True)
class Transfer(Protocol):
    """Logistic regression on frozen features of other datasets, the strength chosen on a held-out part of their train.

    A dataset's attribute `metric` names its usual score. Labels (n, K) of 0 and 1 stand for several labels per image,
    where -1 does not count. The protocol has no options.
    """

    name = "transfer"
    summary = "the linear probe on other datasets, their images resized to those of the run: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5 and mean per class for every dataset (mAP with several labels), and the mean of usual
        scores.
        """
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            train, test = subject.features_of(other, subject.other_view(other))
            prefix = f"transfer {other.name}"
            found = probe_several(prefix, train, test) if _several(other) else _probe(prefix, train, test, subject.seed)
            scores |= found
            customs.append(found[f"{prefix} {custom_metric(other)}"])
        if len(customs) > 1:
            scores["transfer mean"] = fmean(customs)
        return scores


def probe_several(prefix: str, train: FeatureSet, test: FeatureSet, points: int | None = 11) -> dict[str, float]:
    """Fit a logistic regression for each class, its strength chosen on a fifth of train; return the mean of their APs.

    Args:
        prefix: Prefix of the score's name.
        train: Features (n, F) with labels (n, K): 1, 0, or -1 for do-not-count.
        test: Features and labels of test.
        points: See `average_precision`.
    """
    assert train.labels is not None
    assert test.labels is not None
    kept = torch.rand(len(train.features), generator=generator("several labels", 0)) >= 0.2
    every = []
    for known, truth in zip(train.labels.T, test.labels.T, strict=True):
        if not all(bool((known[part] == value).any()) for part in (kept, ~kept) for value in (0, 1)):
            continue  # a class that is missing in one part cannot be fitted, or its strength not chosen
        use = known >= 0
        tried = {
            strength: average_precision(
                _scores(train, known, kept & use, strength, train.features[~kept]), known[~kept]
            )
            for strength in STRENGTHS[::2][:6]
        }
        best = max(tried, key=lambda strength: tried[strength])
        every.append(average_precision(_scores(train, known, use, best, test.features), truth, points))
    if not every:
        raise ValueError(f"{prefix}: no class has both right and wrong images in train, nothing can be learned")
    return {f"{prefix} mAP": 100 * fmean(every)}


def open_others(names: Sequence[str], size: int, limit: int | None = None) -> list[Samples]:
    """Open the training splits of datasets to transfer to.

    Args:
        names: As in --data of a run: names, folders of images, .npz files, dotted paths of classes.
        size: Side of the images the encoder was trained on, to which folders are decoded.
        limit: Number of training images of each that are used, at most.

    Raises:
        ValueError: if one cannot be opened or has no labels, or two have the same name.
    """
    others = [open_at_size(name, size, limit) for name in names]
    for other, name in zip(others, names, strict=True):
        if other.labels is None:
            raise ValueError(f"{name}: {LABELS_ARE_NEEDED.format(protocol='transfer', part='train')}")
    titles = [other.name for other in others]
    if twice := {title for title in titles if titles.count(title) > 1}:
        raise ValueError(
            f"two datasets to transfer to are called {twice.pop()}: their scores would have one name, rename a folder"
        )
    return others


def open_at_size(name: str, size: int, limit: int | None = None) -> Samples:
    """Open the training split of a dataset; images that are files are decoded for views of that size."""
    arguments = {} if limit is None else {"limit": limit}
    target = find("data", name).target
    if isinstance(target, type) and issubclass(target, (ImageFiles, HubCaptions)):
        arguments["size"] = size
    return build_data({"name": name, **arguments})


def _several(data: Samples) -> bool:
    return data.labels is not None and data.labels.ndim == 2


def _probe(prefix: str, train: FeatureSet, test: FeatureSet, seed: int) -> dict[str, float]:
    if train.labels is None or test.labels is None:
        part = "train" if train.labels is None else "test"
        raise ValueError(LABELS_ARE_NEEDED.format(protocol="transfer", part=part))
    result = linear_probe(train.features, train.labels, test.features, test.labels, seed=seed)
    return result.accuracy.named(prefix)


def _scores(train: FeatureSet, known: Tensor, use: Tensor, strength: float, features: Tensor) -> Tensor:
    classifier = fit_logistic(train.features[use], known[use], strength, classes=2)
    logits = classifier.logits(features)
    return logits[:, 1] - logits[:, 0]
