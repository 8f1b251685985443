"""`HistoryGuide`: the mean of the embeddings that a sample had earlier in training."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from antipodes.arguments import check_numbers, check_vectors, checked
from antipodes.distributed import gather
from antipodes.guides.guide import GuideSource
from antipodes.pairs import normalise
from antipodes.state import SampleTable


class HistoryGuide(GuideSource):
    """A running mean of each sample's embeddings, which varies less than the embedding of a single view.

    1. `update(rows, z1, z2)` normalises the mean of the views' embeddings of each sample.
    2. The stored vector becomes momentum * stored + (1 - momentum) * new; the first update stores the new vector.
    3. `guide(rows)` returns the stored vectors with length 1.

    A sample without an update has the zero vector, which has similarity 0 to every vector.

    Args:
        num_samples: Size of the dataset.
        dim: Dimension of the embeddings.
        momentum: Share of the stored mean that an update keeps, in [0, 1).
        folder: Keep the table in a memory-mapped file in this folder, for tables larger than the memory.
        sharded: Of several ranks, hold a share of the rows on each, as `SampleTable` does.

    Example:
        >>> guide = HistoryGuide(num_samples=3, dim=2)
        >>> guide.update(torch.tensor([1]), torch.tensor([[0.0, 2.0]]))
        >>> guide(torch.tensor([0, 1]))
        tensor([[0., 0.],
                [0., 1.]])
    """

    changes: ClassVar[bool] = True

    @checked
    def __init__(
        self, num_samples: int, dim: int, momentum: float = 0.9, folder: str | None = None, sharded: bool = False
    ) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}: with 1 the history would never change")
        self.momentum = momentum
        self.table = SampleTable(num_samples, (dim,), folder=folder, sharded=sharded)

    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """Return the mean directions (B, dim) of these rows."""
        return normalise(self.table.read(rows))

    @torch.no_grad()
    def update(self, rows: Tensor, *views: Tensor) -> None:
        """Mix the embeddings of a batch into the table, gathered from all ranks. In `eval()` the table stays as it is.

        Args:
            rows: (B,) rows of this rank's samples.
            views: One or several tensors (B, dim) of embeddings, of any length. Rows with NaN or infinite numbers are
                skipped.
        """
        if not self.training:
            return
        for view in views:
            check_vectors("views", view, self.table.rows.shape[1])
            check_numbers("rows", rows, len(view))
        if not views:
            raise ValueError("views are missing: give the embeddings (B, dim) of at least one view")
        mean = normalise(torch.stack([normalise(view.detach()) for view in views]).mean(0))
        rows, mean = gather(rows), gather(mean.to(self.table.rows.dtype))
        finite = mean.isfinite().all(1)
        rows, mean = rows[finite], mean[finite]
        samples, owner = rows.unique(return_inverse=True)
        total = mean.new_zeros(len(samples), mean.shape[1]).index_add_(0, owner, mean)
        old, new = self.table.read(samples), normalise(total)
        fresh = ~old.any(1, keepdim=True)
        mixed = torch.where(fresh, new, self.momentum * old + (1 - self.momentum) * new)
        self.table.write_gathered(samples, mixed, distinct=True)

    def vectors(self) -> Tensor:
        """Return the whole table (n, dim), for `DatasetNeighbours.fit`."""
        return self.table.whole()
