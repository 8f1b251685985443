"""Theorem 3.2 of Ring's paper: negatives from a smaller, harder part give a looser estimate with less variance.

For an anchor u and its positive v_1, Z = f(u, v_1) - log((e^{f(u, v_1)} + sum_j e^{f(u, v_j)}) / k) with k - 1
negatives v_j. The theorem compares Z under uniform draws and under draws from a band of percentiles of f(u, .), on the
condition that Z varies no more inside the band than outside of it. What training feels is the gradient of Z, so its
variance is measured, too: the trace of its covariance over draws. `noise of the gradient` divides it by the squared
length of the mean gradient, because a harder band has a longer one.

Every critic here is linear in something, f = phi(u, v) . c, and the gradient is that by c:

1. On the toy, (U, V) is Gaussian with unit variances and a correlation r, and f(u, v) = a u v + b u^2 + c v^2 + d, the
   family that holds the best critic, log p(v|u) / p(v). Anchors and candidates lie on grids of equal mass; only the
   draws are random.
2. On a bank, the anchor is the embedding of a view under a trained network, candidates are the entries of its memory
   bank, and f(u, v) = u . v / tau: phi = v and c = u / tau. The true information is not known, so there is an
   estimate and no bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from antipodes.seeding import generator
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line
from research.runners.bank import trained_bank
from research.runners.figures import variance_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPERATURE = 0.07  # of the bank's run: instance discrimination's own


class Anchor(NamedTuple):
    """What one anchor sees: the critic's coefficients (P,), phi of its positive (P,) and of its candidates (n, P)."""

    coefficients: Tensor
    positive: Tensor
    candidates: Tensor


