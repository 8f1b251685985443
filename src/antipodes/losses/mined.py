"""Candidates that a caller gave as hard negatives and that their ids leave out: they are counted for a warning.

A candidate of the anchor's own id never counts, and neither does one of the id -1. For a queue or bank that is right:
such a candidate is a stale copy of the anchor's sample, or an empty slot. Whoever mines a hard negative for every query
and gives it the query's id loses it in the same way. The two are told apart by what a queue never looks like: mined
negatives come in blocks of B whose ids are those of the batch, in its order, and those of the id -1 come behind the
positives of the batch and are no zero vectors, as the empty slots of `Queue` are.
"""

from __future__ import annotations

from torch import Tensor


def count_skipped(positives: Tensor, ids: Tensor, candidates: Tensor, candidate_ids: Tensor) -> int:
    """How many candidates look like mined negatives and count for nobody they were mined for; it reads from the device.

    Args:
        positives: (B, D) the second views, as they were given.
        ids: (B,) identities of the samples.
        candidates: (C, D) as they were given.
        candidate_ids: (C,) their identities.
    """
    count, skipped = len(ids), 0
    for start in range(0, len(candidate_ids) - count + 1, count):
        block = slice(start, start + count)
        if not bool((candidate_ids[block] == ids).all()):
            if start == 0:
                break  # a queue or bank: its first ids are not those of the batch
        elif not bool((candidates[block] == positives).all()):
            skipped += count
    else:
        behind = slice(count, None)
        skipped += int(((candidate_ids[behind] < 0) & candidates[behind].detach().any(1)).sum())
    return skipped
