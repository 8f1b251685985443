"""`linear-sgd` and `transfer-linear-sgd`: a linear classifier by SGD on frozen features, stored or streamed.

1. The features are the pooled ones, or the flattened map before an encoder's last pooling (Ring). Of several encoders
   on the same images (CMC's two), the features of all are concatenated.
2. Features that fit are embedded once and stored as float16. With `augment` every epoch sees other crops and flips, and
   above `MOST_STORED` numbers nothing is stored: then every batch runs through the network again.
3. A linear layer that starts at zero is trained with each learning rate on four fifths of the labels; the rate that is
   best on the rest is taken for all of them. The test set has no influence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from antipodes.data import Raw, Samples
from antipodes.evaluation.accuracy import Accuracy, MeanPrecision, fit_loss, judge
from antipodes.evaluation.features import stratified_split
from antipodes.evaluation.labelled import LabelledSplits, TrainedProtocol
from antipodes.evaluation.protocols.fine_tune import Schedule, check_schedule, rate_factor
from antipodes.evaluation.subject import Subject
from antipodes.methods.towers import JoinedEncoders
from antipodes.runs.embedding import embed_dataset, evaluation_mode
from antipodes.runs.towers import tower_network
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator

Space = Literal["map", "pooled"]
Rule = Literal["sgd", "adamw"]
FeaturesOf = Callable[[Tensor], Tensor]
"""A function from row numbers (b,) to their features (b, F)."""
MOST_STORED = 2**31  # numbers of features that are stored, 4 GB; more are computed again in every epoch


@dataclass(frozen=True)
class LinearSGD(TrainedProtocol):
    """Logistic regression on frozen features, by SGD with momentum 0.9 or by AdamW.

    Images with several labels each (VOC2007) get a logistic loss for every class and are judged by the mean of the
    classes' average precisions.

    Args:
        rates: Learning rates to choose from on a held-out fifth of train; a single one is used as it is. Ring's is 0.01
            on maps, IFND's 10 on pooled features.
        epochs: Passes over the training features; one number for all shares of the labels, or one for each (GloFND: 90
            for 100 %, 285 for 10 %, 900 for less).
        batch_size: Samples per step.
        weight_decay: Weight decay; Ring uses none.
        side: Pool larger maps to this height and width first; none keeps their size.
        space: Features before the last pooling (map), flattened, or after it (pooled).
        augment: Train on random crops and flips, other ones in every epoch.
        optimizer: sgd, with momentum 0.9, or adamw.
        schedule: How the rate moves: constant, cosine (to zero), or step (times `factor` at each milestone).
        milestones: Shares of training at which the schedule `step` changes the rate.
        factor: What the rate is multiplied by there.
        fractions: Shares of the labels; every class keeps at least one.
        ids: Files with the labelled images of each share, or of any: file names (SimCLR's lists) or row numbers.
    """

    name = "linear-sgd"
    summary = "a linear classifier by SGD on the feature map before pooling (Ring), or on pooled features, augmented"
    needs = frozenset({"network", "labels"})
    prefix = "linear-sgd"
    by_share = ("epochs",)

    rates: tuple[float, ...] = (0.01,)
    epochs: int | tuple[int, ...] = 100
    batch_size: int = 256
    weight_decay: float = 0.0
    side: int | None = None
    space: Space = "map"
    augment: bool = False
    optimizer: Rule = "sgd"
    schedule: Schedule = "constant"
    milestones: tuple[float, ...] = (0.6, 0.8)
    factor: float = 0.1
    fractions: tuple[float, ...] = (1.0,)
    ids: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates must be above 0, got {list(self.rates)}: they are learning rates")
        self.check_shares()
        if min(self.values("epochs")) < 1 or self.batch_size < 1 or (self.side is not None and self.side < 1):
            raise ValueError("epochs, batch_size and side must be at least 1")
        for name, value, allowed in (("space", self.space, Space), ("optimizer", self.optimizer, Rule)):
            if value not in get_args(allowed):
                raise ValueError(f"{name} must be one of {', '.join(get_args(allowed))}, got {value!r}")
        check_schedule(self.schedule, self.milestones, self.factor)

    def trained(self, subject: Subject, splits: LabelledSplits, rows: Tensor) -> tuple[Accuracy | MeanPrecision, float]:
        """Train a linear layer on some training images (m,); return its accuracy on test and its learning rate."""
        labels, seed, device, rate = splits.labels, subject.seed, subject.device, self.rates[0]
        network = frozen_network(subject, self.space, self.side)
        features = self._features(subject, network, splits.train, splits.pixels)
        if len(self.rates) > 1:
            kept, held = (rows[part] for part in stratified_split(labels[rows], 0.2, seed))
            plain = features
            if self.augment:
                plain = self._features(subject, network, splits.train, splits.pixels, augment=False)
            found = {}
            for one in self.rates:
                layer = self.fit(_among(features, kept), labels[kept], splits.classes, one, seed, device)
                found[one] = judge(_logits(layer, _among(plain, held), len(held)), labels[held]).main
            rate = max(found, key=lambda one: found[one])
        layer = self.fit(_among(features, rows), labels[rows], splits.classes, rate, seed, device)
        judged = self._features(subject, network, splits.test, splits.pixels, augment=False)
        return judge(_logits(layer, judged, len(splits.test)), splits.test_labels), rate

    def _features(
        self,
        subject: Subject,
        network: nn.Module,
        data: Samples,
        pixels: Mapping[str, Sequence[float]],
        augment: bool | None = None,
    ) -> FeaturesOf:
        """Return a function that gives the features of rows of a dataset, stored or computed at each call."""
        assert subject.method is not None
        assert subject.data is not None
        view = subject.plain_view(pixels)
        if self.augment if augment is None else augment:
            size = subject.size or subject.data.image_size
            recipe = build_augmentation({"name": "crop-flip", **pixels}, size, subject.method.normalised)
            draws = generator("linear-sgd views", subject.seed)

            def random_view(raw: Raw) -> Tensor:
                return recipe(cast(Tensor, raw), draws)

            return lambda rows: _features_of(network, data, rows, random_view, subject.device)
        width = _features_of(network, data, torch.arange(1), view, subject.device).shape[1]
        if width * len(data) > MOST_STORED:
            return lambda rows: _features_of(network, data, rows, view, subject.device).half()
        stored = embed_dataset(network, data, preprocess=view, device=subject.device, workers=subject.workers).half()
        return lambda rows: stored[rows]

    def fit(
        self,
        features: Tensor | FeaturesOf,
        labels: Tensor,
        classes: int,
        rate: float,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> nn.Linear:
        """Train a linear layer, starting at zero.

        Args:
            features: (n, F), or a function from row numbers (b,) to features (b, F).
            labels: (n,) in 0..classes-1, or (n, classes) with several labels each.
            classes: Number of classes.
            rate: Learning rate.
            seed: Seed of the order of samples.
            device: The device to train on.
        """
        features_of = features.__getitem__ if isinstance(features, Tensor) else features
        layer = nn.Linear(features_of(torch.arange(1)).shape[1], classes).to(device)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        optimiser: torch.optim.Optimizer
        if self.optimizer == "adamw":
            optimiser = torch.optim.AdamW(layer.parameters(), lr=rate, weight_decay=self.weight_decay)
        else:
            optimiser = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9, weight_decay=self.weight_decay)
        order = generator("linear-sgd order", seed)
        epochs = self.values("epochs")[0]
        for epoch in range(epochs):
            for group in optimiser.param_groups:
                group["lr"] = rate * rate_factor(self.schedule, epoch / epochs, self.milestones, self.factor)
            for rows in torch.randperm(len(labels), generator=order).split(self.batch_size):
                optimiser.zero_grad()
                fit_loss(layer(features_of(rows).to(device).float()), labels[rows].to(device)).backward()
                optimiser.step()
        return layer.requires_grad_(False)


@dataclass(frozen=True)
class TransferLinearSGD(LinearSGD):
    """Train a linear layer on features of other datasets, as `linear-sgd` does on the run's own.

    Images are normalised as those of the run were, or by the dataset's own statistics where the subject says so.
    """

    name = "transfer-linear-sgd"
    summary = "a linear classifier by SGD on maps before pooling, on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True


def frozen_network(subject: Subject, space: Space, side: int | None = None) -> nn.Module:
    """Return the network of a run's image encoders up to the features that a linear layer gets, (B, F).

    Args:
        subject: The subject with the encoders; of several on the same images all are used.
        space: Features before the last pooling, flattened to C h w numbers, or after it.
        side: Pool larger maps to this height and width; None keeps their size.

    Raises:
        ValueError: if the space is map and an encoder has no adaptive average pooling.
    """
    assert subject.method is not None
    encoder = tower_network(subject.method, "image")
    encoders = list(encoder.encoders) if isinstance(encoder, JoinedEncoders) else [encoder]
    return (encoder if space == "pooled" else MapsBeforePooling(encoders, side)).to(subject.device)


class MapsBeforePooling(nn.Module):
    """Runs encoders up to their last pooling and returns their flattened maps, next to each other.

    Args:
        encoders: Networks on the same images.
        side: Pool larger maps to this height and width; None keeps their size.

    Raises:
        ValueError: if an encoder has no adaptive average pooling.
    """

    def __init__(self, encoders: Sequence[nn.Module], side: int | None) -> None:
        super().__init__()
        self.encoders, self.side = nn.ModuleList(encoders), side
        pools = [[each for each in one.modules() if isinstance(each, nn.AdaptiveAvgPool2d)] for one in encoders]
        if not all(pools):
            raise ValueError(
                "linear-sgd needs the map before an encoder's AdaptiveAvgPool2d, and this encoder has none: "
                "use --linear_sgd.space pooled, or the linear protocol"
            )
        self._pools = [some[-1] for some in pools]  # a list, so that they are not modules of this one a second time

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to their flattened maps (B, F)."""
        parts = []
        for encoder, pool in zip(self.encoders, self._pools, strict=True):
            seen: list[Tensor] = []
            hook = pool.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
            try:
                encoder(images)
            finally:
                hook.remove()
            parts.append((seen[-1] if self.side is None else adaptive_avg_pool2d(seen[-1], self.side)).flatten(1))
        return torch.cat(parts, dim=1)


def _among(features: FeaturesOf, rows: Tensor) -> FeaturesOf:
    """Return a function that numbers some rows 0..m-1."""
    return lambda places: features(rows[places])


def _features_of(
    network: nn.Module, data: Samples, rows: Tensor, view: Callable[[Raw], Tensor], device: torch.device | str
) -> Tensor:
    """Run some images of a dataset through a frozen network, (b, F)."""
    with evaluation_mode(network), torch.no_grad():
        inputs = view(data.fetch(rows).to(device)).to(device).contiguous(memory_format=torch.channels_last)
        features: Tensor = network(inputs)
    return features


def _logits(layer: nn.Linear, features: FeaturesOf, count: int) -> Tensor:
    """Return a layer's logits (n, K) for n rows of features, on the CPU."""
    device = layer.weight.device
    return torch.cat([layer(features(rows).to(device).float()).cpu() for rows in torch.arange(count).split(1024)])
