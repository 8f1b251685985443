"""`linear-sgd` and `transfer-linear-sgd`: a linear classifier by SGD on the feature map before pooling (Ring)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, cross_entropy

from antipodes.data import Raw, Samples
from antipodes.evaluation.accuracy import Accuracy, accuracy
from antipodes.evaluation.features import stratified_split
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.protocols.transfer import custom_metric, labelled_splits
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import number_classes
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import tower_network
from antipodes.seeding import generator


@dataclass(frozen=True)
class LinearSGD(Protocol):
    """Multinomial logistic regression on flattened feature maps (C x h x w), by SGD with momentum 0.9.

    Args:
        rates: Learning rates to choose from on a held-out fifth of train; a single one is used as it is. The paper's
            is 0.01.
        epochs: Passes over the training features, at a constant rate.
        batch_size: Samples per step.
        weight_decay: Weight decay; the paper uses none.
        side: Pool larger maps to this height and width first; none keeps their size.
    """

    name = "linear-sgd"
    summary = "a linear classifier by SGD on the feature map before pooling (Ring's protocol)"
    needs = frozenset({"network", "labels"})

    rates: tuple[float, ...] = (0.01,)
    epochs: int = 100
    batch_size: int = 256
    weight_decay: float = 0.0
    side: int | None = None

    def __post_init__(self) -> None:
        if not self.rates or not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates must be above 0, got {list(self.rates)}: they are learning rates")
        if self.epochs < 1 or self.batch_size < 1 or (self.side is not None and self.side < 1):
            raise ValueError("epochs, batch_size and side must be at least 1")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5, mean per class and the rate."""
        found, rate = self.accuracy_and_rate(subject, *subject.labelled_images())
        return found.named("linear-sgd") | {"linear-sgd rate": rate}

    def accuracy_and_rate(
        self, subject: Subject, train: Samples, test: Samples, view: Callable[[Raw], Tensor] | None = None
    ) -> tuple[Accuracy, float]:
        """Train a linear layer on images with labels; return its accuracy and its learning rate.

        Args:
            subject: The subject with the encoder.
            train: Images to train on.
            test: Test images.
            view: Prepares the images; by default as those of the run.
        """
        assert train.labels is not None
        assert test.labels is not None
        labels, test_labels, classes = number_classes(train.labels, test.labels)
        maps, test_maps = (maps_before_pooling(subject, data, self.side, view) for data in (train, test))
        seed, device, rate = subject.seed, subject.device, self.rates[0]
        if len(self.rates) > 1:
            kept, held = stratified_split(labels, 0.2, seed)
            tried = {one: self.fit(maps[kept], labels[kept], classes, one, seed, device) for one in self.rates}
            found = {one: accuracy(_logits(layer, maps[held]), labels[held]).top1 for one, layer in tried.items()}
            rate = max(found, key=lambda one: found[one])
        layer = self.fit(maps, labels, classes, rate, seed, device)
        return accuracy(_logits(layer, test_maps), test_labels), rate

    def fit(
        self,
        features: Tensor,
        labels: Tensor,
        classes: int,
        rate: float,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> nn.Linear:
        """Train a linear layer, starting at zero, on features (n, F) and labels (n,) in 0..classes-1."""
        layer = nn.Linear(features.shape[1], classes).to(device)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        optimiser = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9, weight_decay=self.weight_decay)
        order = generator("linear-sgd order", seed)
        for _ in range(self.epochs):
            for ids in torch.randperm(len(features), generator=order).split(self.batch_size):
                optimiser.zero_grad()
                cross_entropy(layer(features[ids].to(device).float()), labels[ids].to(device)).backward()
                optimiser.step()
        return layer.requires_grad_(False)


def _logits(layer: nn.Linear, features: Tensor) -> Tensor:
    """Return a layer's logits (n, K) for features (n, F), both on the CPU."""
    device = layer.weight.device
    return torch.cat([layer(block.to(device).float()).cpu() for block in features.split(1024)])


def maps_before_pooling(
    subject: Subject, data: Samples, side: int | None = None, view: Callable[[Raw], Tensor] | None = None
) -> Tensor:
    """Return the feature maps before an encoder's last pooling, flattened to (n, C h w), in float16.

    Args:
        subject: The subject with the encoder.
        data: The images.
        side: Pool larger maps to this height and width; None keeps their size.
        view: Prepares the images; by default as those of the run.

    Raises:
        ValueError: if the encoder has no adaptive average pooling.
    """
    assert subject.method is not None
    encoder = tower_network(subject.method, "image")
    pools = [module for module in encoder.modules() if isinstance(module, nn.AdaptiveAvgPool2d)]
    if not pools:
        raise ValueError(
            "linear-sgd needs the map before an encoder's AdaptiveAvgPool2d, and this encoder has none: "
            "use the linear protocol"
        )
    network = _BeforePool(encoder, pools[-1], side).to(subject.device)
    shown = view or subject.plain_view(subject.method.pixels)
    return embed_dataset(network, data, preprocess=shown, device=subject.device, workers=subject.workers).half()


class _BeforePool(nn.Module):
    """Runs an encoder up to its last pooling and returns the flattened map."""

    def __init__(self, encoder: nn.Module, pool: nn.Module, side: int | None) -> None:
        super().__init__()
        self.encoder, self.side = encoder, side
        self._pools = [pool]  # in a list, so that it is not a module of this one a second time

    def forward(self, images: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self._pools[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            self.encoder(images)
        finally:
            hook.remove()
        found = seen[-1] if self.side is None else adaptive_avg_pool2d(seen[-1], self.side)
        return found.flatten(1)


@dataclass(frozen=True)
class TransferLinearSGD(LinearSGD):
    """Train a linear layer on feature maps of other datasets, as `linear-sgd` does on the run's own.

    Images are normalised as those of the run were, or by the dataset's own statistics where the subject says so.
    Datasets with several labels an image are refused.
    """

    name = "transfer-linear-sgd"
    summary = "a linear classifier by SGD on maps before pooling, on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5, mean per class and the rate for every dataset, and the mean of their usual metrics.

        Raises:
            ValueError: if a dataset has no labels, or several an image.
        """
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            train, test = labelled_splits(other, subject, self.name)
            found, rate = self.accuracy_and_rate(subject, train, test, subject.other_view(train))
            prefix = f"linear-sgd on {other.name}"
            named = found.named(prefix)
            scores |= named | {f"linear-sgd rate, {other.name}": rate}
            customs.append(named[f"{prefix} {custom_metric(other)}"])
        if len(customs) > 1:
            scores["linear-sgd on others, mean"] = fmean(customs)
        return scores
