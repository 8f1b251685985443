"""MoCo's first-in-first-out queue of keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antipodes.distributed import gather


class Queue(nn.Module):
    """The last `size` keys of a momentum encoder, with the ids they came from.

    A slot that was never written has id -1 and never counts. The ids let the loss leave out stale copies of the
    anchor's own sample, and let policies look a key's labels up at the time of use.

    Args:
        size: Number of keys kept.
        dim: Their dimension.
    """

    keys: Tensor
    ids: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"the queue's size must be at least 1, got {size}")
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def push(self, keys: Tensor, ids: Tensor) -> None:
        """Replace the oldest keys by these (b, D), gathered over all ranks in rank order."""
        size = len(self.ids)
        keys, ids = gather(keys.detach())[-size:], gather(ids)[-size:]
        slots = (self.cursor + torch.arange(len(ids), device=ids.device)) % size
        self.keys[slots] = keys.to(self.keys.dtype)
        self.ids[slots] = ids
        self.cursor.copy_((self.cursor + len(ids)) % size)
