"""`fine-tune` and `transfer-fine-tune`: the whole network trained on labels of its own data or of other datasets."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from antipodes.data import subset
from antipodes.encoders.layers import decayed_rates
from antipodes.evaluation.accuracy import Accuracy, MeanPrecision, fit_loss, judge
from antipodes.evaluation.features import stratified_split
from antipodes.evaluation.labelled import LabelledSplits, TrainedProtocol
from antipodes.evaluation.subject import Subject
from antipodes.methods.towers import JoinedEncoders
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import tower_network
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator

Schedule = Literal["constant", "cosine", "step"]


def check_schedule(schedule: str, milestones: Sequence[float], factor: float) -> None:
    """Refuse a schedule that `rate_factor` cannot follow.

    Raises:
        ValueError: the message names the option.
    """
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}, got {schedule!r}")
    if not all(0 < milestone < 1 for milestone in milestones):
        raise ValueError(f"milestones must be shares of training in (0, 1), got {list(milestones)}")
    if not 0 < factor <= 1:
        raise ValueError(f"factor must be in (0, 1], got {factor}: a learning rate is multiplied by it")


def rate_factor(schedule: Schedule, progress: float, milestones: Sequence[float], factor: float) -> float:
    """Return what a learning rate is multiplied by after a share of training.

    Example:
        >>> rate_factor("step", 0.7, (0.6, 0.8), 0.2), rate_factor("cosine", 0.5, (), 1.0)
        (0.2, 0.5)
    """
    if schedule == "constant":
        return 1.0
    if schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return float(factor ** sum(progress >= milestone for milestone in milestones))


@dataclass(frozen=True)
class FineTune(TrainedProtocol):
    """Train a copy of the encoder and a linear layer on top with class-balanced shares of the labels.

    1. Hold out a fifth of every class of the labelled share.
    2. Train on the rest with each learning rate; keep the one with the highest accuracy on the held-out fifth. The test
       set has no influence.
    3. Train again on the whole share with that rate, and score on the test set.

    Views are random crops and flips; SGD with Nesterov momentum 0.9. Images with several labels each (VOC2007) get a
    logistic loss for every class and are judged by the mean of the classes' average precisions.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
        rates: Learning rates of the encoder to choose from, for a batch of 256: they scale linearly with the batch.
        head_factor: Ratio of the linear layer's learning rate to the encoder's; the layer starts at zero.
        epochs: Passes over the labelled share.
        min_steps: Smallest number of steps, for shares with few batches.
        batch_size: Labelled images per step.
        weight_decay: Of all weights.
        layer_decay: Ratio of an encoder layer's learning rate to the next layer's; 1 is one rate for all.
        decay_vectors: Let biases and normalisation decay, too.
        head_rate: Learning rate of the linear layer, for a batch of 256, instead of `head_factor` times the encoder's;
            one for all shares of the labels, or one for each (IFND: 1 for 1 %, 0.1 for 10 %).
        schedule: How the rates move: cosine (to zero), step (times `factor` at each milestone) or constant.
        milestones: Shares of training at which the schedule `step` changes the rates; IFND's are 12 / 20, 16 / 20.
        factor: What the rates are multiplied by there.
        ids: Files with the labelled images of each share, or of any: file names (SimCLR's lists) or row numbers.
    """

    name = "fine-tune"
    summary = "the whole network trained on 1, 10 and 100 % of the labels, its rate chosen on a held-out part of these"
    needs = frozenset({"network", "labels"})
    prefix = "fine-tune"
    by_share = ("head_rate",)

    fractions: tuple[float, ...] = (0.01, 0.1, 1.0)
    rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    head_factor: float = 10.0
    epochs: int = 20
    min_steps: int = 200
    batch_size: int = 128
    weight_decay: float = 1e-4
    layer_decay: float = 1.0
    decay_vectors: bool = True
    head_rate: float | tuple[float, ...] | None = None
    schedule: Schedule = "cosine"
    milestones: tuple[float, ...] = (0.6, 0.8)
    factor: float = 0.2
    ids: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self.check_shares()
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates must be above 0, got {list(self.rates)}: they are learning rates")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must be in (0, 1], got {self.layer_decay}")
        if self.epochs < 1 or self.min_steps < 0 or self.batch_size < 2:
            raise ValueError("epochs must be at least 1, min_steps at least 0 and batch_size at least 2")
        for rate in self.values("head_rate"):
            if rate is not None and not rate > 0:
                raise ValueError(f"head_rate must be above 0, got {rate}: it is a learning rate")
        check_schedule(self.schedule, self.milestones, self.factor)

    def trained(self, subject: Subject, splits: LabelledSplits, rows: Tensor) -> tuple[Accuracy | MeanPrecision, float]:
        """Choose the rate, train the network on some training images (m,), and score it on the test images."""
        rate = self.choose(subject, splits, rows)
        return self.accuracy_of(subject, splits, rows, rate), rate

    def choose(self, subject: Subject, splits: LabelledSplits, rows: Tensor) -> float:
        """Return the rate that is best on a held-out fifth of the share; the middle one if none can be held out."""
        middle = sorted(self.rates)[len(self.rates) // 2]
        labels = splits.labels[rows]
        if len(self.rates) == 1 or (labels.ndim == 1 and int(labels.bincount().max()) < 2):
            return middle
        kept, held = (rows[part] for part in stratified_split(labels, 0.2, subject.seed))
        inside = replace(splits, test=subset(splits.train, held), test_labels=splits.labels[held])
        found = {rate: self.accuracy_of(subject, inside, kept, rate).main for rate in self.rates}
        return max(found, key=lambda rate: found[rate])

    def accuracy_of(
        self, subject: Subject, splits: LabelledSplits, rows: Tensor, rate: float
    ) -> Accuracy | MeanPrecision:
        """Train a copy of the network on some training images (m,), and score it on the test images."""
        assert subject.method is not None
        assert subject.data is not None
        encoder = copy.deepcopy(tower_network(subject.method, "image")).requires_grad_(True)
        head = nn.Linear(feature_width(subject, encoder), splits.classes)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        network = nn.Sequential(encoder, head).to(subject.device)
        recipe = build_augmentation(
            {"name": "crop-flip", **splits.pixels}, subject.data.image_size, subject.method.normalised
        )
        views = generator("fine-tune views", subject.seed)
        self._train(network, splits, rows, rate, lambda images: recipe(images, views), subject)
        shown = subject.plain_view(splits.pixels)
        logits = embed_dataset(network, splits.test, preprocess=shown, device=subject.device, workers=subject.workers)
        return judge(logits, splits.test_labels)

    def _train(
        self,
        network: nn.Sequential,
        splits: LabelledSplits,
        rows: Tensor,
        rate: float,
        view: Callable[[Tensor], Tensor],
        subject: Subject,
    ) -> None:
        batch = max(2, min(self.batch_size, len(rows)))
        steps = max(self.min_steps, self.epochs * math.ceil(len(rows) / batch))
        optimiser = torch.optim.SGD(self._groups(network, rate, batch), lr=rate, momentum=0.9, nesterov=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: rate_factor(self.schedule, step / steps, self.milestones, self.factor)
        )
        network.train()
        for chosen in _batches(len(rows), batch, steps, generator("fine-tune order", subject.seed)):
            images = view(splits.train.fetch(rows[chosen]).to(subject.device))
            loss = fit_loss(network(images), splits.labels[rows[chosen]].to(subject.device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()

    def _groups(self, network: nn.Sequential, rate: float, batch: int) -> list[dict[str, Any]]:
        """Return the parameters of an encoder and its linear layer, by learning rate and weight decay."""
        rates = dict.fromkeys(network[0].parameters(), rate)
        for part in network[0].encoders if isinstance(network[0], JoinedEncoders) else [network[0]]:
            decayed = decayed_rates(part, self.layer_decay) if self.layer_decay < 1 else {}
            rates |= {parameter: rate * factor for parameter, factor in decayed.items()}
        head = rate * self.head_factor if self.head_rate is None else self.values("head_rate")[0]
        rates |= dict.fromkeys(network[1].parameters(), head)
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for parameter, its_rate in rates.items():
            groups.setdefault((its_rate, parameter.ndim > 1 or self.decay_vectors), []).append(parameter)
        return [
            {"params": members, "lr": its_rate * batch / 256, "weight_decay": self.weight_decay if decays else 0.0}
            for (its_rate, decays), members in groups.items()
        ]


def feature_width(subject: Subject, encoder: nn.Module) -> int:
    """Return the length of an encoder's features, from its attribute or from two images."""
    assert subject.method is not None
    assert subject.data is not None
    if hasattr(encoder, "num_features"):
        return int(encoder.num_features)  # type: ignore[arg-type]
    two = subset(subject.data, torch.arange(2))
    shown = subject.plain_view(subject.method.pixels)
    return embed_dataset(encoder.to(subject.device), two, preprocess=shown, device=subject.device).shape[1]


def _batches(count: int, batch: int, steps: int, draws: torch.Generator) -> Iterator[Tensor]:
    """Yield batches of places (batch,) in 0..count-1, in a new random order for every pass; the rest of a pass goes
    into the next.
    """
    order = torch.randperm(count, generator=draws)
    for _ in range(steps):
        while len(order) < batch:
            order = torch.cat((order, torch.randperm(count, generator=draws)))
        yield order[:batch]
        order = order[batch:]


@dataclass(frozen=True)
class TransferFineTune(FineTune):
    """Train a copy of the encoder and a linear layer on top on other datasets, as `fine-tune` does on the run's own.

    The learning rate is chosen on a held-out fifth of each dataset's training images; its test images have no
    influence. Images are normalised as those of the run were, or by the dataset's own statistics where the subject says
    so.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
    """

    name = "transfer-fine-tune"
    summary = "the whole network trained on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    fractions: tuple[float, ...] = (1.0,)
