"""A memory bank: one embedding per sample of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from antipodes.arguments import check_numbers, check_vectors, checked, number, whole
from antipodes.functional.tensors import NotFinite
from antipodes.pairs import normalise
from antipodes.seeding import generator
from antipodes.state import ByRow, SampleTable, sample_count


class MemoryBank(nn.Module):
    """The latest embedding of every sample, mixed with its past by a momentum.

    Args:
        num_samples: Size of the dataset.
        dim: Dimension of the embeddings.
        momentum: Share of the old entry that stays at a write; 0 replaces it.
        seed: Entries start as random unit vectors drawn from this seed, and draws follow from it, alike on all ranks.
        identities: (n,) which sample every row shows, where several rows show the same one; None: each its own.
        sharded: Of several ranks, hold a share of the entries on each, as `SampleTable` does.

    Example:
        >>> bank = MemoryBank(100, 8)
        >>> entries, ids = bank.draw(16)
        >>> entries.shape, ids.shape
        (torch.Size([16, 8]), torch.Size([16]))
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"samples": ByRow(holds="data")}
    draws: Tensor
    samples: Tensor | None

    @checked
    def __init__(
        self,
        num_samples: int,
        dim: int,
        momentum: float = 0.5,
        seed: int = 0,
        identities: Tensor | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        self.momentum = number("momentum", momentum, 0, below=1, why="1 would never write anything")
        self.seed = whole("seed", seed)
        num_samples, dim = sample_count(num_samples), whole("dim", dim, 1)
        self.table = SampleTable(num_samples, (dim,), sharded=sharded)
        self.table.load(normalise(torch.randn(num_samples, dim, generator=generator("bank", seed))))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))
        if identities is not None:
            check_numbers("identities", identities, num_samples)
        self.register_buffer("samples", identities)

    def read(self, rows: Tensor) -> Tensor:
        """The entries (b, D) of the given rows."""
        return self.table.read(rows)

    def write(self, rows: Tensor, embeddings: Tensor) -> None:
        """Mix normalised embeddings (b, D) into the entries of their rows, on every rank."""
        check_vectors("embeddings", embeddings, self.table.rows.shape[1])
        check_numbers("rows", rows, len(embeddings))
        if not bool(embeddings.detach().isfinite().all()):
            raise NotFinite("embeddings hold NaN or infinite numbers: an entry of the bank would keep them")
        mixed = self.momentum * self.read(rows) + (1 - self.momentum) * embeddings.detach()
        self.table.write(rows, normalise(mixed))

    def identities(self, rows: Tensor) -> Tensor:
        """Which samples the given rows show, (b,): themselves, unless the bank was told otherwise."""
        return rows if self.samples is None else self.samples[rows]

    def entries(self) -> tuple[Tensor, Tensor]:
        """The whole bank (n, D), not a copy, and its rows (n,)."""
        rows = self.table.whole()
        return rows, torch.arange(len(rows), device=rows.device)

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw `count` different entries and their rows (all when there are not more), the same on every rank.

        An entry drawn twice would tie with itself in a ranking. The draw depends on the seed and on how many were made
        before, which a checkpoint restores.
        """
        every, count = self.table.num_samples, whole("count", count, 1)
        if count >= every:
            return self.entries()
        ids = draw_distinct(every, count, self.generator()).to(self.table.rows.device)
        return self.table.read_checked(ids), ids

    def generator(self) -> torch.Generator:
        """The generator of the next draw, the same on every rank."""
        self.draws += 1
        return generator("draw", self.seed, int(self.draws) - 1)


def draw_distinct(every: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw different whole numbers below `every`, (count,), in the time of the draw where that is small."""
    if 4 * count > every:
        return torch.randperm(every, generator=generator)[:count]
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < count:  # repeated numbers are left out, and the order of the first ones is kept
        drawn = torch.cat((drawn, torch.randint(every, (count,), generator=generator)))
        _, number = drawn.unique(return_inverse=True)
        firsts = torch.full((len(drawn),), len(drawn)).scatter_reduce_(0, number, torch.arange(len(drawn)), "amin")
        drawn = drawn[firsts[firsts < len(drawn)].sort().values]
    return drawn[:count]
