"""`label-free`: how good embeddings are where no labels exist, and the measures that it is made of.

Every measure normalises its vectors first, so it describes the directions that a cosine compares."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import cast

import torch
from torch import Tensor

from antipodes.data import Raw, subset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import first_ranks, recalls
from antipodes.functional.normalise import normalise
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator

BLOCK_ELEMENTS = 2**22


def alignment(first: Tensor, second: Tensor) -> float:
    """The mean squared distance between the embeddings of two views of the same samples (Wang and Isola 2020).

    Args:
        first: (n, D) one view of every sample; need not be normalised.
        second: (n, D) the other view, in the same order.

    Returns:
        Between 0 (both views have the same embedding) and 4; unrelated vectors give about 2.

    Example:
        >>> alignment(torch.eye(2), torch.eye(2).flip(0))
        2.0
    """
    if first.shape != second.shape or first.ndim != 2 or len(first) == 0:
        raise ValueError(
            f"first and second must have one shape (n, D), got {tuple(first.shape)} and {tuple(second.shape)}"
        )
    return float((normalise(first.double()) - normalise(second.double())).square().sum(1).mean())


def uniformity(embeddings: Tensor, most: int = 4096) -> float:
    """The logarithm of the mean of exp(-2 d^2) over all pairs of embeddings (Wang and Isola 2020).

    Args:
        embeddings: (n, D); need not be normalised. Of more than `most`, evenly spaced rows stand for all.
        most: The largest number of embeddings whose pairs are computed.

    Returns:
        0 if all embeddings are equal; lower if they are spread more evenly.

    Example:
        >>> uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        -8.0
    """
    if len(embeddings) < 2:
        raise ValueError(f"embeddings must be at least two vectors, got {len(embeddings)}")
    count = min(len(embeddings), most)
    unit = normalise(embeddings[torch.arange(count) * len(embeddings) // count].double())
    squared = (2 - 2 * unit @ unit.T).clamp(min=0)
    above = squared[torch.triu_indices(count, count, 1).unbind()]
    return float(torch.logsumexp(-2 * above, 0)) - math.log(len(above))


def effective_rank(embeddings: Tensor) -> float:
    """The number of directions that centred embeddings use: exp of the entropy of their singular values.

    This is the effective rank of Roy and Vetterli (2007), computed from the embeddings after normalisation.

    Args:
        embeddings: (n, D); need not be normalised.

    Returns:
        Between 1 (all lie on a line) and D.

    Example:
        >>> round(effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 6)
        2.0
    """
    unit = normalise(embeddings.double())
    values = torch.linalg.svdvals(unit - unit.mean(0))
    share = values / values.sum() if bool(values.sum() > 0) else values
    return float(torch.special.entr(share).sum().exp())


def duplicate_recall(embeddings: Tensor, groups: Tensor, k: int = 5) -> float:
    """The share of grouped samples that have another member of their group among their k nearest neighbours.

    A sample outside the group that is exactly as near as the nearest member is counted before it, so a collapsed
    encoder scores 0.

    Args:
        embeddings: (n, D); need not be normalised.
        groups: (n,) int64, the group of each sample; a negative number means that the sample has none.
        k: The number of neighbours.

    Returns:
        A share in [0, 1]; NaN if no group has two members.

    Example:
        >>> duplicate_recall(torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2), k=1)
        1.0
    """
    _, number, sizes = groups.unique(return_inverse=True, return_counts=True)
    members = ((groups >= 0) & (sizes[number] > 1)).nonzero().flatten()
    if len(members) == 0:
        return math.nan
    unit = normalise(embeddings)
    found = 0
    for part in members.split(max(1, BLOCK_ELEMENTS // len(unit))):
        similarity = unit[part] @ unit.T
        same = groups[part, None] == groups
        outside = similarity.masked_fill(same, -torch.inf)
        best = similarity.masked_fill(~same, -torch.inf).scatter_(1, part[:, None], -torch.inf).amax(1, keepdim=True)
        found += int(((outside >= best).sum(1) < k).sum())
    return found / len(members)


@dataclass(frozen=True)
class LabelFree(Protocol):
    """Compare two random views of held-out images: recall of the other view, alignment, uniformity, effective rank.

    Duplicate recall is the share of views that have the other one among their five neighbours in the whole set.

    Args:
        most: Number of images that are used, at most; recall falls as the number grows.
    """

    name = "label-free"
    summary = "without labels: an image's other view found, duplicate recall, alignment, uniformity, effective rank"
    needs = frozenset({"network"})

    most: int = 5000

    def __post_init__(self) -> None:
        if self.most < 3:
            raise ValueError(f"most must be at least 3, got {self.most}: it is a number of images")

    def check(self, subject: Subject) -> None:
        """Refuse a run that looks at no images: texts and vectors have no second view.

        Raises:
            ValueError: the first tower of the run sees something else.
        """
        super().check(subject)
        assert subject.method is not None
        network = subject.method.network
        if (modality := network.plans[network.names()[0]].modality) != "image":
            raise ValueError(f"the label-free protocol compares random views of images, and this run sees {modality}s")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return recalls in percent, and alignment and uniformity (the lower the better) and effective rank as they
        are.
        """
        assert subject.method is not None
        assert subject.data is not None
        data = subject.data if subject.held_out is None else subject.held_out
        number = min(len(data), self.most)
        some = subset(data, torch.arange(number) * len(data) // number)
        recipe = subject.recipe
        if recipe is None:
            spec = {"name": "crop-flip", **subject.method.pixels}
            recipe = build_augmentation(spec, subject.data.image_size, subject.method.normalised)
        first, second = (subject.embed(some, view=_views(recipe, subject.seed, view)) for view in (0, 1))
        ids = torch.arange(number)
        found = recalls(first_ranks(first, second, ids, ids), (1, 5))
        both = torch.cat((first, second))
        return {
            **{f"other view R@{cutoff}": 100 * share for cutoff, share in found.items()},
            "duplicate recall": 100 * duplicate_recall(both, ids.repeat(2)),
            "alignment": alignment(first, second),
            "uniformity": uniformity(first),
            "effective rank": effective_rank(both),
        }


def _views(recipe: Augmentation, seed: int, view: int) -> Callable[[Raw], Tensor]:
    numbers = count()
    return lambda images: recipe(cast(Tensor, images), generator("label-free views", seed, view, next(numbers)))
