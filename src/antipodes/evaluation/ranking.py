"""Retrieval between two sets of vectors, and how vectors lie on the sphere."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.pairs import normalise

BLOCK_ELEMENTS = 2**22


def first_ranks(queries: Tensor, keys: Tensor, query_groups: Tensor, key_groups: Tensor) -> Tensor:
    """The rank of every query's most similar right key, (n,) int64: 0 if nothing else is more similar.

    A key is right if it is of the query's group, so with several captions an image any of them counts. A wrong key that
    ties with the best right one comes before it: what cannot be told apart is no find.

    Args:
        queries: (n, D); need not be normalised.
        keys: (m, D).
        query_groups: (n,) int64.
        key_groups: (m,) int64; every query's group has a key.

    Raises:
        ValueError: if a query has no right key at all.
    """
    queries, keys = normalise(queries), normalise(keys)
    alone = ~torch.isin(query_groups, key_groups)
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} of {len(queries)} queries have nothing to find, first number {int(alone.nonzero()[0])}"
        )
    ranks = []
    rows = max(1, BLOCK_ELEMENTS // len(keys))
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        similarity = queries[part] @ keys.T
        right = query_groups[part, None] == key_groups
        best = similarity.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        ranks.append(((similarity >= best) & ~right).sum(1))
    return torch.cat(ranks)


def recalls(ranks: Tensor, cutoffs: Sequence[int] = (1, 5, 10)) -> dict[int, float]:
    """The share of ranks (n,) below each cutoff, in [0, 1].

    Example:
        >>> recalls(torch.tensor([0, 3, 20, 0]), (1, 5))
        {1: 0.5, 5: 0.75}
    """
    return {cutoff: float((ranks < cutoff).double().mean()) for cutoff in cutoffs}


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
