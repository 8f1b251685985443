"""What several ranks hand to one loss: ids that differ between the samples of all ranks, all in training."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.distributed import expect_unequal, gather, world_size

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WHERE = "ids must be dataset indices, which differ from rank to rank, not positions in the batch"


def check_shares(
    first: Tensor,
    second: Tensor,
    ids: Tensor,
    candidates: Tensor | None = None,
    candidate_ids: Tensor | None = None,
    gathered: bool | None = None,
    given: int = -1,
    learning: bool = True,
) -> bool:
    """Refuse what the ranks give if it does not match; one small collective, and none on a single rank.

    Ranks may have batches of different lengths, such as the last of an epoch.

    Args:
        first: (b, D) embeddings of this rank's samples.
        second: (b, D) of the same samples.
        ids: (b,) identities.
        candidates: (c, D) from elsewhere, if there are any.
        candidate_ids: (c,) theirs.
        gathered: Whether every rank gives the same candidates; None finds out.
        given: How many given negatives this rank has.
        learning: Whether this rank trains: in `training` mode, with gradients.

    Returns:
        Whether every rank gives the same candidates, so that there is nothing to join.

    Raises:
        ValueError: if some ranks train and others do not, if some have candidates and others none, if candidates of
            the same ids differ, or if every rank counts its samples from 0.
    """
    if world_size() == 1:
        return True
    given = given if candidates is None else len(candidates)
    lengths = torch.tensor([learning, len(first), given], device=first.device)
    counted = (ids == torch.arange(len(ids), device=ids.device)).all() & (len(ids) > 1)
    ours = [counted.long(), _fingerprint(first) + 3 * _fingerprint(second)]
    if candidates is not None and candidate_ids is not None:
        ours += [_fingerprint(candidate_ids), _fingerprint(candidates)]
    ours += [torch.zeros_like(ours[0])] * (4 - len(ours))
    ranks = gather(torch.cat((lengths, torch.stack(ours)))[None]).tolist()
    train, samples, numbers, from_zero, views, key_ids, keys = (set(column) for column in zip(*ranks, strict=True))
    if len(train) > 1:
        raise ValueError(
            f"rank {[rank[0] for rank in ranks].index(0)} calls the loss in eval() or without gradients while others "
            "train, and tables are written by all ranks: call train() or eval() on every rank"
        )
    expect_unequal(len(samples) > 1 or len(numbers) > 1)
    if from_zero == {1} and len(views) > 1:
        raise ValueError(f"every rank gives the ids 0..{len(ids) - 1} for other samples: {_WHERE}")
    if gathered is None:
        gathered = len(numbers) == len(key_ids) == 1
        if gathered and len(keys) > 1:
            raise ValueError(
                f"the ranks give candidates of the same ids that are not the same: {_WHERE}; "
                "gathered=False joins other views of the same samples"
            )
    if min(numbers) <= 0 < max(numbers):
        counts = " and ".join(str(max(rank[2], 0)) for rank in ranks)
        raise ValueError(f"the ranks give {counts} candidates: every rank must give some, or none of them")
    return gathered


def _fingerprint(numbers: Tensor) -> Tensor:
    """A whole number that is the same for equal tensors on every machine: the sum of their bits, by place."""
    bits = numbers.detach().contiguous().view(_BITS[numbers.element_size()])
    rows = bits.sum(tuple(range(1, bits.dim())), dtype=torch.int64) if bits.dim() > 1 else bits.long()
    return (rows * torch.arange(1, len(rows) + 1, device=rows.device)).sum()
