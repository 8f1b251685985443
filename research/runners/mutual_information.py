"""Table 5 of Ring's paper (appendix B): how loose the estimate gets as negatives come from a smaller, harder part.

(X, Y) is Gaussian with covariance [[2, 0.4], [0.4, 2]], so that I(X; Y) = -log(1 - 0.2^2) / 2 = 0.02041. A critic
f(x, y) = g(x) . h(y), two perceptrons, is trained to maximise CNCE with negatives from a band of percentiles of f.

What the paper leaves open, and how it is decided here:

- "the top w percent" shrinks as w grows, so w is the percentile from which on candidates are kept: [w, 100].
- The critic is trained for each w. One trained on NCE alone gives negative estimates (`optimal critic` in the report).
- The dot product is that of plain embeddings (10 numbers, not normalised, no temperature).
- The band is taken among a pool drawn again from the points in every step, of the size that leaves 100 negatives in it:
  100 / (share of the band). Gradients flow through negatives as well.
- The estimate is that of the trained critic on the distribution, not on the points it was fitted to (where NCE exceeds
  the bound it promises): x, y given x, and the candidates lie on grids of equal mass, which leaves no sampling noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from antipodes.functional.mutual_information import Information, cnce
from antipodes.functional.select import edges
from antipodes.seeding import generator
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIANCE, CORRELATION = 2.0, 0.2
INFORMATION = -0.5 * math.log(1 - CORRELATION**2)
Critic = Callable[[Tensor, Tensor], Tensor]
"""f(x, y) of numbers x and y, element by element, with broadcasting."""


@dataclass(frozen=True)
class MutualInformation(Runner):
    """Train a critic with negatives from a band of percentiles, then ask how much information it finds.

    Args:
        low: Share of an anchor's candidates, the least similar ones, that are left out; the paper's w / 100.
        high: Share below which candidates are kept; 1 leaves out none of the most similar.
        points: Pairs the critic is trained on.
        negatives: Per anchor and step.
        batch_size: Anchors per step.
        epochs: Passes over the points.
        learning_rate: Of Adam.
        width: Of the perceptrons' hidden layers, and of the embedding.
        layers: Of each perceptron.
    """

    low: float = 0.0
    high: float = 1.0
    points: int = 2000
    negatives: int = 100
    batch_size: int = 128
    epochs: int = 100
    learning_rate: float = 0.03
    width: int = 10
    layers: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"low and high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}")
        if self.pool > self.points:
            raise ValueError(
                f"{self.negatives} negatives from a share of {self.high - self.low:.3g} need {self.pool} points, "
                f"there are {self.points}"
            )

    @property
    def pool(self) -> int:
        """Candidates per step, of which the band keeps `negatives`."""
        return round(self.negatives / (self.high - self.low))

    def run(self, seed: int) -> dict[str, float]:
        """Estimates in nats, and the share of anchors that meet the condition of Theorem 3.1."""
        x, y = draw(self.points, generator("mutual information points", seed))
        encoders = self._train(x, y, seed)

        def critic(x: Tensor, y: Tensor) -> Tensor:
            return (embed(encoders[0], x) * embed(encoders[1], y)).sum(-1)

        with torch.no_grad():
            trained, fitted = on_the_distribution(critic, self.low, self.high), self._on_points(critic, x, y)
            best = on_the_distribution(density_ratio, self.low, self.high)
        return {
            "estimate": trained.value.item(),
            "estimate on its own points": fitted.value.item(),
            "optimal critic": best.value.item(),
            "anchors above the mean": trained.above_mean.double().mean().item(),
            "bound valid": float(trained.valid),
        }

    def facts(self) -> dict[str, str]:
        """The toy, its information and the training."""
        return {
            "data": f"{self.points:,} pairs (X, Y), Gaussian, variance {VARIANCE:g}, correlation {CORRELATION:g}",
            "true information": f"{INFORMATION:.5f} nats",
            "critic": f"two perceptrons of {self.layers} layers, width {self.width}, joined by a dot product",
            "training": f"Adam {self.learning_rate:g}, batch {self.batch_size}, {self.epochs} epochs, "
            f"{self.negatives} negatives per anchor",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Estimates over w with the paper's and the truth, and where the bound's condition holds."""
        from research.runners.figures import mutual_information_figure

        return mutual_information_figure(study, lines, INFORMATION)

    def _train(self, x: Tensor, y: Tensor, seed: int) -> list[list[Tensor]]:
        random = generator("mutual information training", seed)
        encoders = [perceptron([1] + [self.width] * self.layers, random) for _ in range(2)]
        optimiser = torch.optim.Adam([p for encoder in encoders for p in encoder], self.learning_rate, fused=True)
        for _ in range(self.epochs):
            for batch in torch.randperm(self.points, generator=random).split(self.batch_size):
                drawn = torch.randperm(self.points, generator=random)[: self.pool]
                anchors = embed(encoders[0], x[batch])
                positives, candidates = embed(encoders[1], torch.cat([y[batch], y[drawn]])).split(
                    [len(batch), len(drawn)]
                )
                first, last = ranks(len(drawn), self.low, self.high)
                inside = (anchors @ candidates.T).topk(last, dim=1).values[:, first:]
                # what -cnce(...).value differs from by a constant, without its checks
                loss = softplus(inside.logsumexp(1) - (anchors * positives).sum(1)).mean()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return encoders

    def _on_points(self, critic: Critic, x: Tensor, y: Tensor) -> Information:
        """The estimate with every other point as a candidate."""
        values = critic(x[:, None], y)
        positives = values.diagonal().clone()
        values.fill_diagonal_(-torch.inf)
        return cnce(positives, values, *band(values, self.low, self.high, len(x) - 1))


