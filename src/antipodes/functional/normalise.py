"""`normalise`: rows of length 1, with a gradient that stays finite; and how similar both views of each sample are."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipodes.functional.tensors import first_order, on_host


class Measured(NamedTuple):
    """Rows of length 1, without gradient, and what they were before.

    Attributes:
        unit: (N, D) the rows.
        length: (N, 1) 0 of a row that stays zero, NaN or infinite of one that is not finite.
        divisor: (N, 1) by which gradients are divided on their way back.
        span: The shortest and the longest length, if reading them needs no device synchronisation; else None.
    """

    unit: Tensor
    length: Tensor
    divisor: Tensor
    span: tuple[float, float] | None


def normalise(embeddings: Tensor) -> Tensor:
    """Scale rows to length 1 in float32 or better; a zero row stays zero and gets no gradient.

    `torch.nn.functional.normalize` divides by its epsilon there, which multiplies the gradient by 1e12. NaN stays, and
    is refused later.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    return link(embeddings, measure(embeddings))


def measure(embeddings: Tensor) -> Measured:
    """Scale rows to length 1 without their gradient; `link` adds that.

    Example:
        >>> measure(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).length
        tensor([[5.],
                [0.]])
    """
    rows = _full(embeddings.detach())
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    if not on_host(length) or not length.shape[0]:
        return Measured(*_scaled(rows), None)
    shortest, longest = (float(each.numpy()) for each in length.aminmax())  # NaN is both
    lowest, highest = _ORDINARY[length.dtype]
    if lowest < shortest and longest < highest:  # squares have neither overflowed nor vanished
        return Measured(rows / length, length, length, (shortest, longest))
    unit, length, divisor = _scaled(rows)
    return Measured(unit, length, divisor, (float(length.min()), float(length.max())))


def link(embeddings: Tensor, measured: Measured) -> Tensor:
    """Return the rows of length 1 with a gradient for the embeddings they were measured from."""
    unit: Tensor = _Link.apply(_full(embeddings), measured.unit, measured.divisor)  # type: ignore[no-untyped-call]
    return unit


def unlinked(gradient: Tensor, unit: Tensor, divisor: Tensor) -> Tensor:
    """Turn a gradient of rows of length 1 into that of what they were measured from."""
    along = torch.linalg.vecdot(gradient, unit).unsqueeze(-1)
    rest: Tensor = torch.addcmul(gradient, unit, along, value=-1).div_(divisor)
    return rest


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, unit: Tensor, divisor: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(unit, divisor)
        return unit.view_as(unit)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        return None if gradient is None else unlinked(gradient, *ctx.saved_tensors), None, None


def _full(embeddings: Tensor) -> Tensor:
    """The same in float32 or better."""
    return embeddings if embeddings.dtype in _ORDINARY else embeddings.float()


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


def paired_similarity(views: Tensor) -> Tensor:
    """Return the product of every view with the other one of its sample, in few operations.

    Args:
        views: (2b, D) one view of every sample, then the other.

    Returns:
        (2b,), the second half equal to the first.

    Example:
        >>> paired_similarity(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.6, 0.8]]))
        tensor([0.6000, 0.8000, 0.6000, 0.8000])
    """
    similarity: Tensor = _Paired.apply(views)  # type: ignore[no-untyped-call]
    return similarity


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, views: Tensor) -> Tensor:
        ctx.save_for_backward(views)
        first, second = views.chunk(2)
        similarity = torch.linalg.vecdot(first, second)
        return torch.cat((similarity, similarity))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (views,) = ctx.saved_tensors
        half = len(views) // 2
        both = (gradient[:half] + gradient[half:]).unsqueeze(1)
        result = torch.empty_like(views)
        torch.mul(views[half:], both, out=result[:half])
        torch.mul(views[:half], both, out=result[half:])
        return result
