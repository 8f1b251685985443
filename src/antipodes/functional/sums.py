"""What a kernel gives back, and how sums over all candidates of a block of anchors are collected."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sums(NamedTuple):
    """The sums over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        log_sum: the log of the sum of exp(s / temperature) over kept pairs; -inf with zero gradient if there are none.
        kept: the number of kept pairs, int64.
        pulled_sum: the sum of the similarities (not divided by the temperature) of pulled pairs.
        pulled: the number of pulled pairs, int64; the sum of their weights where listed pairs have some.
    """

    log_sum: Tensor
    kept: Tensor
    pulled_sum: Tensor
    pulled: Tensor


class Collected:
    """Log sums with a gradient for the anchors, from rows of weights over all candidates, which are constants.

    Args:
        anchors: (A, D); they get the gradient.
        candidates: (C, D), in the dtype of the sums.
        rules: R, how many sums there are.
        temperature: by which similarities were divided before the weights were made of them.
    """

    def __init__(self, anchors: Tensor, candidates: Tensor, rules: int, temperature: float) -> None:
        self.anchors, self.candidates, self.temperature = anchors, candidates, temperature
        self._log_sum = candidates.new_full((rules, len(anchors)), -torch.inf)
        # the gradient of log_sum for its anchor: the weighted mean of the candidates / temperature
        self._direction = candidates.new_zeros(rules, *anchors.shape)

    def add(self, rule: int, rows: slice, weights: Tensor, total: Tensor, peak: Tensor | float = 0.0) -> None:
        """Take in weights e^{s / temperature - peak} (b, C), zero where nothing is kept, and their sums (b,)."""
        self._log_sum[rule, rows] = total.log() + peak
        scale = torch.where(total > 0, total * self.temperature, 1.0)
        self._direction[rule, rows] = torch.mm(weights, self.candidates).div_(scale[:, None])

    def log_sum(self) -> Tensor:
        """The log sums (R, A): -inf with zero gradient where nothing was kept."""
        # adds zero, and the gradient
        return self._log_sum + ((self.anchors - self.anchors.detach()) * self._direction).sum(2)
