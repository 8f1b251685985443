"""The other modality as the source of negatives: images against texts, queries against documents."""

from __future__ import annotations

from torch import Tensor

from antipodes.distributed import gather
from antipodes.pairs import Guide, Pairs


def cross_pairs(
    first: Tensor,
    second: Tensor,
    ids: Tensor,
    rows: Tensor | None = None,
    guide: tuple[Tensor, Tensor] | None = None,
    log_weights: Tensor | None = None,
) -> Pairs:
    """Compare every sample in one modality with all samples of the global batch in another: one direction.

    Args:
        first: (b, D) L2-normalised embeddings in the anchors' modality, this rank's share.
        second: (b, D) of the same samples in the candidates' modality; row i is the positive of anchor i.
        ids: (b,) identities: candidates of the anchor's identity, such as other captions of its image, never count.
        rows: (b,) table rows; None takes the ids.
        guide: A guide's normalised vectors (b, G) of the anchors and of the candidates, in one space.
        log_weights: (b,) by which the logits of the second modality are raised, as candidates and as positives.

    Returns:
        Pairs with b anchors; candidates are the second modality of all ranks.
    """
    seen = None if guide is None else Guide(guide[0], (guide[0] * guide[1]).sum(1), gather(guide[1]), guide[1])
    return Pairs(
        first,
        ids,
        (first * second).sum(1),
        gather(second),
        gather(ids),
        second.detach(),
        anchor_rows=rows,
        candidate_rows=None if rows is None else gather(rows),
        guide=seen,
        log_weights=None if log_weights is None else gather(log_weights),
        positive_log_weights=log_weights,
    )
