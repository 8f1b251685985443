"""The step that moves a threshold towards a quantile, given only how many numbers exceed it.

Arrays of NumPy do as well as tensors here, and are quicker where there are few thresholds.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Numbers = TypeVar("Numbers", Tensor, NDArray[np.float32])


class Moments(NamedTuple, Generic[Numbers]):
    """Adam's state, one entry per threshold: running means of the gradient and its square, and the steps taken."""

    first: Numbers
    second: Numbers
    steps: Numbers


def quantile_gradient(exceeding: Numbers, total: float | Tensor, alpha: Any) -> Numbers:
    """The gradient in lambda of GloFND's Eq. 4, alpha - mean(s > lambda): zero where the share alpha exceeds lambda."""
    gradient: Numbers = alpha - exceeding / (total.clamp(min=1) if isinstance(total, Tensor) else total)
    return gradient


def adam_step(
    thresholds: Numbers, gradient: Numbers, moments: Moments[Numbers], rate: float, betas: tuple[float, float]
) -> tuple[Numbers, Moments[Numbers]]:
    """One step of Adam, with bias correction by each threshold's own number of steps; clamped to cosines."""
    steps = moments.steps + 1
    first = moments.first + (1 - betas[0]) * (gradient - moments.first)
    second = moments.second + (1 - betas[1]) * (gradient * gradient - moments.second)
    mean = first / (1 - betas[0] ** steps)
    scale = (second / (1 - betas[1] ** steps)) ** 0.5 + 1e-8
    return (thresholds - rate * (mean / scale)).clip(-1, 1), Moments(first, second, steps)
