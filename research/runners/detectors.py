"""Which model finds false negatives? One SimCLR training with several detectors, judged by labels.

1. SimCLR trains without a policy. Along the way, a `HistoryGuide` takes every sample's embeddings, a `MomentumGuide`
   follows the network, and `GloFND` learns thresholds; none of them has any influence on the training.
2. After some steps every detector says which samples are false negatives of which. Those by share flag the nearest
   `alpha` of a batch: by one random view through the network (own) or through the momentum network, the same view, by
   the sample's history, or by a frozen pretrained network (guide). GloFND flags what exceeds its thresholds. The
   neighbours are the mutual k nearest of the whole dataset, by history or by the guide.
3. Labels say how right they were: precision is the share of flagged pairs of one class, recall the share of pairs of
   one class that are flagged, both over all pairs of the batches, or of the dataset for the neighbours.

All detectors judge one training, so it is run once for all variants that differ in nothing but the detector.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Literal, cast, get_args

import torch
from torch import Tensor

from antipodes.candidates.batch import batch_pairs
from antipodes.data import Loader, Raw, Samples
from antipodes.data.augment import Augmentation, augmentation
from antipodes.encoders import create
from antipodes.encoders.heads import Head
from antipodes.encoders.loading import load
from antipodes.guides import HistoryGuide, MomentumGuide
from antipodes.losses import InfoNCE
from antipodes.methods import Tower
from antipodes.negatives import FNC, DatasetNeighbours, GloFND, Policy
from antipodes.negatives.flags import count_flags
from antipodes.pairs import Pairs, normalise
from antipodes.runs.build import build_data
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.guides import network_vectors
from antipodes.schedules import learning_rate
from antipodes.seeding import generator
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Detector = Literal["own", "glofnd", "momentum", "history", "guide", "history neighbours", "guide neighbours", "chance"]
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Detectors(Runner):
    """Precision and recall in percent of one detector in the course of SimCLR.

    Args:
        detector: The source of the similarities.
        data: A dataset by name, or the path of one, with labels.
        limit: How many of its training images.
        steps: Of training.
        measured: After how many steps the detectors are judged; every sample should have been seen by the first.
        batch: Samples of a step, and of a batch that is judged.
        alpha: Share of a batch that detectors by share flag, and of the dataset that GloFND's thresholds exceed.
        k: Neighbours of a sample.
        encoder: What is trained.
        temperature: Of the loss.
        rate: Learning rate at a batch of 256, of SGD with momentum 0.9, warmed up and falling by a cosine.
        history: Share of a history that stays at a visit.
        momentum: Share of the momentum network that stays at a step.
        guide: The frozen network, as antipodes.load takes it.
        guide_size: Side in pixels to which images are scaled for it.
    """

    detector: Detector = "own"
    data: str = "cifar10"
    limit: int | None = None
    steps: int = 780
    measured: tuple[int, ...] = (78, 195, 390, 585, 780)
    batch: int = 256
    alpha: float = 0.01
    k: int = 5
    encoder: str = "resnet8-slim"
    temperature: float = 0.2
    rate: float = 0.12
    history: float = 0.9
    momentum: float = 0.99
    guide: str = "efficientnet-lite0"
    guide_size: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "measured", tuple(self.measured))
        if not self.measured or not all(1 <= step <= self.steps for step in self.measured):
            raise ValueError(f"measured must be steps in 1..{self.steps}, got {list(self.measured)}")

    def run(self, seed: int) -> dict[str, float]:
        """Precision and recall of the detector, the end of training first."""
        return dict(_every_detector(replace(self, detector="own"), seed)[self.detector])

    def facts(self) -> dict[str, str]:
        """Data and training."""
        name = self.data.rpartition("/")[2]
        return {
            "data": name if self.limit is None else f"{self.limit:,} training images of {name}",
            "encoder": self.encoder,
            "training": f"SimCLR, {self.steps:,} steps of {self.batch}",
            "guide": f"{self.guide}, frozen, images scaled to {self.guide_size} pixels",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Precision and recall over steps, a row of panels for each dataset."""
        from research.runners.detector_figure import detector_figure

        return detector_figure(study, lines)


