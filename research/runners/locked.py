"""Contrastive learning on top of a locked encoder, where one run takes seconds: views of images, captions of images.

The encoder's features of several views are computed once (`locked_features`), and a small network on top of them is
trained by InfoNCE with any policy and treatment of the library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.evaluation.features import stratified_split
from antipodes.evaluation.linear import linear_probe
from antipodes.functional.feature_quality import knn
from antipodes.runs.build import build_data
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line
from research.runners.heads import (
    Recipe,
    SmallNetwork,
    build_loss,
    build_policy,
    features,
    flags_judged,
    train_network,
)
from research.runners.locked_features import LockedViews, caption_views, image_views

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HELD_OUT = 0.2
"""Share of the training samples that judge in place of the test set where options are chosen."""
STRENGTH = 1e-3
"""Of the linear probe: fixed, so that it costs one fit; the study's pages say so."""


@dataclass(frozen=True)
class Locked(Runner):
    """What both kinds of data have in common.

    Args:
        data: As in a run's configuration: a name or path, and options.
        encoder: The locked one, by name.
        components: Principal components of its features that are kept.
        views: Views of every sample.
        negatives: The policy and its arguments, as in a run's configuration; the dotted path of a class is a name, too.
        treatment: What happens to what it flags.
        temperature: Of InfoNCE.
        trained: False scores the locked features themselves.
        hidden: Features of the network.
        dim: Length of its embeddings; null adds them to the locked features, which training then starts from.
        batch: Samples of a step.
        epochs: Passes over the samples.
        rate: Learning rate.
        judged_by: The test part, or a held-out part of train, which is then not trained on: for choosing options.
    """

    data: dict[str, Any] = field(default_factory=dict)
    encoder: str = ""
    components: int = 256
    views: int = 4
    negatives: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    treatment: Literal["eliminate", "attract", "refine"] = "eliminate"
    temperature: float = 0.1
    trained: bool = True
    hidden: int = 512
    dim: int | None = 128
    batch: int = 512
    epochs: int = 20
    rate: float = 2e-3
    judged_by: Literal["test", "validation"] = "test"

    @property
    def depends(self) -> tuple[str, ...]:
        """The rooms that make features, heads and policies, and modules of this folder."""
        rooms = ("functional", "negatives", "losses", "encoders", "data")
        return (*rooms, "heads", "locked_features", "set_oracle")

    def __post_init__(self) -> None:
        if min(self.components, self.hidden, self.dim or 1, self.epochs) < 1 or min(self.views, self.batch) < 2:
            raise ValueError("components, hidden, dim and epochs must be at least 1, views and batch at least 2")
        if "name" not in self.negatives:
            raise ValueError("negatives needs a name: none, or that of a policy")

    @property
    def _recipe(self) -> Recipe:
        """Sizes and rates of the small network."""
        return Recipe(self.hidden, self.dim, self.batch, self.epochs, self.rate)

    def fitted(self, known: LockedViews, seed: int) -> tuple[SmallNetwork, dict[str, float]]:
        """A network trained on the views with this seed, and how right the flags of its policy are at the end."""
        given = {"num_samples": len(known.plain), "labels": known.labels, "features": known.plain, "seed": seed}
        if known.labels is None:
            del given["labels"]
        policy = build_policy(self.negatives, given)
        loss_fn = build_loss(self.temperature, policy, self.treatment)
        network = train_network(known.views, known.plain, loss_fn, self._recipe, seed)
        if policy is None or known.labels is None:
            return network, {}
        return network, flags_judged(network, known.views, policy, known.labels, self.batch)

    def facts(self) -> dict[str, str]:
        """What was measured on what."""
        name, count, held = _sizes(_frozen(self.data))
        samples = f"{name}, {count:,} training samples, {self.views} views of each{self._part()}"
        judged = f"{held:,} test samples" if self.judged_by == "test" else f"judged by {HELD_OUT:.0%} of them"
        return {
            "data": f"{samples}, {judged}",
            "encoder": f"{self.encoder}, locked, {self.components} principal components; "
            f"trained on top: {self.hidden} features, {self.dim or self.components} embedded",
            "epochs": str(self.epochs),
            "batch": str(self.batch),
        }

    def _part(self) -> str:
        """Which of the samples are used, for the facts."""
        return ""

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Gains over precision where the study sets it, else every variant's scores."""
        from research.runners.gain_figures import gains_figure, surface_figure

        draw = surface_figure if "surface" in study.name else gains_figure
        return draw(study, lines)


