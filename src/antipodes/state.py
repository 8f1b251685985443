"""`SampleTable`: a tensor with one entry for every row of the dataset; `ByRow`: how a tensor depends on rows."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from antipodes.arguments import checked, describe, is_dense, whole
from antipodes.distributed import exchange, gather, rank, world_size

LARGEST_TABLE = 2**40  # numbers


@dataclass(frozen=True)
class ByRow:
    """How a tensor of a module's state depends on the rows of the dataset, for when the dataset grows.

    A module declares it in the class attribute `row_state`: the tensor's name -> `ByRow`.

    Args:
        axis: The dimension that is indexed by rows (or by a fixed number of places for each); None if none is.
        holds: `values` that belong to a row; numbers of `rows` or of `samples`, negative for none; or `data`, facts
            about the dataset, which are taken from the new dataset.
    """

    axis: int | None = 0
    holds: Literal["values", "rows", "samples", "data"] = "values"


class SampleTable(nn.Module):
    """One row per dataset index, part of the checkpoint and identical on all ranks.

    Writes are gathered over ranks, so after each step all ranks hold the same table. If one write contains an id twice,
    the last value wins (in rank order). With `sharded` every rank holds a share of the rows instead: reads and writes
    go to the ranks that hold them (all-to-all), and reads, writes and `state_dict` are calls that all ranks make.

    Args:
        num_samples: Number of rows, the size of the dataset.
        shape: Shape of a row; () for one number per sample.
        fill: Initial value of all rows: a number, or one number for each entry of a row.
        dtype: Type of the rows.
        folder: Keep the rows in a memory-mapped file in this folder, for tables larger than memory. Each process has a
            file of its own, which is removed when it ends; checkpoints hold the state. The table then stays on the CPU
            and keeps its type when its module is moved. With `sharded` the files of a node's processes hold one table.
        sharded: Of several ranks, hold the rows n * rank // ranks to n * (rank + 1) // ranks on each. Checkpoints hold
            the whole table, so another number of ranks can load them.

    Example:
        >>> table = SampleTable(4)
        >>> table.write(torch.tensor([1, 3]), torch.tensor([0.5, 0.25]))
        >>> table.read(torch.tensor([3, 0]))
        tensor([0.2500, 0.0000])
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"rows": ByRow()}
    rows: Tensor

    @checked
    def __init__(
        self,
        num_samples: int,
        shape: tuple[int, ...] = (),
        fill: float | Sequence[float] = 0.0,
        dtype: torch.dtype = torch.float32,
        folder: str | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        num_samples = self.num_samples = sample_count(num_samples)
        self._in_memory = folder is None
        ranks, self._bounds = (world_size() if sharded else 1), [0, num_samples]
        if ranks > 1:
            self._bounds = [num_samples * each // ranks for each in range(ranks + 1)]
        self.first = self._bounds[rank() if ranks > 1 else 0]
        if isinstance(shape, bytes):
            raise ValueError(f"shape must be a tuple of whole numbers, got {describe(shape)}")
        shape = tuple(whole("shape", each, 0) for each in shape)
        size = (self._bounds[rank() + 1] - self.first if ranks > 1 else num_samples, *shape)
        if math.prod(size) >= LARGEST_TABLE:
            raise ValueError(f"num_samples must leave room for a table in memory, got {num_samples} rows of {shape}")
        rows = torch.empty(size, dtype=dtype) if folder is None else _mapped(folder, math.prod(size), dtype).view(size)
        self.fill = fill
        try:
            self.register_buffer("rows", rows.copy_(torch.tensor(fill, dtype=dtype)))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"fill must be a number, or one for each of a row's {shape}, got {describe(fill)}"
            ) from error

    def read(self, ids: Tensor) -> Tensor:
        """Return the rows of the given ids, (b, *shape), as a copy on the device of `ids`."""
        self._check(ids)
        return self.read_checked(ids)

    def read_checked(self, ids: Tensor) -> Tensor:
        """Return what `read` returns without checking ids, which would read them back from the device."""
        if not self.sharded:
            rows = self.rows
            return rows[ids.to(rows.device)].to(ids.device)
        order, asked = self._by_owner(ids)
        wanted, wanted_by = exchange(ids[order], asked)
        found, _ = exchange(self.rows[(wanted - self.first).to(self.rows.device)].to(ids.device), wanted_by, asked)
        return torch.empty_like(found).index_copy_(0, order, found)

    def _by_owner(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """Return the order of ids by the rank that holds them, and how many each rank holds."""
        owner = torch.bucketize(ids, ids.new_tensor(self._bounds[1:]), right=True)
        return owner.argsort(stable=True), owner.bincount(minlength=len(self._bounds) - 1).tolist()

    @property
    def sharded(self) -> bool:
        """Return True if this rank holds a share of the rows."""
        return len(self._bounds) > 2

    def whole(self) -> Tensor:
        """Return all rows (n, *shape), of all ranks."""
        if not self.sharded:
            return self.rows
        longest = max(end - start for start, end in zip(self._bounds, self._bounds[1:], strict=False))
        own = self.rows.new_zeros(longest, *self.rows.shape[1:])
        own[: len(self.rows)] = self.rows
        parts = gather(own).split(longest)
        spans = zip(self._bounds, self._bounds[1:], parts, strict=False)
        return torch.cat([part[: end - start] for start, end, part in spans])

    def load(self, rows: Tensor) -> None:
        """Replace the table by these rows (n, *shape), the same on all ranks."""
        self.rows.copy_(rows[self.first : self.first + len(self.rows)])

    def write(self, ids: Tensor, values: Tensor) -> None:
        """Replace the rows of the given ids by values (b, *shape), on every rank."""
        self._check(ids)
        if not is_dense(values) or values.shape != (ids.numel(), *self.rows.shape[1:]) or values.is_complex():
            expected = (ids.numel(), *self.rows.shape[1:])
            raise ValueError(f"values must have the shape {expected} of their ids and rows, got {describe(values)}")
        if self.sharded:
            order, counts = self._by_owner(ids)
            ids, received = exchange(ids[order], counts)
            values, _ = exchange(values.detach()[order], counts, received)
        else:
            ids, values = gather(ids), gather(values.detach())
        self.write_gathered(ids, values)

    def write_gathered(self, ids: Tensor, values: Tensor, distinct: bool = False) -> None:
        """Replace rows by values that are already gathered; every rank makes the same call.

        Args:
            ids: (b,) the rows.
            values: (b, *shape).
            distinct: True if no id is repeated, which saves a search for duplicates.
        """
        if self.sharded:
            ours = (ids >= self.first) & (ids < self.first + len(self.rows))
            ids, values = ids[ours], values[ours]
        if not distinct:
            last = _last_of_each(ids)
            ids, values = ids[last], values[last]
        ids, rows = ids - self.first if self.first else ids, self.rows
        rows[ids.to(rows.device)] = values.to(rows)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Save the whole table; of a sharded one all ranks call it."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.sharded:
            destination[prefix + "rows"] = self.whole()

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load this rank's rows of a whole table."""
        name = prefix + "rows"
        if self.sharded and name in state:
            state = {**state, name: state[name][self.first : self.first + len(self.rows)]}
        super()._load_from_state_dict(state, prefix, *others)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SampleTable:
        """Move the table to another device or type; a table in a file is not moved."""
        return super()._apply(fn, recurse) if self._in_memory else self  # type: ignore[no-untyped-call]

    def _check(self, ids: Tensor) -> None:
        check_ids(ids, self.num_samples)


def sample_count(given: float, name: str = "num_samples") -> int:
    """Return the size of a dataset as an int; 1e6 is allowed.

    Raises:
        ValueError: if it is not a whole number, or less than 1.
    """
    if not isinstance(given, Real) or not 1 <= given < LARGEST_TABLE or not float(given).is_integer():
        what = given if isinstance(given, Real) else f"a {type(given).__name__}"
        raise ValueError(
            f"{name} must be a whole number from 1 to below {LARGEST_TABLE}, got {what}: it is the size of the dataset"
        )
    return int(given)


def check_ids(ids: Tensor, num_samples: int) -> None:
    """Refuse ids that are not whole numbers in 0..num_samples-1."""
    if not is_dense(ids) or ids.dtype != torch.int64 or ids.dim() != 1:
        raise ValueError(f"ids must be int64 of shape (B,), got {describe(ids)}")
    if not ids.numel():
        return
    lowest, highest = torch.stack(torch.aminmax(ids)).tolist()  # one read from the device
    check_span(lowest, highest, num_samples)


def check_span(lowest: int, highest: int, num_samples: int) -> None:
    """Refuse a range of ids that is not inside 0..num_samples-1."""
    if lowest < 0 or highest >= num_samples:
        raise ValueError(
            f"ids must be in 0..{num_samples - 1}, got {lowest}..{highest}: "
            "they are dataset indices, and num_samples is the size of the dataset"
        )


def _last_of_each(ids: Tensor) -> Tensor:
    """Return the positions of the last occurrence of each id, because index_put does not define the order."""
    distinct, inverse = ids.unique(return_inverse=True)
    positions = torch.arange(ids.numel(), device=ids.device)
    return torch.zeros_like(distinct).scatter_reduce_(0, inverse, positions, "amax", include_self=False)


def _mapped(folder: str, size: int, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor in an unnamed memory-mapped file, which the system removes with the process."""
    if not folder or "\0" in folder or not Path(folder).is_dir():
        raise ValueError(f"the folder {folder!r} for tables does not exist: create it first")
    needed, free = size * dtype.itemsize, shutil.disk_usage(folder).free
    if needed > free:  # checked here, because writing to a mapped file without room kills the process
        raise ValueError(f"a table needs {needed:,} bytes and {folder} has {free:,} free: choose another folder")
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        return torch.from_file(file.name, shared=True, size=size, dtype=dtype)
