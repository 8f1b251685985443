"""The batch as its own source of negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.distributed import gather, world_size
from antipodes.pairs import Pairs


def batch_pairs(first: Tensor, second: Tensor, ids: Tensor) -> Pairs:
    """Compare both views of every sample with all views of the global batch.

    Args:
        first: (b, D) L2-normalised embeddings of one view, this rank's share.
        second: (b, D) of the other view.
        ids: (b,) dataset indices.

    Returns:
        Pairs with 2b anchors (first views, then second views); candidates are the views of all ranks.
    """
    anchors = torch.cat((first, second))
    anchor_ids = torch.cat((ids, ids))
    positives = (first * second).sum(1).repeat(2)
    teachers = torch.cat((second.detach(), first.detach()))
    if world_size() == 1:
        return Pairs(anchors, anchor_ids, positives, teachers=teachers)
    # (b, 2, D) travels once; the global order is that of one rank with the whole batch: first views, then second
    views = gather(torch.stack((first, second), dim=1))
    candidates = torch.cat((views[:, 0], views[:, 1]))
    return Pairs(anchors, anchor_ids, positives, candidates, gather(ids).repeat(2), teachers)
