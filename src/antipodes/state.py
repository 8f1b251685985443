"""`SampleTable`: numbers that belong to a sample of the dataset, read and written by its id."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from antipodes.distributed import gather


class SampleTable(nn.Module):
    """One row per dataset index, part of the checkpoint and identical on all ranks.

    A write is gathered over the ranks first, so after each step every rank holds the same table. When one write names
    an id more than once, the last one wins (in rank order).

    Args:
        num_samples: Rows, the size of the dataset.
        shape: Shape of a row; () for one number a sample.
        fill: Value of a row that was never written.
        file: Keep the rows in this memory-mapped file (created when absent), for tables larger than memory.

    Example:
        >>> table = SampleTable(4)
        >>> table.write(torch.tensor([1, 3]), torch.tensor([0.5, 0.25]))
        >>> table.read(torch.tensor([3, 0]))
        tensor([0.2500, 0.0000])
    """

    rows: Tensor

    def __init__(
        self,
        num_samples: int,
        shape: tuple[int, ...] = (),
        fill: float = 0.0,
        dtype: torch.dtype = torch.float32,
        file: str | None = None,
    ) -> None:
        super().__init__()
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}: it is the size of the dataset")
        self.num_samples = num_samples
        size = num_samples * math.prod(shape)
        if file is None:
            rows = torch.full((num_samples, *shape), fill, dtype=dtype)
        else:
            rows = _mapped(Path(file), size, fill, dtype).view(num_samples, *shape)
        self.register_buffer("rows", rows)

    def read(self, ids: Tensor) -> Tensor:
        """The rows of the given ids, (b, *shape), as a copy."""
        self._check(ids)
        return self.rows[ids]

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Replace the rows of the given ids on every rank by values (b, *shape)."""
        self._check(ids)
        if values.shape != (ids.numel(), *self.rows.shape[1:]):
            expected = (ids.numel(), *self.rows.shape[1:])
            raise ValueError(f"values must have the shape {expected} of their ids and rows, got {tuple(values.shape)}")
        self.put(gather(ids), gather(values.detach()))

    def put(self, ids: Tensor, values: Tensor) -> None:
        """Replace rows by values that are gathered already, the same call on every rank."""
        last = _last_of_each(ids)
        self.rows[ids[last]] = values[last].to(self.rows.dtype)

    def _check(self, ids: Tensor) -> None:
        check_ids(ids, self.num_samples)


def check_ids(ids: Tensor, num_samples: int) -> None:
    """Refuse ids that are not whole numbers in 0..num_samples-1."""
    if ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"ids must be int64 of shape (B,), got {ids.dtype} of shape {tuple(ids.shape)}")
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= num_samples):
        raise ValueError(
            f"ids must be in 0..{num_samples - 1}, got {int(ids.min())}..{int(ids.max())}: "
            "they are dataset indices, and num_samples is the size of the dataset"
        )


def _last_of_each(ids: Tensor) -> Tensor:
    """Positions of the last occurrence of every distinct id: index_put leaves the order of duplicates open."""
    distinct, inverse = ids.unique(return_inverse=True)
    positions = torch.arange(ids.numel(), device=ids.device)
    return torch.zeros_like(distinct).scatter_reduce_(0, inverse, positions, "amax", include_self=False)


def _mapped(file: Path, size: int, fill: float, dtype: torch.dtype) -> Tensor:
    """A flat tensor whose memory is the file; a file of another size is refused, a new one is filled."""
    expected = size * torch.empty((), dtype=dtype).element_size()
    if not file.parent.is_dir():
        raise ValueError(f"the folder of the table {file} does not exist: create it first")
    if not file.exists():
        # filled under another name, then linked: no other rank, and no run after a crash, sees it half filled
        part = file.with_name(f"{file.name}.{os.getpid()}")
        torch.from_file(str(part), shared=True, size=size, dtype=dtype).fill_(fill)
        with suppress(FileExistsError):
            os.link(part, file)
        part.unlink()
    if file.stat().st_size != expected:
        raise ValueError(
            f"{file} holds {file.stat().st_size} bytes where the table needs {expected}: it belongs to another dataset"
        )
    return torch.from_file(str(file), shared=True, size=size, dtype=dtype)
