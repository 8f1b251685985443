"""The sums of Debiased and HCL from the kernel's sums, in log space."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def debias(log_sum: Tensor, kept: Tensor, positives: Tensor, tau_plus: float, temperature: float | Tensor) -> Tensor:
    """Debiased's estimate of the sum over true negatives: take away what the share `tau_plus` of positives adds to it.

        S' = max( (S - N tau_plus e^{s+/tau}) / (1 - tau_plus),  N e^{-1/tau} )

    The second is the smallest sum that N cosines can have. There the gradient ends.

    Args:
        log_sum: (R, A) logs of the sums S of e^{s/tau}.
        kept: (R, A) their numbers of terms N; without any, the result is -inf, with zero gradient.
        positives: (A,) similarities to the positives.
        tau_plus: share of the candidates that are positives.
        temperature: tau.

    Returns:
        (R, A) log S', with gradients to log_sum and positives.

    Example:
        >>> debias(torch.tensor([[3.0]]), torch.tensor([[5]]), torch.tensor([0.5]), 0.0, 0.5)
        tensor([[3.]])
    """
    if tau_plus == 0:
        return log_sum
    empty = kept == 0
    log_sum = log_sum.masked_fill(empty, 0.0)
    count = kept.clamp(min=1).to(log_sum.dtype).log()
    taken = math.log(tau_plus) + count + positives / temperature - log_sum  # the log of the share of S that goes
    floor = count - 1 / temperature
    rest = (-torch.expm1(taken.where(taken < 0, -1.0))).log()
    debiased = (log_sum + rest - math.log1p(-tau_plus)).where(taken < 0, floor)
    return torch.maximum(debiased, floor).masked_fill(empty, -torch.inf)


def harden(weighted: Tensor, weights: Tensor, kept: Tensor) -> Tensor:
    """HCL's sum over negatives that are drawn by their weights: log( N sum_k w_k e^{s_k/tau} / sum_k w_k ).

    Args:
        weighted: (R, A) logs of the sums of w e^{s/tau}.
        weights: (R, A) logs of the sums of w.
        kept: (R, A) their numbers of terms N; without any, the result is -inf, with zero gradient.

    Returns:
        (R, A), with gradients to both.

    Example:
        >>> harden(torch.tensor([[2.0]]), torch.tensor([[1.5]]), torch.tensor([[1]]))
        tensor([[0.5000]])
    """
    empty = kept == 0
    count = kept.clamp(min=1).to(weighted.dtype).log()
    mean = weighted.masked_fill(empty, 0.0) - weights.masked_fill(empty, 0.0)
    return (mean + count).masked_fill(empty, -torch.inf)
