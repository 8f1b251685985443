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

_AVAILABLE = dist.is_available()
_ALONE: ContextVar[bool] = ContextVar("alone", default=False)
_UNEQUAL: ContextVar[bool] = ContextVar("unequal", default=False)


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
    initialised = _AVAILABLE and dist.is_initialized() and not _ALONE.get()
    return dist.get_world_size() if initialised else 1


def rank() -> int:
    """This process's rank, 0 when torch.distributed is not initialised."""
    return dist.get_rank() if world_size() > 1 else 0


def expect_unequal(unequal: bool) -> None:
    """Say whether the ranks' batches differ in length from here on; a loss does so at the start of every call."""
    _UNEQUAL.set(unequal)


def expects_unequal() -> bool:
    """Return True if the ranks' batches differ in length."""
    return _UNEQUAL.get() and world_size() > 1


class _Gather(torch.autograd.Function):
    """Concatenate over ranks; the gradient of a row is the sum of the gradients from all ranks.

    Ranks with fewer rows than the longest send empty slots, which are cut off again.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        ranks = world_size()
        ctx.lengths = lengths = _lengths(tensor) if expects_unequal() else [len(tensor)] * ranks
        parts = [tensor.new_empty(max(lengths), *tensor.shape[1:]) for _ in range(ranks)]
        dist.all_gather(parts, _filled(tensor, max(lengths)))
        return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        longest = max(ctx.lengths)
        parts = torch.cat([_filled(part, longest) for part in grads[0].split(ctx.lengths)])
        total = parts.new_empty(longest, *parts.shape[1:])
        _reduce_scatter(total, parts)
        return total[: ctx.lengths[rank()]]


# torch 2.13 gave it another name, and warns of the old one
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def _lengths(tensor: Tensor) -> list[int]:
    """Return how many rows every rank has."""
    parts = [torch.empty(1, dtype=torch.int64, device=tensor.device) for _ in range(world_size())]
    dist.all_gather(parts, torch.tensor([len(tensor)], device=tensor.device))
    return [int(length) for length in torch.cat(parts).tolist()]


def _filled(tensor: Tensor, length: int) -> Tensor:
    """Return the rows of a tensor, and zeros up to a length."""
    if len(tensor) == length:
        return tensor.contiguous()
    return torch.cat((tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])))


def gather(tensor: Tensor) -> Tensor:
    """Concatenate a tensor's rows over all ranks, in rank order, with exact gradients.

    Backward adds up the gradients that all ranks computed for a row, and hands every rank those of its own rows (a
    reduce-scatter). A rank's loss is the mean over its own anchors and data-parallel training averages gradients over
    ranks, so two ranks of B/2 give the gradient of one rank of B.

    Args:
        tensor: (b, ...), the same shape on every rank; b may differ after `expect_unequal(True)`.

    Returns:
        (world * b, ...)
    """
    if world_size() == 1:
        return tensor
    return cast(Tensor, _Gather.apply(tensor))  # type: ignore[no-untyped-call]


def exchange(tensor: Tensor, sent: list[int], received: list[int] | None = None) -> tuple[Tensor, list[int]]:
    """Send rows to the ranks: the first `sent[0]` to rank 0, the next to rank 1, and so on (all-to-all).

    Args:
        tensor: (b, ...), of another length on every rank if need be.
        sent: How many rows every rank gets.
        received: How many rows come from every rank, if that is known.

    Returns:
        The rows that the ranks have sent to this one, in rank order, and how many each has sent.
    """
    if received is None:
        counts = torch.tensor(sent, device=tensor.device)
        of_ranks = torch.empty_like(counts)
        dist.all_to_all_single(of_ranks, counts)
        received = of_ranks.tolist()
    result = tensor.new_empty(sum(received), *tensor.shape[1:])
    dist.all_to_all_single(result, tensor.contiguous(), received, sent)
    return result, received


def apart(numbers: Tensor) -> Tensor:
    """Return small whole numbers of this rank raised so that no other rank has the same ones."""
    return numbers + (rank() << 40)


def mean_over_anchors(losses: Tensor) -> Tensor:
    """Return the mean of this rank's losses (A,), or (R, A), so that the mean over ranks is that over all anchors."""
    if not expects_unequal():
        return losses.mean()
    anchors = gather(losses.new_tensor([losses.shape[-1]])).sum()
    return losses.mean() * (losses.shape[-1] * world_size() / anchors)