@dataclass(frozen=True)
class LockedImages(Locked):
    """Views of labelled images under a locked encoder, judged by the labels of test images.

    Args:
        augmentation: Recipe of the random views, by name.
        linear: Whether to fit the linear probe as well, which takes longer than the training.
        classes: Train and judge on the first so many classes alone; null takes all.
    """

    encoder: str = "efficientnet-lite0"
    augmentation: str = "simclr"
    linear: bool = True
    classes: int | None = None

    def run(self, seed: int) -> dict[str, float]:
        """Accuracies of the network's features, and how right the flags were."""
        known = _images(_frozen(self.data), self.encoder, self.augmentation, self.views, self.components)
        if self.classes is not None:
            known = known.of_classes(self.classes)
        assert known.labels is not None
        if self.judged_by == "validation":
            known = known.kept(*stratified_split(known.labels, HELD_OUT, 0))
        scores: dict[str, float] = {}
        train, test = known.plain, known.test_views[0]
        if self.trained:
            network, scores = self.fitted(known, seed)
            train, test = features(network, train), features(network, test)
        return self._accuracies(train, test, known) | scores

    def _part(self) -> str:
        return "" if self.classes is None else f", those of the first {self.classes} classes alone"

    def _accuracies(self, train: Tensor, test: Tensor, known: LockedViews) -> dict[str, float]:
        assert known.labels is not None
        assert known.test_labels is not None
        scores = {"knn top-1": 100 * knn(train, known.labels, test, known.test_labels, k=20)}
        if self.linear:
            probe = linear_probe(train, known.labels, test, known.test_labels, strengths=(STRENGTH,))
            scores["linear top-1"] = 100 * probe.accuracy.top1
        return scores


@dataclass(frozen=True)
class LockedCaptions(Locked):
    """Captions of images under a locked encoder of texts: two captions of one image are two views of it.

    Judged by recall: a caption's other captions should be among its nearest of all test captions.
    """

    encoder: str = "minilm"
    views: int = 5
    dim: int | None = None

    def run(self, seed: int) -> dict[str, float]:
        """Recall of sibling captions by the embeddings."""
        known = _captions(_frozen(self.data), self.encoder, self.views, self.components)
        if self.judged_by == "validation":
            known = known.kept(*stratified_split(torch.zeros(len(known.plain), dtype=torch.int64), HELD_OUT, 0))
        if not self.trained:
            return sibling_recall(known.test_views)
        network, _ = self.fitted(known, seed)
        return sibling_recall(torch.stack([features(network, view, "embeddings") for view in known.test_views]))


def sibling_recall(views: Tensor) -> dict[str, float]:
    """How often one of a text's siblings is the nearest of all other texts, or among the nearest 5 and 10, in percent.

    Args:
        views: (V, m, D): text v of sample i has the others of sample i as siblings.

    Example:
        >>> sibling_recall(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.1], [0.1, 1.0]]]))["recall at 1"]
        100.0
    """
    count, m, _ = views.shape
    flat = normalize(views.flatten(0, 1), dim=1)
    samples = torch.arange(m).repeat(count)
    ranks = []
    for rows in torch.arange(len(flat)).split(1024):
        similarity = flat[rows] @ flat.T
        similarity[torch.arange(len(rows)), rows] = -2
        same = samples[rows][:, None] == samples[None]
        best = similarity.masked_fill(~same, -2).amax(1, keepdim=True)
        ranks.append((similarity > best).sum(1))
    rank = torch.cat(ranks)
    scores = {f"recall at {k}": 100 * float((rank < k).double().mean()) for k in (1, 5, 10)}
    return {"recall mean": sum(scores.values()) / 3, **scores}


Frozen = tuple[tuple[str, Any], ...]


def _frozen(options: Mapping[str, Any]) -> Frozen:
    return tuple(sorted(options.items()))


@lru_cache(maxsize=1)
def _sizes(data: Frozen) -> tuple[str, int, int]:
    """The name of a dataset, its training samples and its test samples."""
    train = build_data(dict(data))
    return train.name, len(train), len(train.held_out() or ())


@lru_cache(maxsize=1)
def _images(data: Frozen, encoder: str, recipe: str, views: int, components: int) -> LockedViews:
    """The views of a dataset, kept for the next trial of the study."""
    return image_views(dict(data), encoder, recipe, views, components)


@lru_cache(maxsize=1)
def _captions(data: Frozen, encoder: str, views: int, components: int) -> LockedViews:
    return caption_views(dict(data), encoder, views, components)