@dataclass(frozen=True)
class GradientVariance(Runner):
    """Bias and variance of the estimate, and variance of its gradient, with negatives from a band of percentiles.

    Args:
        low: Share of the candidates, the least similar ones, that are left out.
        high: Share below which candidates are kept; 1 leaves out none of the most similar.
        critic: On the toy the best one, or one with random coefficients; or the network and bank of instance
            discrimination on real images, trained, or with its first weights.
        correlation: Of the toy's variables, in (0, 1).
        negatives: Per draw.
        anchors: On a grid; each has one positive, the same in all variants. Of a bank, so many random images.
        candidates: Of the toy, on a grid.
        draws: Of negatives, for every anchor.
        data: Of the bank, as antipodes train takes it.
        images: So many of them are trained on, and are in the bank.
        epochs: Of training it.
    """

    low: float = 0.0
    high: float = 1.0
    critic: Literal["best", "random", "bank", "untrained bank"] = "best"
    correlation: float = 0.8
    negatives: int = 15
    anchors: int = 200
    candidates: int = 2000
    draws: int = 300
    data: str = "cifar10"
    images: int = 5000
    epochs: int = 20

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"low and high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}")
        if not 0 < self.correlation < 1:
            raise ValueError(f"correlation must be in (0, 1), got {self.correlation}")
        count = self.images - 1 if self.on_bank else self.candidates
        if min(self.negatives, self.anchors) < 1 or self.draws < 2 or not len(self.band(torch.arange(max(0, count)))):
            raise ValueError("negatives and anchors must be at least 1, draws at least 2, and the band not empty")

    @property
    def on_bank(self) -> bool:
        """Whether candidates are embeddings of real images."""
        return self.critic in ("bank", "untrained bank")

    @property
    def information(self) -> float:
        """I(U; V) of the toy, which the best critic finds."""
        return -0.5 * math.log(1 - self.correlation**2)

    def run(self, seed: int) -> dict[str, float]:
        """The means over anchors of estimate, bias and variances, and the share of anchors that meet the condition."""
        draws = generator("negatives", seed)
        means, variances, gradients, noise, met = [], [], [], [], []
        for anchor in self._bank_anchors(seed) if self.on_bank else self._toy_anchors(seed):
            ordered = anchor.candidates[(anchor.candidates @ anchor.coefficients).argsort()]
            z, gradient = self._drawn(anchor, self.band(ordered), draws)
            spread = gradient.var(0).sum()
            means.append(z.mean())
            variances.append(z.var())
            gradients.append(spread)
            noise.append(spread / gradient.mean(0).square().sum())
            outside = self._outside(ordered)
            if len(outside):
                met.append(z.var() <= self._drawn(anchor, outside, draws)[0].var())
        estimate = float(torch.stack(means).mean())
        scores = {
            "estimate": estimate,
            "variance of Z": float(torch.stack(variances).mean()),
            "variance of the gradient": float(torch.stack(gradients).mean()),
            "noise of the gradient": float(torch.stack(noise).median()),
        }
        if not self.on_bank:
            scores["bias"] = self.information - estimate
        return scores | ({"condition met, %": 100 * float(torch.stack(met).double().mean())} if met else {})

    def coefficients(self, seed: int) -> Tensor:
        """a, b, c and d of the toy's critic, (4,)."""
        if self.critic == "random":
            drawn = torch.randn(4, generator=generator("critic", seed), dtype=torch.float64)
            return 0.5 * drawn
        r = self.correlation
        square = -(r**2) / (2 * (1 - r**2))
        return torch.tensor([r / (1 - r**2), square, square, self.information], dtype=torch.float64)

    def band(self, ordered: Tensor) -> Tensor:
        """The candidates that lie in the band, in rising order of similarity."""
        return ordered[round(self.low * len(ordered)) : round(self.high * len(ordered))]

    def _outside(self, ordered: Tensor) -> Tensor:
        first, last = round(self.low * len(ordered)), round(self.high * len(ordered))
        return torch.cat((ordered[:first], ordered[last:]))

    def _toy_anchors(self, seed: int) -> Iterator[Anchor]:
        coefficients, grid, anchors = self.coefficients(seed), normal_grid(self.candidates), normal_grid(self.anchors)
        shuffled = torch.randperm(self.anchors, generator=generator("positives", seed))
        positives = self.correlation * anchors + math.sqrt(1 - self.correlation**2) * anchors[shuffled]
        for u, v in zip(anchors, positives, strict=True):
            yield Anchor(coefficients, features(u, v), features(u, grid))

    def _bank_anchors(self, seed: int) -> Iterator[Anchor]:
        found = trained_bank(self.data, self.images, self.epochs, seed, trained=self.critic == "bank")
        chosen = torch.randperm(len(found.bank), generator=generator("anchors", seed))[: self.anchors]
        for row in chosen.tolist():
            others = torch.cat((found.bank[:row], found.bank[row + 1 :]))
            yield Anchor(found.anchors[row] / TEMPERATURE, found.bank[row], others)

    def _drawn(self, anchor: Anchor, pool: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Z (draws,) and its gradient (draws, P) for negatives drawn from a pool (m, P)."""
        places = torch.randint(len(pool), (self.draws, self.negatives), generator=draws)
        return estimates(anchor.positive, pool[places], anchor.coefficients)

    def facts(self) -> dict[str, str]:
        """What was measured on what."""
        toy = f"two Gaussians of correlation {self.correlation:g}, {self.information:.4f} nats"
        bank = f"the bank of instance discrimination on {self.images:,} images of {self.data}, {self.epochs} epochs"
        return {
            "measured on": bank if self.on_bank else toy,
            "draws": f"{self.draws} of {self.negatives} negatives for each of {self.anchors} anchors",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Bias and both variances of every variant."""
        return variance_figure(study, lines)


def features(u: Tensor, v: Tensor) -> Tensor:
    """What the toy's coefficients multiply: u v, u^2, v^2 and 1, (..., 4)."""
    u = u.expand_as(v)
    return torch.stack((u * v, u**2, v**2, torch.ones_like(v)), dim=-1)


def estimates(positive: Tensor, negatives: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Z (n,) and its gradient (n, P) by the coefficients (P,): a positive (P,), n sets of negatives (n, m, P)."""
    every = torch.cat((positive.expand(len(negatives), 1, -1), negatives), 1)  # the positive comes first
    f = every @ coefficients
    z = f[:, 0] - f.logsumexp(1) + math.log(every.shape[1])
    gradient = positive - (f.softmax(1)[..., None] * every).sum(1)
    return z, gradient


def normal_grid(count: int) -> Tensor:
    """The middles of so many parts of equal mass of a standard Gaussian, (count,) float64."""
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    grid: Tensor = torch.special.ndtri(shares)
    return grid
