"""Candidates that a caller gave as hard negatives and that their ids leave out: they are counted for a warning.

A candidate of the anchor's own id never counts, and neither does one of the id -1. For a queue or bank that is right:
such a candidate is a stale copy of the anchor's sample, or an empty slot. A caller who mines hard negatives for every
query and gives them the query's id loses them in the same way. The two are told apart by what a queue never looks like:

1. The candidates begin or end with the positives of the batch, under the ids of the batch: then all others were mined.
2. Or the ids of all candidates are those of the batch, in one of the two orders below: then all were mined.

Mined negatives stand in one of two orders: K blocks of B, one negative for each query in a block, or B groups of K, all
negatives of a query in a group. The empty slots of `Queue` are zero vectors and are not counted.
"""

from __future__ import annotations

from torch import Tensor


def count_skipped(positives: Tensor, ids: Tensor, candidates: Tensor, candidate_ids: Tensor) -> int:
    """Return how many candidates look like mined negatives and are ignored for the query they were mined for.

    This reads from the device.

    Args:
        positives: (B, D) the second views, as they were given.
        ids: (B,) identities of the samples.
        candidates: (C, D) as they were given.
        candidate_ids: (C,) their identities.
    """
    count = len(ids)
    if len(candidate_ids) < count:
        return 0
    first, last = slice(0, count), slice(len(candidate_ids) - count, None)
    if not _are_positives(first, positives, ids, candidates, candidate_ids) and _are_positives(
        last, positives, ids, candidates, candidate_ids
    ):
        candidates, candidate_ids = candidates.roll(count, 0), candidate_ids.roll(count, 0)
    has_positives = _are_positives(first, positives, ids, candidates, candidate_ids)
    mined, mined_ids = (each[count:] if has_positives else each for each in (candidates, candidate_ids))
    several, rest = divmod(len(mined_ids), count)  # K, where every query has as many
    own = 0
    if not rest:
        in_blocks = mined_ids.view(several, count) == ids
        in_groups = mined_ids.view(count, several) == ids[:, None]
        own = max(int(in_blocks.sum()), int(in_groups.sum()))
    if has_positives:
        return own + int(((mined_ids < 0) & mined.detach().any(1)).sum())
    return own if own == len(mined_ids) else 0


def _are_positives(part: slice, positives: Tensor, ids: Tensor, candidates: Tensor, candidate_ids: Tensor) -> bool:
    """Return True if this part of the candidates is the second views of the batch, in its order."""
    return bool((candidate_ids[part] == ids).all()) and bool((candidates[part] == positives).all())
