"""`OneWay`: queries find their documents, with everything else in one denominator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from torch import Tensor

from antipodes.candidates.cross import make_block
from antipodes.functional.tensors import eager_full_precision
from antipodes.losses.base import LossModule
from antipodes.losses.inputs import Ids, call_temperature
from antipodes.losses.loss import Loss
from antipodes.losses.paired import PairIds, check_pairs
from antipodes.negatives.policy import Policy
from antipodes.pairs import Block


class OneWay(LossModule):
    """Each query finds its document among those of the batch and the given negatives, in one softmax.

    In plain terms:

    1. Query i is compared with its document d_i, the positive, with the documents of the other pairs, and with the
       given negatives of all pairs; of several ranks, with those of all ranks.
    2. `also` adds further comparisons to the same denominator; the positive stays (q_i, d_i):
       `query_to_query`, q_i against the other queries; `document_to_query`, d_i against all queries, which counts the
       positive once more; `document_to_document`, d_i against documents and given negatives of other pairs;
       `positive_to_positive`, the same without given negatives.
    3. The same thing is never a negative: a document that has the anchor's document id or stands in a pair with the
       anchor's query id, and likewise a query. A given negative of the anchor's own document is ignored, and counted in
       `stats["given_ignored"]`.
    4. The policy of the loss judges each comparison by the similarity of q_i and d_i; `policy.on(...)` limits it to
       some. Its tables learn from the comparison of queries with documents alone.

    With `InfoNCE` this is the multiple negatives ranking loss, with `Sigmoid` SigLIP's, with `GlobalContrastive` one
    direction of SogCLR's. Which loss of other libraries each call equals is in docs/recipes.md.

    Args:
        loss: What the sums become, with temperature and policy.
        in_batch: Whether documents and given negatives of other pairs are negatives; False leaves every query its own
            given negatives.
        also: Further comparisons in the denominator.

    Example:
        >>> import torch
        >>> from antipodes import InfoNCE
        >>> queries, documents, hard = torch.eye(4), torch.eye(4), torch.ones(4, 2, 4)
        >>> loss_fn = OneWay(InfoNCE(0.05))
        >>> loss = loss_fn(queries, documents, hard_negatives=hard)
        >>> loss_fn.stats["kept_per_anchor"]
        11.0
    """

    def __init__(self, loss: Loss, in_batch: bool = True, also: Sequence[Block] = ()) -> None:
        super().__init__()
        del self.negatives  # that of the loss, found by __getattr__
        if not isinstance(loss, Loss):
            raise ValueError(f"OneWay needs a loss on pairs such as InfoNCE(), got {type(loss).__name__}")
        further = get_args(Block)[1:]
        if isinstance(also, str) or not set(also) <= set(further) or len(set(also)) < len(also):
            raise ValueError(f"also must be different ones of {', '.join(further)}, got {also!r}")
        if also and not in_batch:
            raise ValueError("also compares with other pairs, and in_batch=False leaves them out: give one of the two")
        self.loss, self.in_batch, self.also = loss, in_batch, tuple(also)

    @eager_full_precision
    def forward(
        self,
        queries: Tensor,
        documents: Tensor,
        ids: PairIds | None = None,
        *,
        hard_negatives: Tensor | None = None,
        hard_negative_ids: Ids | None = None,
        temperature: float | Tensor | None = None,
        log_q: Tensor | None = None,
        hard_negative_log_q: Tensor | None = None,
        gather: bool = True,
        guide: Sequence[Tensor] | None = None,
        rows: Ids | None = None,
        weights: Tensor | None = None,
        progress: float | None = None,
    ) -> Tensor:
        """The mean loss over this rank's queries.

        Args:
            queries: (B, D) embeddings; any length.
            documents: (B, D) embeddings of the documents that answer them.
            ids: (B,) one identity a pair, or (query_ids, document_ids); whole numbers or texts. None: every pair is its
                own, where no policy looks samples up.
            hard_negatives: (B, K, D) given negatives of every query.
            hard_negative_ids: (B, K) their document ids, -1 for padding. None: each is its own.
            temperature: In the place of the loss's own, for this call: a number, or a tensor of one with gradient.
            log_q: (B,) log probability with which each document is sampled, subtracted from its logits as a positive
                and as a negative (the logQ correction).
            hard_negative_log_q: (B, K) that of the given negatives.
            gather: Whether candidates come from all ranks; False keeps to this rank.
            guide: A guide's vectors of queries and documents, (B, G) each, and (B, K, G) of hard_negatives.
            rows: (B,) where the pairs stand in tables; None takes ids that are whole numbers in one space. Given
                negatives have no row.
            weights: (B,) at least 0: the loss is then a weighted mean.
            progress: Share of training done; see `Loss.forward`.

        Returns:
            The mean, or with `reduction="none"` the loss of every query, (B,).
        """
        if not self.in_batch and hard_negatives is None:
            raise ValueError("in_batch=False leaves the given negatives alone: give hard_negatives (B, K, D)")
        tau, loss = call_temperature(temperature), self.loss
        batch = check_pairs(
            loss, queries, documents, ids, rows, hard_negatives, hard_negative_ids, log_q, hard_negative_log_q,
            gather if self.in_batch else False, guide, weights,
            direct=self.in_batch and not self.also and loss.goes_direct(tau),
        )  # fmt: skip
        blocks = [make_block(batch, in_batch=self.in_batch), *(make_block(batch, block) for block in self.also)]
        if self.observer is not None:
            loss.observer = self.observer
        return loss.evaluate_blocks(blocks, progress, weights, tau, batch.views)

    @property
    def stats(self) -> dict[str, float]:
        """Numbers of the last call by name, as those of the loss."""
        return self.loss.stats

    def policies(self) -> list[Policy]:
        """The policies of the loss, each part of a joined one by itself."""
        return self.loss.policies()

    def __getattr__(self, name: str) -> Any:
        """The policy and the temperature are those of the loss."""
        if name in ("negatives", "temperature"):
            return getattr(self.loss, name)
        return super().__getattr__(name)
