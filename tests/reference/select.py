"""Row selections by loops and full sorts in float64."""

import math

from torch import Tensor


def ranking(anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor) -> list[list[int]]:
    """For every anchor the columns of its allowed candidates, the most similar first, ties by column."""
    similarities = anchors.double() @ candidates.double().T
    result = []
    for i, own in enumerate(anchor_ids.tolist()):
        allowed = [k for k, other in enumerate(candidate_ids.tolist()) if other >= 0 and other != own]
        result.append(sorted(allowed, key=lambda k: (-float(similarities[i, k]), k)))
    return result


def ring(ranked: list[list[int]], inner: float, outer: float) -> list[set[int]]:
    """The columns that Ring keeps of rankings from the top."""
    shares = inner * outer, outer
    return [set(row[slice(*(math.floor(share * len(row) + 1e-6) for share in shares))]) for row in ranked]


def top_share(ranked: list[list[int]], alpha: float) -> list[set[int]]:
    """The columns that FNC flags."""
    return [set(row[: max(1, round(alpha * len(row)))]) for row in ranked]
