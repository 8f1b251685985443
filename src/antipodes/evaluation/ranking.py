"""How vectors lie on the sphere, and whether two views of a sample find each other."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.pairs import normalise

BLOCK_ELEMENTS = 2**22


def duplicate_recall(first: Tensor, second: Tensor, k: int = 5) -> float:
    """The share, in [0, 1], of all 2n views that have their other view among the k nearest of all the others.

    Harder than to find the other view among second views alone: first views of other samples may lie nearer.

    Args:
        first: (n, D) one view of every sample; need not be normalised.
        second: (n, D) another.
        k: How many neighbours are looked at.

    Example:
        >>> views = torch.eye(3)
        >>> duplicate_recall(views, views, k=1)
        1.0
    """
    both = normalise(torch.cat((first, second)))
    own = torch.arange(len(both))
    other = own.roll(len(first))
    found = 0
    rows = max(1, BLOCK_ELEMENTS // len(both))
    for part in own.split(rows):
        similarity = both[part] @ both.T
        similarity.scatter_(1, part[:, None], -torch.inf)  # nobody is a neighbour of itself
        right = similarity.gather(1, other[part, None])
        found += int(((similarity >= right).sum(1) <= k).sum())
    return found / len(both)


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of two views' embeddings (n, D) of length 1 (Wang and Isola 2020); 0 is perfect."""
    return float((first - second).double().square().sum(1).mean())


def uniformity(embeddings: Tensor, most: int = 4096, t: float = 2.0) -> float:
    """Log of the mean of exp(-t d^2) over pairs of embeddings (n, D) of length 1 (Wang and Isola 2020).

    The lower, the more evenly they lie. Of more than `most` embeddings an even choice stands for all.
    """
    count = min(len(embeddings), most)
    some = embeddings[torch.arange(count) * len(embeddings) // count].double()
    return float((-t * torch.pdist(some).square()).exp().mean().log())


def effective_rank(features: Tensor) -> float:
    """The exponential of the entropy of the centred features' singular values (Roy and Vetterli 2007).

    Between 1, where all lies on a line, and the number of features.

    Example:
        >>> round(effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 6)
        2.0
    """
    centred = (features - features.mean(0)).double()
    values = torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0).sqrt()
    share = values / values.sum() if bool(values.sum() > 0) else values
    return float(torch.special.entr(share).sum().exp())
