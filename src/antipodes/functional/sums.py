"""What a kernel gives back, and how sums over all candidates of a block of anchors are collected."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.errors import NotFinite

# The largest |s| / temperature whose exponentials, their sums and the inverses of these stay normal numbers.
_REACH = {torch.float32: 55.0, torch.float64: 600.0}


class Sums(NamedTuple):
    """Over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        log_sum: the log of the sum of exp(s / temperature) over kept pairs; -inf with zero gradient if there are none.
        kept: the number of kept pairs, int64.
        pulled_sum: the sum of the similarities (not divided by the temperature) of pulled pairs.
        pulled: the number of pulled pairs, int64.
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


def sum_dtype(anchors: Tensor, candidates: Tensor, temperature: Tensor) -> torch.dtype:
    """Choose the dtype in which exponentials cannot overflow, and refuse numbers for which there is none."""
    dtype = torch.float64 if anchors.dtype == torch.float64 else torch.float32
    if not (len(anchors) and len(candidates)):
        return dtype
    coldest = float(temperature.detach().min())
    if not (coldest > 0 and math.isfinite(coldest)):
        raise ValueError(f"temperature must be positive and finite, got {coldest}")
    longest = [
        float(torch.linalg.vector_norm(x.detach(), dim=1, dtype=dtype).max())
        for x in ((anchors,) if candidates is anchors else (anchors, candidates))
    ]
    for length, name in zip(longest, ("anchors", "candidates"), strict=False):
        if not math.isfinite(length):
            raise NotFinite(f"{name} hold NaN or infinite numbers: check the encoder's output before the loss")
    reach = longest[0] * longest[-1] / coldest  # |s| / tau is at most this
    if reach > _REACH[dtype]:
        dtype = torch.float64
    if reach > _REACH[dtype]:
        raise ValueError(
            f"similarities divided by the temperature reach {reach:.0f}, beyond {_REACH[dtype]:.0f} their exponentials "
            "overflow: normalise the embeddings or raise the temperature"
        )
    return dtype
