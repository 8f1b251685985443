"""The batch as its own source of negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.distributed import gather, world_size
from antipodes.functional.normalise import paired_similarity
from antipodes.functional.same_sample import SameSample, few_pairs
from antipodes.pairs import Guide, PairFacts, Pairs


def batch_pairs(
    views: Tensor,
    ids: Tensor,
    rows: Tensor | None = None,
    guide: tuple[Tensor, Tensor] | None = None,
    log_weights: Tensor | None = None,
    teachers: bool = True,
    distinct: bool = False,
    facts: PairFacts | None = None,
) -> Pairs:
    """Compare both views of every sample with all views of the global batch.

    Args:
        views: (2b, D) L2-normalised embeddings, this rank's share: those of one view, then those of the other.
        ids: (b,) identities of the samples.
        rows: (b,) their table rows; None takes the ids.
        guide: A guide's normalised vectors (b, G) of both views.
        log_weights: (b,) by which the logits of a sample's views are raised, as candidates and as positives.
        teachers: Whether the embeddings of the positives will be needed.
        distinct: Whether no two ids are known to be equal.
        facts: What is known about the batch.

    Returns:
        Pairs with the 2b views as anchors; candidates are the views of all ranks.
    """
    anchor_ids = torch.cat((ids, ids))
    anchor_rows = None if rows is None else torch.cat((rows, rows))
    positives = paired_similarity(views)
    others = views.detach().roll(len(ids), 0) if teachers else None
    seen = None if guide is None else view_guides(guide)
    weights = None if log_weights is None else log_weights.repeat(2)
    if world_size() == 1:
        known = PairFacts() if facts is None else facts
        known = PairFacts(known.extent, known.row_span, _of_batch(anchor_ids, distinct))
        return Pairs(
            views, anchor_ids, positives, teachers=others, anchor_rows=anchor_rows, guide=seen,
            log_weights=weights, positive_log_weights=weights, views=2, facts=known,
        )  # fmt: skip
    if guide is not None and seen is not None:
        seen = Guide(seen.anchors, seen.positives, _gather_views(*guide))
    pairs = Pairs(
        views,
        anchor_ids,
        positives,
        _gather_views(*views.chunk(2)),
        gather(ids).repeat(2),
        others,
        anchor_rows=anchor_rows,
        candidate_rows=None if rows is None else gather(rows).repeat(2),
        guide=seen,
        log_weights=None if log_weights is None else gather(log_weights).repeat(2),
        positive_log_weights=weights,
        views=2,
    )
    return pairs.measured()[0]


def unlinked_batch(
    views: Tensor,
    ids: Tensor,
    distinct: bool = False,
    rows: Tensor | None = None,
    guide: tuple[Tensor, Tensor] | None = None,
    facts: PairFacts | None = None,
) -> Pairs:
    """The pairs of a batch without their gradient; where there are few, with all similarities.

    Args:
        views: (2b, D), on the only rank.
        ids: (b,) as in `batch_pairs`.
        distinct: Whether no two of them are known to be equal.
        rows: As in `batch_pairs`.
        guide: As in `batch_pairs`.
        facts: As in `batch_pairs`.
    """
    half, product = ids.shape[0], None
    if few_pairs(2 * half, 2 * half):
        product = torch.mm(views, views.T)
        positive = product.diagonal(half)
    else:
        positive = torch.linalg.vecdot(views[:half], views[half:])
    anchor_ids = torch.cat((ids, ids))
    known = PairFacts() if facts is None else facts
    return Pairs(
        views,
        anchor_ids,
        torch.cat((positive, positive)),
        anchor_rows=None if rows is None else torch.cat((rows, rows)),
        guide=None if guide is None else view_guides(guide),
        views=2,
        facts=PairFacts(known.extent, known.row_span, _of_batch(anchor_ids, distinct), product),
    )


def single_view_pairs(
    views: Tensor,
    ids: Tensor,
    rows: Tensor | None = None,
    log_weights: Tensor | None = None,
    facts: PairFacts | None = None,
) -> Pairs:
    """Compare one view of every sample with those of all other samples of the global batch; there are no positives.

    Args:
        views: (b, D) embeddings, this rank's share.
        ids: (b,) identities of the samples.
        rows: (b,) their table rows; None takes the ids.
        log_weights: (b,) by which the logits of the samples are raised.
        facts: What is known about the batch.
    """
    nothing = torch.zeros_like(views[:, 0])
    if world_size() == 1:
        return Pairs(
            views, ids, nothing, anchor_rows=rows, log_weights=log_weights, has_positive=False,
            facts=PairFacts() if facts is None else facts,
        ).measured()[0]  # fmt: skip
    return Pairs(
        views,
        ids,
        nothing,
        gather(views),
        gather(ids),
        anchor_rows=rows,
        candidate_rows=None if rows is None else gather(rows),
        log_weights=None if log_weights is None else gather(log_weights),
        has_positive=False,
    ).measured()[0]


def _of_batch(anchor_ids: Tensor, distinct: bool) -> SameSample:
    """Which views of a batch are of one sample, by their ids (2b,)."""
    return SameSample(anchor_ids, views=2 if distinct and anchor_ids.shape[0] > 2 else 0)


def view_guides(guide: tuple[Tensor, Tensor]) -> Guide:
    """A batch in the space of a guide, from its vectors (b, G) of both views."""
    return Guide(torch.cat(guide), (guide[0] * guide[1]).sum(1).repeat(2))


def _gather_views(first: Tensor, second: Tensor) -> Tensor:
    """The views of all ranks in the order of one rank with the whole batch: first views, then second.

    (b, 2, D) travels once.
    """
    views = gather(torch.stack((first, second), dim=1))
    return torch.cat((views[:, 0], views[:, 1]))
