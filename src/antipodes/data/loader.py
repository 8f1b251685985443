"""Batches of (rows, inputs by name): shuffled for training, in order for evaluation.

The order of an epoch is a function of the seed and the epoch alone. So every rank knows the whole order without
talking, a run continues in the middle of an epoch by starting at batch k, and one rank sees what two share.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from antipodes.data.columns import Raw
from antipodes.data.dataset import Samples, require_trainable
from antipodes.seeding import generator

Loaded = tuple[Tensor, dict[str, Raw]]
"""Rows (b,) and their raw inputs by name."""


class BatchComposition:
    """Turns a random order into one of groups of similar samples, so that these share a batch.

    What a loss pulls, or leaves out, has to be in the batch. Of 10,000 samples a batch of 256 holds a fortieth of those
    nearest to an anchor, and of 100 classes two or three of its own. So an epoch's order is made of small groups:

    1. Samples take their turns at random. One that has no group yet starts one, and takes along samples that have none
       out of its nearest, at random.
    2. The groups are shuffled: those that came last are small, as most were taken.

    Every sample still comes once an epoch, and the order is a function of its seed.

    Args:
        neighbours: (n, k) rows of every sample's nearest others, -1 for none.
        size: Largest number of samples in a group.

    Example:
        >>> composition = BatchComposition(torch.tensor([[1], [0], [3], [2]]), size=2)
        >>> composition(torch.tensor([0, 2, 1, 3]), torch.Generator().manual_seed(0)).tolist()
        [2, 3, 0, 1]
    """

    def __init__(self, neighbours: Tensor, size: int) -> None:
        self.neighbours, self.size = neighbours.cpu().long(), size

    def __call__(self, rows: Tensor, source: torch.Generator) -> Tensor:
        """The same rows in groups.

        Args:
            rows: (n,) all of them, in the order of their turns.
            source: What is random follows from it.
        """
        shuffled = torch.rand(self.neighbours.shape, generator=source).argsort(1)
        nearest = self.neighbours.gather(1, shuffled).tolist()
        taken = bytearray(len(rows) + 1)
        taken[-1] = True  # -1: no neighbour
        composed: list[int] = []
        groups: list[int] = []
        for number, row in enumerate(rows.tolist()):
            if taken[row]:
                continue
            taken[row] = True
            members = [row]
            for other in nearest[row]:
                if len(members) == self.size:
                    break
                if not taken[other]:
                    taken[other] = True
                    members.append(other)
            composed += members
            groups += [number] * len(members)
        places = torch.randperm(len(rows), generator=source)[torch.tensor(groups)]
        return torch.tensor(composed)[places.argsort(stable=True)]


class Loader:
    """Shuffled training batches, reproducible, resumable and sharded over ranks.

    Args:
        dataset: what to draw from.
        batch_size: size of the global batch, over all ranks. An incomplete last batch is dropped.
        seed: with the epoch number, what the order follows from.
        rank: which slice of every global batch to yield.
        world_size: number of slices; divides ``batch_size``.
        workers: processes that decode when the dataset is not in memory.

    Attributes:
        composition: brings similar samples into one batch; None leaves the order to chance.
        unread: names of inputs that are not used because their features are known: they are not fetched.

    Raises:
        ValueError: if the dataset has less than two samples or less than a batch, or the batch cannot be shared out.

    Example:
        >>> from antipodes.data import Shapes
        >>> loader = Loader(Shapes(count=100), batch_size=32, seed=0)
        >>> [inputs["image"].shape[0] for rows, inputs in loader.epoch(0)]
        [32, 32, 32]
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        if batch_size < 1 or batch_size % world_size:
            raise ValueError(f"batch_size must be a positive multiple of the {world_size} rank(s), got {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
        require_trainable(dataset, batch_size)
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.rank, self.world_size, self.workers = rank, world_size, workers
        self.composition: BatchComposition | None = None
        self.unread: frozenset[str] = frozenset()

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.dataset) // self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Return the rows of all global batches of an epoch, (batches, batch_size)."""
        rows = torch.randperm(len(self.dataset), generator=generator("order", self.seed, epoch))
        if self.composition is not None:
            rows = self.composition(rows, generator("batch composition", self.seed, epoch))
        return rows[: len(self) * self.batch_size].view(-1, self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Loaded]:
        """Yield this rank's (rows, inputs) of every batch of the epoch from batch ``start`` on.

        Raises:
            ValueError: if ``start`` is outside 0..len(self).
        """
        if not 0 <= start <= len(self):
            raise ValueError(f"start must be in 0..{len(self)}, the batches of an epoch, got {start}")
        share = self.order(epoch)[start:].chunk(self.world_size, dim=1)[self.rank]
        return _stream(self.dataset, share.unbind(), self.workers, (self.seed, epoch), self.unread)


def batches(dataset: Samples, batch_size: int, workers: int = 0) -> Iterator[Loaded]:
    """Yield (rows, inputs) of the whole dataset in order, with the last short batch, for evaluation."""
    return _stream(dataset, torch.split(torch.arange(len(dataset)), batch_size), workers, None)


def _stream(
    dataset: Samples,
    row_batches: Sequence[Tensor],
    workers: int,
    draw: tuple[int, ...] | None,
    unread: frozenset[str] = frozenset(),
) -> Iterator[Loaded]:
    loaded = _Batches(dataset, row_batches, draw, unread)
    if dataset.in_memory or not workers:
        return (loaded[i] for i in range(len(loaded)))
    # A generator of its own, as DataLoader would otherwise draw its workers' seed from the global one.
    return iter(
        DataLoader(
            loaded,
            batch_size=None,
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),
        )
    )


class _Batches(Dataset[Loaded]):
    """One item per batch of rows, so that a worker decodes a whole batch."""

    def __init__(
        self, dataset: Samples, row_batches: Sequence[Tensor], draw: tuple[int, ...] | None, unread: frozenset[str]
    ) -> None:
        self.dataset, self.row_batches, self.draw, self.unread = dataset, row_batches, draw, unread

    def __len__(self) -> int:
        return len(self.row_batches)

    def __getitem__(self, i: int) -> Loaded:
        rows = self.row_batches[i]
        return rows, self.dataset.inputs_without(self.unread, rows, self.draw)
