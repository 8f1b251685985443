"""Whether the embeddings have collapsed: the mean similarity of candidates, found without comparing all pairs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from antipodes.distributed import gather
from antipodes.pairs import Pairs

NARROW = 0.5  # mean similarity of candidates above which their order says little

COLLAPSED = (
    f"the embeddings have nearly collapsed: the candidates' mean similarity exceeds {NARROW}, so their order is mostly "
    "noise; end the head centred (--head.centred true), or let the ring wait (anneal='collapse')"
)


@torch.no_grad()
def negative_similarity(pairs: Pairs, over_ranks: bool = False) -> Tensor:
    """The mean similarity of anchors to candidates of other samples, a scalar; NaN where there are none.

    The sum over all pairs is the product of two sums, (sum_i a_i) . (sum_k c_k). The few pairs of the same sample are
    subtracted one by one, and empty slots never enter.

    Args:
        pairs: Anchors and candidates, normalised.
        over_ranks: Whether to take the mean over the anchors of all ranks; all must call then.

    Example:
        >>> negative_similarity(Pairs(torch.eye(3), torch.arange(3), torch.ones(3)))
        tensor(0.)
    """
    total, count = _total(pairs)
    if over_ranks:
        total, count = gather(torch.stack((total, count))[None]).sum(0)
    return torch.where(count > 0, total / count, torch.nan)


def later(pairs: Pairs) -> Callable[[], Tensor]:
    """The mean similarity for whoever asks for it after the step, without holding on to the graph.

    What belongs to this step is looked at when somebody asks. Candidates without gradient may stand in a queue or bank,
    which will have changed by then: their sums are taken now.
    """
    keys = pairs.keys()[0]
    if pairs.candidates is None or keys.requires_grad:
        seen = Pairs(pairs.anchors.detach(), pairs.anchor_ids, pairs.positives.detach())
        if pairs.candidates is not None:
            seen = Pairs(seen.anchors, seen.anchor_ids, seen.positives, keys.detach(), pairs.candidate_ids)
        return lambda: negative_similarity(seen)
    now = negative_similarity(pairs)
    return lambda: now


def _total(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The sum of the similarities of pairs of different samples, and how many there are."""
    keys, same = pairs.keys()[0], pairs.same_sample
    keys = keys.to(pairs.anchors.dtype)
    rows, columns = same.pairs()
    filled = same.filled.to(keys.dtype)
    total = pairs.anchors.sum(0) @ (filled @ keys)
    of_same_sample = (pairs.anchors[rows] * keys[columns]).sum()
    return total - of_same_sample, len(pairs.anchors) * filled.sum() - len(rows)
