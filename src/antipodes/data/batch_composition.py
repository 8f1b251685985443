"""`Company`: an order of samples in which those that are alike come together, so that they share a batch.

What a loss pulls, or leaves out, has to be in the batch. Of 10,000 samples a batch of 256 holds a fortieth of those
nearest to an anchor, and of 100 classes two or three of its own. So an epoch's order is made of small groups:

1. Samples take their turns at random. One that has no group yet starts one, and takes along samples that have none out
   of its nearest, at random.
2. The groups are shuffled: those that came last are small, as most were taken.

Every sample still comes once an epoch, and the order is a function of its seed.
"""

from __future__ import annotations

import torch
from torch import Tensor


class BatchComposition:
    """Turns a random order into one of groups.

    Args:
        neighbours: (n, k) rows of every sample's nearest others, -1 for none.
        size: How many samples come together at most.

    Example:
        >>> company = Company(torch.tensor([[1], [0], [3], [2]]), size=2)
        >>> company(torch.tensor([0, 2, 1, 3]), torch.Generator().manual_seed(0)).tolist()
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
        taken[-1] = True  # who is nobody's neighbour: -1
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
