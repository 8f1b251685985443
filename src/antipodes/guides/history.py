"""`HistoryGuide`: what a sample looked like at its earlier visits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antipodes.arguments import check_numbers, check_vectors, checked
from antipodes.distributed import gather
from antipodes.guides.guide import GuideSource
from antipodes.pairs import normalise
from antipodes.state import SampleTable


class HistoryGuide(GuideSource):
    """A running mean over visits of every sample's embedding: steadier than any one view.

    A sample that was never visited has the zero vector, which is similar to nothing.

    Args:
        num_samples: Size of the dataset.
        dim: Dimension of the embeddings.
        momentum: Share of the old mean that stays at a visit.
        folder: Keep the table in a memory-mapped file in this folder, for datasets whose state exceeds the memory.

    Example:
        >>> guide = HistoryGuide(num_samples=3, dim=2)
        >>> guide.update(torch.tensor([1]), torch.tensor([[0.0, 2.0]]))
        >>> guide(torch.tensor([0, 1]))
        tensor([[0., 0.],
                [0., 1.]])
    """

    @checked
    def __init__(self, num_samples: int, dim: int, momentum: float = 0.9, folder: str | None = None) -> None:
        super().__init__()
        if not 0 <= momentum < 1:
            raise ValueError(f"the history's momentum must be in [0, 1), got {momentum}: 1 would never learn anything")
        self.momentum = momentum
        self.table = SampleTable(num_samples, (dim,), folder=folder)

    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """The mean directions (B, dim) of these rows."""
        return normalise(self.table.read(rows))

    @torch.no_grad()
    def update(self, rows: Tensor, *views: Tensor) -> None:
        """Take in the embeddings (B, dim) of one or several views of these rows, from all ranks; not in `eval()`.

        Args:
            rows: (B,) of this rank.
            views: Embeddings of any length; the mean direction of the views is one visit. A visit with numbers that are
                not finite does not count.
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
        """The whole table (n, dim), for `Neighbours.fit`."""
        return self.table.rows