@cache
def _every_detector(options: Detectors, seed: int) -> dict[str, Scores]:
    """One training, and the scores of all detectors."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # the initial weights
        data = build_data({"name": options.data, **({} if options.limit is None else {"limit": options.limit})})
        if data.labels is None:
            raise ValueError(f"detectors are judged by labels and {data.name} has none")
        return _Training(options, data, seed).run()


class _Training:
    """A SimCLR training with everything that looks on."""

    def __init__(self, options: Detectors, data: Samples, seed: int) -> None:
        self.options, self.data, self.seed = options, data, seed
        assert data.labels is not None
        self.labels = data.labels
        encoder = create(options.encoder)
        head = Head(batch_norm=True)
        self.network = Tower(encoder, head.build(encoder.num_features))
        self.slow = MomentumGuide(self.network, options.momentum)
        self.history = HistoryGuide(len(data), head.dim, options.history)
        self.glofnd = GloFND(len(data), alpha=options.alpha, initial="one", lr=0.05)  # as in the paper
        self.recipe: Augmentation = augmentation("simclr", size=data.image_size)
        self.guide = normalise(network_vectors(load(options.guide), data, size=options.guide_size))
        self.by_guide = _neighbours(self.guide, self.labels, options.k)

    def run(self) -> dict[str, Scores]:
        """Train, and judge after the steps that are asked for."""
        options, total = self.options, self.options.steps
        loader, loss_fn = Loader(self.data, options.batch, seed=self.seed), InfoNCE(options.temperature)
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-4)
        batches = (batch for epoch in count() for batch in loader.epoch(epoch))
        found: dict[int, dict[str, tuple[float, float]]] = {}
        for step, (rows, raw) in zip(range(total), batches, strict=False):
            rate = learning_rate(step, total, int(0.05 * total), options.rate * options.batch / 256, "cosine")
            for group in optimizer.param_groups:
                group["lr"] = rate
            views = torch.cat([self._view(raw["image"], step, number) for number in range(2)])
            first, second = self.network(views).chunk(2)
            loss = loss_fn(first, second, rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.slow.update(self.network)
            self.history.update(rows, first, second)
            unit = normalise(first.detach()), normalise(second.detach())
            self.glofnd.judge(batch_pairs(torch.cat(unit), rows), step / total)
            if step + 1 in options.measured:
                found[step + 1] = self._judge(step + 1)
        return {
            name: {
                f"{score}, step {step}": 100 * found[step][name][place]
                for step in sorted(found, reverse=True)
                for place, score in enumerate(("precision", "recall"))
            }
            for name in get_args(Detector)
        }

    def _view(self, images: Raw, *numbers: int) -> Tensor:
        return self.recipe(cast(Tensor, images), generator("detector views", self.seed, *numbers))

    def _judge(self, step: int) -> dict[str, tuple[float, float]]:
        """Precision and recall of every detector as the network stands."""
        current, slow = (self._embedded(network, step) for network in (self.network, self.slow.network))
        history = self.history.vectors()
        share = FNC(self.options.alpha)
        same = _same_label(self.labels)
        return {
            "own": self._by_batches(current, share),
            "glofnd": self._by_batches(current, self.glofnd),
            "momentum": self._by_batches(slow, share),
            "history": self._by_batches(history, share),
            "guide": self._by_batches(self.guide, share),
            "history neighbours": _neighbours(history, self.labels, self.options.k),
            "guide neighbours": self.by_guide,
            "chance": (same, self.options.alpha),
        }

    def _embedded(self, network: torch.nn.Module, step: int) -> Tensor:
        """One random view of every image through a network in evaluation mode; the same views for both networks."""
        numbers: list[int] = []

        def view(images: Raw) -> Tensor:
            numbers.append(len(numbers))
            return self.recipe(cast(Tensor, images), generator("judged views", self.seed, step, numbers[-1]))

        return normalise(embed_dataset(copy.deepcopy(network), self.data, preprocess=view))

    def _by_batches(self, vectors: Tensor, policy: Policy) -> tuple[float, float]:
        """What a policy flags among random batches of samples, each shown by one vector."""
        order = torch.randperm(len(vectors), generator=generator("judged batches", self.seed))
        totals = {"true": 0.0, "flagged": 0.0, "found": 0.0}
        for rows in order.split(self.options.batch):
            pairs = Pairs(normalise(vectors[rows]), rows, torch.ones(len(rows)))
            counts = count_flags(pairs, policy.rules(pairs, 1.0, learn=False), self.labels).means()
            totals = {name: totals[name] + len(rows) * counts[name] for name in totals}
        return _ratio(totals["found"], totals["flagged"]), _ratio(totals["found"], totals["true"])


def _neighbours(vectors: Tensor, labels: Tensor, k: int) -> tuple[float, float]:
    """Precision and recall of the mutual k nearest of the whole dataset."""
    policy = DatasetNeighbours(len(vectors), k, mutual=True)
    policy.fit(vectors)
    flagged = policy.table >= 0
    right = flagged & (labels[policy.table.clamp(min=0).long()] == labels[:, None])
    true = _same_label(labels) * len(labels) * (len(labels) - 1)
    return _ratio(float(right.sum()), float(flagged.sum())), _ratio(float(right.sum()), true)


def _same_label(labels: Tensor) -> float:
    """The share of pairs of different samples that have the same label."""
    counts, n = labels.bincount().double(), len(labels)
    return float((counts * (counts - 1)).sum() / (n * (n - 1)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