def draw(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs of X and Y."""
    x, noise = math.sqrt(VARIANCE) * torch.randn(2, count, generator=random)
    return x, CORRELATION * x + math.sqrt(1 - CORRELATION**2) * noise


def density_ratio(x: Tensor, y: Tensor) -> Tensor:
    """The critic that makes NCE tight: log p(y | x) / p(y)."""
    left = (y - CORRELATION * x) ** 2 / (1 - CORRELATION**2)
    return INFORMATION + (y**2 - left) / (2 * VARIANCE)


def on_the_distribution(
    critic: Critic, low: float, high: float, steps: int = 50, candidates: int = 1000
) -> Information:
    """The estimate of a critic with all candidates of the band, by quadrature instead of samples."""
    x = math.sqrt(VARIANCE) * _normal(steps)[:, None]
    y = CORRELATION * x + math.sqrt(VARIANCE * (1 - CORRELATION**2)) * _normal(steps)
    negatives = critic(x, math.sqrt(VARIANCE) * _normal(candidates))
    bounds = band(negatives, low, high, candidates)
    every_pair = (part.repeat_interleave(steps, dim=0) for part in (negatives, *bounds))
    return cnce(critic(x, y).flatten(), *every_pair)


def band(negatives: Tensor, low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
    """The bounds between which two percentiles of each anchor's `count` candidates lie."""
    first, last = ranks(count, low, high)
    both = torch.tensor([[last, first]]).expand(len(negatives), 2)
    above, below = edges(negatives.clone(), both)
    middle = (above + below) / 2  # infinite where the band is open
    return middle[:, 0], middle[:, 1]


def ranks(count: int, low: float, high: float) -> tuple[int, int]:
    """The band as ranks from the most similar on: [first, last)."""
    return round((1 - high) * count), round((1 - low) * count)


def perceptron(widths: Sequence[int], random: torch.Generator) -> list[Tensor]:
    """Weights and biases in turn, initialised as torch.nn.Linear's."""
    parameters = []
    for inputs, outputs in pairwise(widths):
        for shape in ((outputs, inputs), (outputs,)):
            parameters.append((2 * torch.rand(shape, generator=random) - 1) / math.sqrt(inputs))
    return [parameter.requires_grad_() for parameter in parameters]


def embed(encoder: Sequence[Tensor], numbers: Tensor) -> Tensor:
    """Numbers (...) through a perceptron with ReLUs: (..., width)."""
    hidden = numbers[..., None]
    for layer in range(0, len(encoder), 2):
        hidden = linear(hidden.relu() if layer else hidden, encoder[layer], encoder[layer + 1])
    return hidden


def _normal(count: int) -> Tensor:
    """Numbers of equal mass under the normal density."""
    numbers: Tensor = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    return numbers.float()
