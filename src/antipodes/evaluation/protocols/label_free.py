"""`label-free`: measures of features that need no labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import cast

import torch
from torch import Tensor

from antipodes.data import Raw, subset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.measures import alignment, duplicate_recall, effective_rank, uniformity
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import first_ranks, recalls
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator


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
