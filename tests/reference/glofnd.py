"""GloFND by loops, in plain Python floats."""

from __future__ import annotations

import math


class LoopGloFND:
    """One threshold per id; `step` takes the similarities of every id's candidates, all views at once."""

    def __init__(
        self, alpha: float, lr: float = 0.05, betas: tuple[float, float] = (0.9, 0.98), adam: bool = True
    ) -> None:
        self.alpha, self.lr, self.betas, self.adam = alpha, lr, betas, adam
        self.threshold: dict[int, float] = {}
        self.moments: dict[int, tuple[float, float, int]] = {}

    def step(self, similarities: dict[int, list[float]]) -> None:
        for sample, values in similarities.items():
            threshold = self.threshold.get(sample, 1.0)
            gradient = self.alpha - sum(value > threshold for value in values) / len(values)
            change = gradient
            if self.adam:
                first, second, steps = self.moments.get(sample, (0.0, 0.0, 0))
                first = self.betas[0] * first + (1 - self.betas[0]) * gradient
                second = self.betas[1] * second + (1 - self.betas[1]) * gradient**2
                steps += 1
                self.moments[sample] = (first, second, steps)
                corrected = first / (1 - self.betas[0] ** steps), second / (1 - self.betas[1] ** steps)
                change = corrected[0] / (math.sqrt(corrected[1]) + 1e-8)
            self.threshold[sample] = min(1.0, max(-1.0, threshold - self.lr * change))
