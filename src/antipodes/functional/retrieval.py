"""Retrieval between two sets of vectors: the rank of the first right answer, and recall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor

from antipodes.functional.normalise import normalise

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
    _refuse_alone(~torch.isin(query_groups, key_groups))
    return _ranks(queries, keys, lambda part: query_groups[part, None] == key_groups)


def first_ranks_of_pairs(queries: Tensor, keys: Tensor, relevant: Tensor) -> Tensor:
    """The rank of every query's most similar right key, (n,) int64, as `first_ranks`, where pairs say what is right.

    Args:
        queries: (n, D); need not be normalised.
        keys: (m, D).
        relevant: (p, 2) int64, the numbers of a query and of a key that is right for it; every query is in a pair.

    Raises:
        ValueError: if a query has no right key at all.

    Example:
        >>> first_ranks_of_pairs(torch.eye(2), torch.eye(2), torch.tensor([[0, 1], [1, 0], [1, 1]]))
        tensor([1, 0])
    """
    alone = torch.ones(len(queries), dtype=torch.bool)
    alone[relevant[:, 0]] = False
    _refuse_alone(alone)
    relevant = relevant[relevant[:, 0].argsort()]
    query, key = relevant[:, 0].contiguous(), relevant[:, 1]

    def right(part: slice) -> Tensor:
        start, stop, _ = part.indices(len(queries))
        low, high = torch.searchsorted(query, torch.tensor([start, stop])).tolist()
        mask = torch.zeros(stop - start, len(keys), dtype=torch.bool)
        mask[query[low:high] - start, key[low:high]] = True
        return mask

    return _ranks(queries, keys, right)


def _refuse_alone(alone: Tensor) -> None:
    """Refuse queries without a right key, (n,) bool."""
    if bool(alone.any()):
        raise ValueError(
            f"{int(alone.sum())} of {len(alone)} queries have nothing to find, first number {int(alone.nonzero()[0])}"
        )


def _ranks(queries: Tensor, keys: Tensor, right_of: Callable[[slice], Tensor]) -> Tensor:
    """Ranks (n,), block by block of queries, given which keys are right for the queries of a block."""
    queries, keys = normalise(queries), normalise(keys)
    ranks = []
    rows = max(1, BLOCK_ELEMENTS // len(keys))
    for start in range(0, len(queries), rows):
        part = slice(start, start + rows)
        similarity = queries[part] @ keys.T
        right = right_of(part)
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


def recall_both_ways(
    images: Tensor, texts: Tensor, owners: Tensor, cutoffs: Sequence[int] = (1, 5, 10)
) -> tuple[dict[int, float], dict[int, float], float]:
    """Recall of texts by images and of images by texts, by cutoff, and the mean of all of them, in percent.

    Args:
        images: (n, D); those without a text are left out as queries.
        texts: (m, D).
        owners: (m,) int64, the image of every text; of several texts any counts as found.
        cutoffs: The ranks.

    Example:
        >>> recall_both_ways(torch.eye(2), torch.eye(2), torch.tensor([0, 1]), (1,))
        ({1: 100.0}, {1: 100.0}, 100.0)
    """
    numbers = torch.arange(len(images))
    described = torch.isin(numbers, owners)
    ways = (
        recalls(first_ranks(images[described], texts, numbers[described], owners), cutoffs),
        recalls(first_ranks(texts, images, owners, numbers), cutoffs),
    )
    to_texts, to_images = ({cutoff: 100 * share for cutoff, share in way.items()} for way in ways)
    return to_texts, to_images, fmean([*to_texts.values(), *to_images.values()])
