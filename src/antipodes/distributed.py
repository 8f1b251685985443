"""The gather over ranks, and this process's rank.

Losses gather their candidates here and tables their writes. Without ``torch.distributed`` (or with one rank) each
function returns its input, so callers need no check.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Treat this process as the only rank inside the block, for work that each rank does alone with all of the data."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def world_size() -> int:
    """The number of ranks, 1 when torch.distributed is not initialised."""
    initialised = dist.is_available() and dist.is_initialized() and not _ALONE.get()
    return dist.get_world_size() if initialised else 1


def rank() -> int:
    """This process's rank, 0 when torch.distributed is not initialised."""
    return dist.get_rank() if world_size() > 1 else 0


class _Gather(torch.autograd.Function):
    """Concatenate over ranks; the gradient of a row is the sum of the gradients from all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ctx.rows = tensor.shape[0]
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total)
        start = rank() * ctx.rows
        return total[start : start + ctx.rows]


def gather(tensor: Tensor) -> Tensor:
    """Concatenate a tensor's rows over all ranks, in rank order, with exact gradients.

    Backward adds up the gradients that all ranks computed for a row. A rank's loss is the mean over its own anchors and
    data-parallel training averages gradients over ranks, so two ranks of B/2 give the gradient of one rank of B.

    Args:
        tensor: (b, ...), the same shape on every rank.

    Returns:
        (world * b, ...)
    """
    if world_size() == 1:
        return tensor
    return cast(Tensor, _Gather.apply(tensor))  # type: ignore[no-untyped-call]
