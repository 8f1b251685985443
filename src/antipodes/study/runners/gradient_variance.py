"""Theorem 3.2 of Ring's paper: negatives from a smaller, harder part give a looser estimate with less variance.

For an anchor u and its positive v_1, Z = f(u, v_1) - log((e^{f(u, v_1)} + sum_j e^{f(u, v_j)}) / k) with k - 1
negatives v_j. The theorem compares Z under uniform draws and under draws from a band of percentiles of f(u, .), on the
condition that Z varies no more inside the band than outside of it. What training feels is the gradient of Z, so its
variance is measured, too: the trace of its covariance over draws, for the critic's four coefficients.

(U, V) is Gaussian with unit variances and a correlation r, and the critic is quadratic:
f(u, v) = a u v + b u^2 + c v^2 + d, the family that holds the best one, log p(v|u) / p(v). Anchors and candidates lie
on grids of equal mass; only the draws are random.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from antipodes.seeding import generator
from antipodes.study.definition import Study
from antipodes.study.runners.figures import variance_figure
from antipodes.study.runners.runner import Runner
from antipodes.study.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class GradientVariance(Runner):
    """Bias and variance of the estimate, and variance of its gradient, with negatives from a band of percentiles.

    Args:
        low: Share of the candidates, the least similar ones, that are left out.
        high: Share below which candidates are kept; 1 leaves out none of the most similar.
        critic: The best one, or one with random coefficients, as an untrained network would be.
        correlation: Of the two variables, in (0, 1).
        negatives: Per draw.
        anchors: On a grid; each has one positive, the same in all variants.
        candidates: On a grid.
        draws: Of negatives, for every anchor.
    """

    low: float = 0.0
    high: float = 1.0
    critic: Literal["best", "random"] = "best"
    correlation: float = 0.8
    negatives: int = 15
    anchors: int = 200
    candidates: int = 2000
    draws: int = 300

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"low and high must satisfy 0 <= low < high <= 1, got {self.low} and {self.high}")
        if not 0 < self.correlation < 1:
            raise ValueError(f"correlation must be in (0, 1), got {self.correlation}")
        if min(self.negatives, self.anchors) < 1 or self.draws < 2 or len(self.band(torch.arange(self.candidates))) < 1:
            raise ValueError("negatives and anchors must be at least 1, draws at least 2, and the band not empty")

    @property
    def information(self) -> float:
        """I(U; V), which the best critic finds."""
        return -0.5 * math.log(1 - self.correlation**2)

    def run(self, seed: int) -> dict[str, float]:
        """The means over anchors of estimate, bias and variances, and the share of anchors that meet the condition."""
        coefficients = self.coefficients(seed)
        grid = normal_grid(self.candidates)
        anchors = normal_grid(self.anchors)
        shuffled = torch.randperm(self.anchors, generator=generator("positives", seed))
        positives = self.correlation * anchors + math.sqrt(1 - self.correlation**2) * anchors[shuffled]
        draws = generator("negatives", seed)
        means, variances, gradients, met = [], [], [], []
        for u, v in zip(anchors, positives, strict=True):
            order = (features(u, grid) @ coefficients).argsort()
            inside = self.band(grid[order])
            z, gradient = self._drawn(u, v, inside, coefficients, draws)
            means.append(z.mean())
            variances.append(z.var())
            gradients.append(gradient.var(0).sum())
            outside = self._outside(grid[order])
            if len(outside):
                met.append(z.var() <= self._drawn(u, v, outside, coefficients, draws)[0].var())
        estimate = float(torch.stack(means).mean())
        scores = {
            "estimate": estimate,
            "bias": self.information - estimate,
            "variance of Z": float(torch.stack(variances).mean()),
            "variance of the gradient": float(torch.stack(gradients).mean()),
        }
        return scores | ({"condition met, %": 100 * float(torch.stack(met).double().mean())} if met else {})

    def coefficients(self, seed: int) -> Tensor:
        """a, b, c and d of the critic, (4,)."""
        if self.critic == "random":
            drawn = torch.randn(4, generator=generator("critic", seed), dtype=torch.float64)
            return 0.5 * drawn
        r = self.correlation
        square = -(r**2) / (2 * (1 - r**2))
        return torch.tensor([r / (1 - r**2), square, square, self.information], dtype=torch.float64)

    def band(self, ordered: Tensor) -> Tensor:
        """Those of candidates in rising order of similarity that lie in the band."""
        return ordered[round(self.low * len(ordered)) : round(self.high * len(ordered))]

    def _outside(self, ordered: Tensor) -> Tensor:
        first, last = round(self.low * len(ordered)), round(self.high * len(ordered))
        return torch.cat((ordered[:first], ordered[last:]))

    def _drawn(
        self, u: Tensor, v: Tensor, pool: Tensor, coefficients: Tensor, draws: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Z (draws,) and its gradient (draws, 4) for negatives drawn from a pool."""
        places = torch.randint(len(pool), (self.draws, self.negatives), generator=draws)
        return estimates(u, v, pool[places], coefficients)

    def facts(self) -> dict[str, str]:
        """What was measured on what."""
        return {
            "toy": f"two Gaussians of correlation {self.correlation:g}, {self.information:.4f} nats",
            "draws": f"{self.draws} of {self.negatives} negatives for each of {self.anchors} anchors",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Bias and both variances of every variant."""
        return variance_figure(study, lines)


def features(u: Tensor, v: Tensor) -> Tensor:
    """What the critic's coefficients multiply: u v, u^2, v^2 and 1, (..., 4)."""
    u = u.expand_as(v)
    return torch.stack((u * v, u**2, v**2, torch.ones_like(v)), dim=-1)


def estimates(u: Tensor, v: Tensor, negatives: Tensor, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    """Z (n,) and its gradient (n, 4) by the coefficients, for n sets of negatives (n, k - 1) of one anchor."""
    every = torch.cat((v.expand(len(negatives), 1), negatives), 1)  # the positive comes first
    phi = features(u, every)  # (n, k, 4)
    f = phi @ coefficients
    z = f[:, 0] - f.logsumexp(1) + math.log(every.shape[1])
    gradient = phi[:, 0] - (f.softmax(1)[..., None] * phi).sum(1)
    return z, gradient


def normal_grid(count: int) -> Tensor:
    """The middles of so many parts of equal mass of a standard Gaussian, (count,) float64."""
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    grid: Tensor = torch.special.ndtri(shares)
    return grid
