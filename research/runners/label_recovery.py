"""Theorem 2 of SANE's paper as an experiment: do refined labels, and a network trained on them, recover the truth?

1. A (rho, epsilon, delta)-corrupted dataset (Definition 1): K samples c on the unit sphere with the labels -1 and 1
   (so delta = 2), crops x within epsilon of them, normalised, and the labels of a share rho of every sample's crops
   flipped. Each crop has a positive, another crop of its sample.
2. A network of one hidden layer, f(x) = v . tanh(W x), v fixed to +-1/sqrt(width), W drawn from N(0, 1) (Eq. 6).
3. Gradient descent on 1/2 sum (ybar - f(x))^2, with labels refined in every step: ybar = (1 - alpha) y + alpha f(x~)
   (Eq. 5 with beta = 0 and tau' = 1, as in the theorem). alpha = 0 is plain training on the corrupted labels.

What the paper leaves open, and how it is decided here: alpha is constant; centres are uniform on the sphere; crops
uniform in the ball around them; positives are drawn once; step size samples / (2 crops), of the order that the theorem
allows. A label or an output counts as right when the label value nearest to it is the true one. Training is long enough
for the network with plain labels to begin to learn the flipped ones, or there would be nothing to recover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from antipodes.functional.tensors import NotFinite
from antipodes.seeding import generator
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.1, 0.2, 0.3, 0.4)


class Crops(NamedTuple):
    """Crops (n, D), another crop of the same sample for each, and their true labels (n,)."""

    crops: Tensor
    positives: Tensor
    truth: Tensor


@dataclass(frozen=True)
class LabelRecovery(Runner):
    """Train on refined labels at several corruption rates, and count what is right.

    Args:
        alpha: Share of the network's own prediction in a refined label.
        samples: Number K of samples that crops are made of.
        crops: Of each sample.
        test_crops: Of each sample, with true labels.
        dimensions: Of the sphere.
        epsilon: Largest distance of a crop from its sample, before normalisation.
        width: Of the hidden layer.
        steps: Of gradient descent.
        step_size: In units of samples / (2 crops of all samples).
    """

    alpha: float = 0.0
    samples: int = 20
    crops: int = 20
    test_crops: int = 50
    dimensions: int = 20
    epsilon: float = 0.5
    width: int = 200
    steps: int = 1000
    step_size: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha must be in [0, 1), got {self.alpha}: it is the share of the network's prediction")
        if self.samples < 2 or self.width < 2:
            raise ValueError("at least two samples and two hidden units are needed: half of each has the other sign")

    def run(self, seed: int) -> dict[str, float]:
        """Accuracies in percent, for every corruption rate."""
        random = generator("label recovery data", seed)
        centres = _on_sphere(torch.randn(self.samples, self.dimensions, generator=random))
        train, test = (self._crops(centres, count, random) for count in (self.crops, self.test_crops))
        order = torch.rand(self.samples, self.crops, generator=random).argsort(1)  # which crops are flipped first
        scores: dict[str, float] = {}
        for rate in RATES:
            flipped = (order < round(rate * self.crops)).flatten()
            labels = torch.where(flipped, -train.truth, train.truth)
            hidden = self._train(train, labels, seed)
            refined = self._refined(hidden, train, labels)
            scores |= {
                f"refined labels, {_percent(rate)} flipped": _accuracy(refined, train.truth),
                f"network, train, {_percent(rate)} flipped": _accuracy(network(hidden, train.crops), train.truth),
                f"network, test, {_percent(rate)} flipped": _accuracy(network(hidden, test.crops), test.truth),
            }
        return scores

    def facts(self) -> dict[str, str]:
        """Data and network."""
        return {
            "data": f"{self.samples} samples on the sphere in {self.dimensions} dimensions, {self.crops} crops of each "
            f"within {self.epsilon:g}; {self.test_crops} fresh crops of each for the test; labels -1 and 1",
            "network": f"one hidden layer of {self.width} tanh units, output weights fixed",
            "training": f"{self.steps} steps of gradient descent on all crops, step size {self.step_size:g}",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Accuracies over the share of flipped labels, a line for each variant."""
        from research.runners.figures import label_recovery_figure

        return label_recovery_figure(study, lines, [_percent(rate) for rate in RATES])

    def _crops(self, centres: Tensor, count: int, random: torch.Generator) -> Crops:
        def crop() -> Tensor:
            shape = (len(centres) * count, self.dimensions)
            radius = self.epsilon * torch.rand(shape[0], 1, generator=random) ** (1 / self.dimensions)
            moved = radius * _on_sphere(torch.randn(shape, generator=random))
            return _on_sphere(centres.repeat_interleave(count, dim=0) + moved)

        signs = torch.tensor([-1.0, 1.0]).repeat(self.samples)[: self.samples]
        return Crops(crop(), crop(), signs.repeat_interleave(count))

    def _train(self, data: Crops, labels: Tensor, seed: int) -> Tensor:
        random = generator("label recovery network", seed)
        hidden = torch.randn(self.width, self.dimensions, generator=random)
        rate = self.step_size * self.samples / (2 * len(labels))
        for _ in range(self.steps):
            targets = self._refined(hidden, data, labels)
            active = torch.tanh(data.crops @ hidden.T)
            weights = output_weights(self.width)
            slope = (active @ weights - targets)[:, None] * (1 - active**2) * weights
            hidden = hidden - rate * slope.T @ data.crops
        if not bool(hidden.isfinite().all()):
            raise NotFinite("the network has diverged: lower step_size")
        return hidden

    def _refined(self, hidden: Tensor, data: Crops, labels: Tensor) -> Tensor:
        return (1 - self.alpha) * labels + self.alpha * network(hidden, data.positives) if self.alpha else labels


def network(hidden: Tensor, crops: Tensor) -> Tensor:
    """f(x) of Eq. 6, (n,), with hidden weights (width, D)."""
    return torch.tanh(crops @ hidden.T) @ output_weights(len(hidden))


def output_weights(width: int) -> Tensor:
    """The unit vector v: one half positive, the other negative."""
    weights = torch.full((width,), 1 / math.sqrt(width))
    weights[width // 2 :] *= -1
    return weights


def _accuracy(values: Tensor, truth: Tensor) -> float:
    """Percent of the values whose nearest label, -1 or 1, is the true one."""
    return 100 * (values.sign() == truth).double().mean().item()


def _on_sphere(points: Tensor) -> Tensor:
    return torch.nn.functional.normalize(points, dim=1)


def _percent(rate: float) -> str:
    return f"{100 * rate:g} %"
