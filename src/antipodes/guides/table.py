"""`TableGuide`: precomputed vectors of any model, by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.arguments import checked, whole
from antipodes.guides.guide import GuideSource
from antipodes.pairs import normalise
from antipodes.state import check_ids

BLOCK = 2**14  # rows that are looked at together


class TableGuide(GuideSource):
    """Embeddings that some model made of the whole dataset beforehand, in the order of its rows.

    A file is mapped into memory, not read: only the rows of a batch are touched. The table is not part of checkpoints.

    Args:
        table: (n, G) floating point, or the path of a `.npy` or `.safetensors` file of it.
        name: Which tensor of a safetensors file; not needed if it holds one.

    Raises:
        ValueError: if there is no such file, or it holds something else.

    Example:
        >>> guide = TableGuide(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        >>> guide(torch.tensor([1, 0]))
        tensor([[0.0000, 1.0000],
                [0.6000, 0.8000]])
    """

    @checked
    def __init__(self, table: Tensor | str | Path, name: str | None = None) -> None:
        super().__init__()
        loaded = table if isinstance(table, Tensor) else _mapped(Path(table), name)
        if loaded.dim() != 2 or not loaded.is_floating_point() or not len(loaded):
            raise ValueError(f"a guide's table must be (n, G) floats, got {loaded.dtype} {tuple(loaded.shape)}")
        self._table = loaded.detach()  # no buffer: a checkpoint need not hold what is on disk

    @property
    def num_samples(self) -> int:
        """How many rows there are."""
        return len(self._table)

    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """The vectors (B, G) of these rows, on their device."""
        check_ids(rows, len(self._table))
        return normalise(self._table[rows.to(self._table.device)].to(rows.device))

    def vectors(self) -> Tensor:
        """The whole table (n, G) as it is, for `Neighbours.fit`."""
        return self._table

    def principal(self, dim: int) -> TableGuide:
        """The same samples along the `dim` directions in which their vectors vary most.

        Features behind a ReLU have a common part, which makes everything look alike: what tells samples apart is how
        they differ from the mean. Without it, and without the directions that hold mostly noise, a guide is right more
        often, and its products cost dim / G of what they did. Rows of zeros, of samples that it does not know, stay.

        Args:
            dim: How many directions.

        Raises:
            ValueError: if there are not that many.
        """
        most = min(self._table.shape[1], len(self._table) - 1)
        if whole("dim", dim) < 1 or dim > most:
            size = f"{len(self._table):,} vectors of {self._table.shape[1]} numbers"
            raise ValueError(f"a guide's dim must be in 1..{most}, got {dim}: it is how many directions of {size} stay")
        blocks = self._table.split(BLOCK)  # a table that is mapped into memory is never copied as a whole
        count = sum(int(block.any(1).sum()) for block in blocks)
        mean = sum(block.double().sum(0) for block in blocks) / max(count, 1)

        def centred(block: Tensor) -> Tensor:
            return torch.where(block.any(1, keepdim=True), block.double() - mean, 0.0)

        scatter = sum(part.T @ part for part in map(centred, blocks))
        directions = torch.linalg.eigh(scatter).eigenvectors[:, -dim:]
        return TableGuide(torch.cat([(centred(block) @ directions).float() for block in blocks]))


def _mapped(path: Path, name: str | None) -> Tensor:
    if not path.is_file():
        raise ValueError(f"the guide's table {path} does not exist: give a .npy or .safetensors file")
    if path.suffix == ".npy":
        try:  # copy-on-write: torch wants memory that it may write to, and nothing ever does
            return torch.from_numpy(np.load(path, mmap_mode="c"))
        except (ValueError, OSError, EOFError, TypeError) as error:
            raise ValueError(f"the guide's table {path} cannot be read as a .npy array of numbers") from error
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if name is None and len(names) != 1:
                raise ValueError(f"{path} holds {', '.join(names) or 'nothing'}: say which by name")
            if name is not None and name not in names:
                raise ValueError(f"{path} holds no {name}, but {', '.join(names)}")
            tensor: Tensor = file.get_tensor(name or names[0])
            return tensor
    raise ValueError(f"a guide's table is a .npy or .safetensors file, got {path}")
