"""`TableGuide`: vectors that any model computed beforehand, looked up by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.arguments import checked, whole
from antipodes.guides.guide import GuideSource, Notify
from antipodes.pairs import normalise
from antipodes.state import check_ids

BLOCK = 2**14  # rows that are read at a time


class TableGuide(GuideSource):
    """Embeddings of the whole dataset by any model, in the order of the dataset's rows.

    `guide(rows)` returns the vectors of these rows with length 1. A file is mapped into memory, so only the rows of a
    batch are read. Checkpoints do not contain the table.

    Args:
        table: (n, G) floating point, or the path of a `.npy` or `.safetensors` file with it.
        name: The name of the tensor in a safetensors file; needed if the file holds several.

    Raises:
        ValueError: if the file does not exist, or does not hold a floating-point matrix.

    Example:
        >>> guide = TableGuide(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        >>> guide(torch.tensor([1, 0]))
        tensor([[0.0000, 1.0000],
                [0.6000, 0.8000]])
    """

    @checked
    def __init__(self, table: Tensor | str | Path, name: str | None = None) -> None:
        super().__init__()
        loaded = table if isinstance(table, Tensor) else _map_table(Path(table), name)
        if loaded.dim() != 2 or not loaded.is_floating_point() or not len(loaded):
            raise ValueError(f"a guide's table must be (n, G) floats, got {loaded.dtype} {tuple(loaded.shape)}")
        self._table: Tensor | None = loaded.detach()  # not a buffer: checkpoints need not hold what is on disk
        self._load: Callable[[Notify | None], TableGuide] | None = None

    @classmethod
    def deferred(cls, load: Callable[[Notify | None], TableGuide]) -> TableGuide:
        """Make a guide whose table is loaded at first use: a run that is only evaluated may never need it.

        Args:
            load: Reads or computes the table. It gets a function that shows a line to the user, or None.
        """
        guide = cls.__new__(cls)
        GuideSource.__init__(guide)
        guide._table, guide._load = None, load
        return guide

    def open(self, notify: Notify | None = None) -> None:
        """Load the table now if it is deferred."""
        if self._table is None:
            assert self._load is not None
            self._table = self._load(notify).vectors()

    @property
    def num_samples(self) -> int:
        """The number of rows."""
        return len(self.vectors())

    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """Return the vectors (B, G) of these rows, with length 1, on the device of `rows`."""
        table = self.vectors()
        check_ids(rows, len(table))
        return normalise(table[rows.to(table.device)].to(rows.device))

    def vectors(self) -> Tensor:
        """Return the whole table (n, G), not normalised, for `DatasetNeighbours.fit`."""
        self.open()
        assert self._table is not None
        return self._table

    def principal(self, dim: int) -> TableGuide:
        """Return a table of the vectors' first `dim` principal components, (n, dim).

        1. The mean vector is subtracted: features after a ReLU share a large mean, which makes all samples similar.
        2. The vectors are projected on the `dim` directions of largest variance; the other directions are mostly noise.

        A guide made so finds more of the false negatives, and its products cost dim / G of the original ones. Rows of
        zeros (samples without a vector) stay zero and do not count.

        Args:
            dim: The number of components, at most G and n - 1.

        Raises:
            ValueError: if dim is out of that range.

        Example:
            >>> TableGuide(torch.eye(3)).principal(2).vectors().shape
            torch.Size([3, 2])
        """
        table = self.vectors()
        most = min(table.shape[1], len(table) - 1)
        if whole("dim", dim) < 1 or dim > most:
            size = f"{len(table):,} vectors of {table.shape[1]} numbers"
            raise ValueError(f"a guide's dim must be in 1..{most}, got {dim}: it is the number of components of {size}")
        blocks = table.split(BLOCK)  # a table that is mapped into memory is never copied as a whole
        count = sum(int(block.any(1).sum()) for block in blocks)
        mean = sum(block.double().sum(0) for block in blocks) / max(count, 1)

        def centred(block: Tensor) -> Tensor:
            return torch.where(block.any(1, keepdim=True), block.double() - mean, 0.0)

        scatter = sum(part.T @ part for part in map(centred, blocks))
        directions = torch.linalg.eigh(scatter).eigenvectors[:, -dim:]
        return TableGuide(torch.cat([(centred(block) @ directions).float() for block in blocks]))


def _map_table(path: Path, name: str | None) -> Tensor:
    if not path.is_file():
        raise ValueError(f"the guide's table {path} does not exist: give a .npy or .safetensors file")
    if path.suffix == ".npy":
        try:  # copy-on-write, because torch needs writable memory; nothing is written
            return torch.from_numpy(np.load(path, mmap_mode="c"))
        except (ValueError, OSError, EOFError, TypeError) as error:
            raise ValueError(f"the guide's table {path} cannot be read as a .npy array of numbers") from error
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if name is None and len(names) != 1:
                raise ValueError(f"{path} holds {', '.join(names) or 'no tensor'}: choose one with name=")
            if name is not None and name not in names:
                raise ValueError(f"{path} holds no {name}: it holds {', '.join(names)}")
            tensor: Tensor = file.get_tensor(name or names[0])
            return tensor
    raise ValueError(f"a guide's table is a .npy or .safetensors file, got {path}")
