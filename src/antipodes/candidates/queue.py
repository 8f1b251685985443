"""MoCo's first-in-first-out queue of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from antipodes.arguments import check_numbers, check_vectors, checked, whole
from antipodes.distributed import gather
from antipodes.state import LARGEST_TABLE, ByRow


class Queue(nn.Module):
    """The last `size` keys of a momentum encoder, with the ids and rows they came from.

    A slot that was never written has id -1 and never counts. The ids let the loss leave out stale copies of the
    anchor's own sample, the rows let policies look a key's labels up at the time of use.

    Args:
        size: Number of keys kept.
        dim: Their dimension.
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"ids": ByRow(None, "samples"), "rows": ByRow(None, "rows")}
    keys: Tensor
    ids: Tensor
    rows: Tensor
    cursor: Tensor

    @checked
    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        size, dim = whole("size", size, 1), whole("dim", dim, 1)
        if size * dim >= LARGEST_TABLE:
            raise ValueError(f"size must leave room for the keys in memory, got {size} keys of {dim} numbers")
        self.register_buffer("keys", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))
        self.register_buffer("rows", torch.full((size,), -1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.int64))

    def push(self, keys: Tensor, ids: Tensor, rows: Tensor | None = None) -> None:
        """Replace the oldest keys by these (b, D), gathered over all ranks in rank order.

        Args:
            keys: (b, D) of this rank.
            ids: (b,) identities of their samples.
            rows: (b,) table rows of their samples; None takes the ids.
        """
        size = len(self.ids)
        rows = ids if rows is None else rows
        check_vectors("keys", keys, self.keys.shape[1])
        check_numbers("ids", ids, len(keys))
        check_numbers("rows", rows, len(keys))
        keys, ids, rows = gather(keys.detach())[-size:], gather(ids)[-size:], gather(rows)[-size:]
        slots = (self.cursor + torch.arange(len(ids), device=ids.device)) % size
        self.keys[slots] = keys.to(self.keys.dtype)
        self.ids[slots] = ids
        self.rows[slots] = rows
        self.cursor.copy_((self.cursor + len(ids)) % size)
