"""The step that moves a threshold towards a quantile, given only how many numbers exceed it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Adam's state, one entry per threshold: running means of the gradient and its square, and the steps taken."""

    first: Tensor
    second: Tensor
    steps: Tensor


def quantile_gradient(exceeding: Tensor, total: Tensor, alpha: float | Tensor) -> Tensor:
    """The gradient in lambda of GloFND's Eq. 4, alpha - mean(s > lambda): zero where the share alpha exceeds lambda."""
    return alpha - exceeding / total.clamp(min=1)


def adam_step(
    thresholds: Tensor, gradient: Tensor, moments: Moments, rate: float, betas: tuple[float, float]
) -> tuple[Tensor, Moments]:
    """One step of Adam, with bias correction by each threshold's own number of steps; clamped to cosines."""
    steps = moments.steps + 1
    first = moments.first.lerp(gradient, 1 - betas[0])
    second = moments.second.lerp(gradient * gradient, 1 - betas[1])
    mean = first / (1 - betas[0] ** steps.to(first.dtype))
    scale = (second / (1 - betas[1] ** steps.to(second.dtype))).sqrt_().add_(1e-8)
    return torch.addcdiv(thresholds, mean, scale, value=-rate).clamp_(-1, 1), Moments(first, second, steps)
