"""What the kernel sums over pairs: functions of a pair's logit z = s / tau, and their derivatives.

| function | summed over kept pairs | summed over pulled pairs |
|---|---|---|
| `softmax` | e^z, and then the logarithm is taken | s |
| `sigmoid` | softplus(z) of kept pairs that are not pulled | softplus(-z) |
| `soft sigmoid` | softplus(z) of all kept pairs | nothing |
| `none` | nothing | s |

Both kernels, dense and streaming, take these functions of a matrix of logits: of all pairs, or of a tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from antipodes.functional._tiles import Buffers

PairFunction = Literal["softmax", "sigmoid", "soft sigmoid", "none"]


def pair_values(
    function: PairFunction, logits: Tensor, added: Tensor | None, pulls: bool, out: Tensor, buffers: Buffers
) -> tuple[Tensor | None, Tensor]:
    """Return what is summed over kept pairs, or None for nothing, and over pulled pairs, (h, w) each.

    For `softmax` and `none` the second matrix is the logits themselves: a sum of s is tau times a sum of logits.

    Args:
        function: the function of a pair.
        logits: (h, w) similarities divided by the temperature.
        added: what is added to the logits: the bias, (), or the offsets of the candidates, (w,).
        pulls: whether the second matrix is needed.
        out: (h, w) where the first matrix is written; it may be the logits, if these are not needed any more.
        buffers: where the others are written.
    """
    if function == "none":
        return None, logits
    shape = (logits.shape[0], logits.shape[1])
    z = logits if added is None else torch.add(logits, added, out=out)
    if function == "softmax":
        return torch.exp(z, out=out), logits
    # softplus(z) = max(z, 0) + log(1 + e^-|z|), and softplus(-z) has the same second term: nothing overflows
    rest = torch.abs(z, out=buffers("rest", shape)).neg_().exp_().log1p_()
    opposite = logits
    if pulls and function == "sigmoid":
        opposite = torch.neg(z, out=buffers("opposite", shape)).clamp_(min=0.0).add_(rest)
    return torch.clamp(z, min=0.0, out=out).add_(rest), opposite


def pair_slopes(
    function: PairFunction, logits: Tensor, added: Tensor | None, pulls: bool, out: Tensor, buffers: Buffers
) -> tuple[Tensor | None, Tensor | None]:
    """Return the derivatives of both values by the logit, (h, w) each; None stands for 1. Arguments: `pair_values`."""
    if function == "none":
        return None, None
    z = logits if added is None else torch.add(logits, added, out=out)
    if function == "softmax":
        return torch.exp(z, out=out), None
    slope = torch.sigmoid(z, out=out)
    return slope, torch.sub(slope, 1.0, out=buffers("opposite", (z.shape[0], z.shape[1]))) if pulls else None


FAR = 1e30
"""So far below all others are the logits of pairs that do not count: e^-FAR is 0, and 0 times FAR is still 0."""

LOWEST = -1e29
"""The peak of an anchor that keeps nothing: below all logits, and above those that are FAR below."""

VANISHED, TINY = -60.0, 1e-26
"""No logit counts as further below its anchor's peak than e^VANISHED < TINY: exponentials that underflow are slow."""

NOTHING = {torch.float32: 1e-26, torch.float64: 1e-270}
"""Below every sum of exponentials of something, and so far from 0 that dividing by it does not overflow."""

FAINT = 1e-11
"""Gradients so much smaller than the largest count as zero: times exponentials they would underflow."""


def largest(grads: Sequence[Tensor | None]) -> Tensor:
    """Return the largest absolute value of these gradients, (), or 1 if all are zero.

    Gradients of pairs are computed relative to it: those of a loss near zero would underflow as products.
    """
    top = torch.stack([each.abs().max() for each in grads if each is not None and each.numel()]).max()
    return torch.where(top > 0, top, 1.0)
