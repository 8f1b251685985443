"""Accuracies of a classifier, in percent under the names that all protocols use, and the loss that trains it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy


@dataclass(frozen=True)
class Accuracy:
    """Accuracies in [0, 1]; `top5` is None with five classes or fewer."""

    top1: float
    top5: float | None
    mean_per_class: float

    @property
    def main(self) -> float:
        """The accuracy by which settings are chosen."""
        return self.top1

    def named(self, prefix: str, per_class: bool = True) -> dict[str, float]:
        """Return the accuracies in percent: `PREFIX top-1`, `PREFIX top-5` and `PREFIX mean per class`."""
        scores = {f"{prefix} top-1": 100 * self.top1}
        if self.top5 is not None:
            scores[f"{prefix} top-5"] = 100 * self.top5
        return scores | ({f"{prefix} mean per class": 100 * self.mean_per_class} if per_class else {})


@dataclass(frozen=True)
class MeanPrecision:
    """The mean in [0, 1] of the classes' average precisions, of images with several labels."""

    main: float

    def named(self, prefix: str, per_class: bool = True) -> dict[str, float]:
        """Return it in percent: `PREFIX mAP`."""
        return {f"{prefix} mAP": 100 * self.main}


def judge(logits: Tensor, labels: Tensor) -> Accuracy | MeanPrecision:
    """Judge logits (n, K) by labels (n,), or by several an image (n, K) as VOC2007 does.

    Raises:
        ValueError: if no image has any of several labels.
    """
    if labels.ndim == 1:
        return accuracy(logits, labels)
    precisions = [
        average_precision(scores, truth) for scores, truth in zip(logits.T, labels.T, strict=True) if (truth > 0).any()
    ]
    if not precisions:
        raise ValueError("no image of test has a label, nothing can be judged")
    return MeanPrecision(fmean(precisions))


def fit_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return what a classifier minimises: cross-entropy with labels (B,); with several labels an image (B, K) of 1, 0
    and -1 the mean of the logistic losses of all that count (1 and 0).
    """
    if labels.ndim == 1:
        return cross_entropy(logits, labels)
    counted = labels >= 0
    losses = binary_cross_entropy_with_logits(logits, labels.clamp(min=0).to(logits.dtype), reduction="none")
    return (losses * counted).sum() / counted.sum().clamp(min=1)


def accuracy(logits: Tensor, labels: Tensor) -> Accuracy:
    """Return how often logits (n, K) are highest at the labels (n,), or among the five highest.

    Example:
        >>> accuracy(torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 0])).top1
        0.6666666666666666
    """
    hits = (logits.argmax(1) == labels).double()
    classes = logits.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    per_class = torch.bincount(labels, weights=hits, minlength=classes)[counts > 0] / counts[counts > 0]
    top5 = None
    if classes > 5:
        top5 = float((logits.topk(5).indices == labels[:, None]).any(1).double().mean())
    return Accuracy(float(hits.mean()), top5, float(per_class.mean()))


def average_precision(scores: Tensor, truth: Tensor, points: int | None = 11) -> float:
    """Return the average precision in [0, 1] of a ranking by scores.

    Args:
        scores: (n,) the score of each sample; the higher, the more likely it is positive.
        truth: (n,) 1 for a positive sample, 0 for a negative one, below 0 for a sample that does not count.
        points: VOC2007's measure: the mean, over this many evenly spaced recalls, of the best precision at that recall
            or above. None takes the mean precision at every positive sample.

    Example:
        >>> average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]), points=None)
        0.8333333333333333
    """
    counted = truth >= 0
    right = truth[counted][scores[counted].argsort(descending=True, stable=True)].double()
    if not bool(right.any()):
        return 0.0
    found = right.cumsum(0)
    precision = found / torch.arange(1, len(right) + 1)
    if points is None:
        return float(precision[right > 0].mean())
    recall = found / found[-1]
    levels = torch.linspace(0, 1, points, dtype=recall.dtype)
    best = precision.flip(0).cummax(0).values.flip(0)  # the best precision at this place or later
    places = torch.searchsorted(recall, levels - 1e-12)
    return float(best[places.clamp(max=len(best) - 1)].mean())
