"""How good embeddings are when there are no labels to ask: pure functions of vectors.

Alignment and uniformity are those of Wang and Isola (2020), the effective rank that of Roy and Vetterli (2007).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.audit.neighbours import nearest_of

_PAIRS = 2048  # samples of which all pairs are taken for uniformity


def two_view_retrieval(first: Tensor, second: Tensor, k: int = 1) -> float:
    """The share, in [0, 1], of samples whose second view is among the k nearest second views of their first view.

    Args:
        first: (n, F) vectors of one view of every sample.
        second: (n, F) vectors of another.
        k: how many may be looked at.

    Example:
        >>> views = torch.eye(3)
        >>> two_view_retrieval(views, views[[0, 2, 1]])
        0.3333333432674408
    """
    _check(first, second)
    found = nearest_of(first, second, min(k, len(second))).rows
    return float((found == torch.arange(len(first))[:, None]).any(1).float().mean())


def alignment(first: Tensor, second: Tensor) -> float:
    """The mean squared distance of two views on the sphere: 0 is best, 2 is that of strangers.

    Example:
        >>> alignment(torch.eye(2), torch.eye(2).flip(0))
        2.0
    """
    _check(first, second)
    return float((normalize(first.float()) - normalize(second.float())).square().sum(1).mean())


def uniformity(vectors: Tensor, seed: int = 0) -> float:
    """The logarithm of the mean of exp(-2 d^2) over pairs on the sphere: lower is more evenly spread, 0 is one point.

    Of more than 2,048 vectors a random 2,048 are taken.

    Example:
        >>> uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        -8.0
    """
    if len(vectors) < 2:
        raise ValueError("uniformity needs at least two vectors")
    if len(vectors) > _PAIRS:
        chosen = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:_PAIRS]
        vectors = vectors[chosen]
    unit = normalize(vectors.double())
    squared = (2 - 2 * unit @ unit.T).clamp(min=0)
    above = squared[torch.triu_indices(len(unit), len(unit), 1).unbind()]
    return float(torch.logsumexp(-2 * above, 0)) - math.log(len(above))


def effective_rank(vectors: Tensor) -> float:
    """How many directions the centred vectors (n, F) really use: exp of the entropy of their singular values.

    Example:
        >>> round(effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])), 3)
        2.0
    """
    unit = normalize(vectors.double())
    values = torch.linalg.svdvals(unit - unit.mean(0))
    share = values / values.sum().clamp(min=1e-300)
    share = share[share > 0]
    return float(torch.exp(-(share * share.log()).sum()))


def duplicate_recall(vectors: Tensor, groups: Tensor, k: int = 5) -> float:
    """The share, in [0, 1], of samples in a group that have another of their group among their k nearest; NaN if none.

    Args:
        vectors: (n, F).
        groups: (n,) int64, negative = alone.
        k: how many neighbours are looked at.
    """
    members = (groups >= 0).nonzero().flatten()
    if len(members) == 0:
        return float("nan")
    found = nearest_of(vectors[members], vectors, k, own_rows=members).rows
    return float((groups[found] == groups[members][:, None]).any(1).float().mean())


def _check(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or first.ndim != 2 or len(first) == 0:
        raise ValueError(f"two views must have one shape (n, F), got {tuple(first.shape)} and {tuple(second.shape)}")
