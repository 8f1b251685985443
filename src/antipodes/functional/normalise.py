"""`normalise`: rows of length 1, in few operations, with a gradient that stays finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from antipodes.functional._reading import on_host


def normalise(embeddings: Tensor) -> Tensor:
    """Scale rows to length 1 in float32 or better; a zero row stays zero and gets no gradient.

    `torch.nn.functional.normalize` divides by its epsilon there, which multiplies the gradient by 1e12. NaN stays, and
    is refused later.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return measured(embeddings)[0]


def measured(embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows to length 1 as `normalise` does, and return their lengths (N, 1) as well.

    The length is 0 of a row that stays zero, and NaN or infinite of one that is not finite.

    Example:
        >>> measured(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))[1]
        tensor([[5.],
                [0.]])
    """
    embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
    unit, length = _Normalise.apply(embeddings)  # type: ignore[no-untyped-call]
    return unit, length


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.linalg.vector_norm(embeddings, dim=-1, keepdim=True)
        divisor = length
        if on_host(length) and _ordinary(length):
            unit = embeddings / length
        else:
            unit, length, divisor = _scaled(embeddings)
        ctx.mark_non_differentiable(length)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unit, divisor)
        return unit, length

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:
        if gradient is None:
            return None
        unit, divisor = ctx.saved_tensors
        along = torch.linalg.vecdot(gradient, unit).unsqueeze(-1)
        rest: Tensor = torch.addcmul(gradient, unit, along, value=-1).div_(divisor)
        return rest


def _ordinary(length: Tensor) -> bool:
    """Whether squares have neither overflowed nor vanished in any of these lengths."""
    lowest, highest = _ORDINARY[length.dtype]
    lengths = length.numpy()
    return not lengths.size or bool(lengths.min() > lowest and lengths.max() < highest)


_ORDINARY = {torch.float32: (1e-15, 1e18), torch.float64: (1e-150, 1e150)}


def _scaled(embeddings: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of length 1, their lengths before that, and what gradients are to be divided by."""
    # by its largest entry first: the squares of a long row would overflow, those of a short one vanish
    peak = embeddings.abs().amax(-1, keepdim=True)
    zero = peak < math.sqrt(torch.finfo(peak.dtype).tiny)
    unit = embeddings / peak.masked_fill(zero, torch.inf)  # what infinity divides becomes zero
    length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    unit.div_(length.clamp(min=1.0))  # 1 at least, or 0 for a row of zeros
    length = (length * peak).masked_fill_(zero, 0.0)
    return unit, length, length.masked_fill(zero, torch.inf)
