"""`normalise`: rows of length 1, in few operations, with a gradient that stays finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def normalise(embeddings: Tensor) -> Tensor:
    """Scale rows to length 1 in float32 or better; a zero row stays zero and gets no gradient.

    `torch.nn.functional.normalize` divides by its epsilon there, which multiplies the gradient by 1e12. NaN stays, and
    is refused later.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
    unit: Tensor = _Normalise.apply(embeddings)  # type: ignore[no-untyped-call]
    return unit


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        # by its largest entry first: the squares of a long row would overflow, those of a short one vanish
        peak = torch.linalg.vector_norm(embeddings, torch.inf, dim=-1, keepdim=True)
        peak.masked_fill_(peak < math.sqrt(torch.finfo(peak.dtype).tiny), torch.inf)  # what it divides becomes zero
        unit: Tensor = embeddings / peak
        length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True).clamp_(min=1.0)  # 1 at least, or 0 for no row
        unit.div_(length)
        ctx.save_for_backward(unit, peak.mul_(length))
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, length = ctx.saved_tensors
        along = (gradient * unit).sum(-1, keepdim=True)
        rest: Tensor = torch.addcmul(gradient, unit, along, value=-1).div_(length)
        return rest
