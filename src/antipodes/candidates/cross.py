"""Pairs of two kinds of embeddings: queries against documents, images against texts, and further blocks of these.

A `PairedBatch` holds the checked embeddings of this rank's pairs, perhaps with given negatives. `make_block` gathers
what a block compares over the ranks, and says which candidates never count:

- a document that has the anchor's document id, or stands in a pair with the anchor's query id; likewise a query;
- a given negative that has the anchor's document id, and padding (id -1);
- in `document_to_document` the anchor's own given negatives as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from antipodes.distributed import apart, gather, world_size
from antipodes.functional.checks import Extent
from antipodes.functional.same_sample import Excluded, SameSample, few_pairs
from antipodes.functional.softmax_losses import Views
from antipodes.functional.tensors import on_host
from antipodes.pairs import Block, Guide, Identities, PairFacts, Pairs

OWN_IDS = 2**63 - 1
"""Identities of given negatives that have none count down from here."""


@dataclass(frozen=True)
class PairedBatch:
    """Pairs of a query and a document of this rank.

    Attributes:
        queries: (B, D) embeddings, ready to be compared, with gradient unless there are `views`.
        documents: (B, D) likewise; row i is the positive of query i.
        document_ids: (B,) identity of every document, or of the pair.
        query_ids: (B,) identity of every query, where these are another space.
        rows: (B,) table rows of the pairs; None takes the document ids.
        given: (B K, D) given negatives, those of the first query first; None for none.
        given_ids: (B K,) their document ids, -1 for padding.
        guide: A guide's vectors (B, G) of queries and documents, of length 1.
        given_guide: (B K, G) those of the given negatives.
        log_weights: (B,) by which the logits of the documents are raised.
        given_log_weights: (B K,) by which those of the given negatives are raised.
        gather: Whether candidates come from all ranks.
        row_span: The lowest and the highest row.
        unit: Whether the embeddings are known to have length 1 or 0, and the ids to be at least 0 but for padding.
        distinct: Whether no two document ids of this rank are known to be equal.
        views: The queries and documents as they were given, where no gradient leads from the pairs to them.
    """

    queries: Tensor
    documents: Tensor
    document_ids: Tensor
    query_ids: Tensor | None = None
    rows: Tensor | None = None
    given: Tensor | None = None
    given_ids: Tensor | None = None
    guide: tuple[Tensor, Tensor] | None = None
    given_guide: Tensor | None = None
    log_weights: Tensor | None = None
    given_log_weights: Tensor | None = None
    gather: bool = True
    row_span: tuple[int, int] | None = None
    unit: bool = False
    distinct: bool = False
    views: Views | None = None

    @property
    def collect(self) -> Callable[[Tensor], Tensor]:
        """What joins the candidates: the gather over ranks, or nothing."""
        return gather if self.gather else _here

    @property
    def alone(self) -> bool:
        """Whether all candidates are this rank's."""
        return not self.gather or world_size() == 1

    def turned(self) -> PairedBatch:
        """The same pairs with documents as anchors: the other direction, without given negatives."""
        guide = None if self.guide is None else (self.guide[1], self.guide[0])
        return PairedBatch(
            self.documents, self.queries, self.document_ids, self.query_ids, self.rows, guide=guide,
            gather=self.gather, row_span=self.row_span, unit=self.unit, distinct=self.distinct, views=self.views,
        )  # fmt: skip


def make_block(batch: PairedBatch, block: Block = "query_to_document", in_batch: bool = True) -> Pairs:
    """Compare one kind of embeddings of every pair with one kind of all pairs.

    Args:
        batch: The pairs of this rank.
        block: What is compared. `document_to_query` as the only block is the other direction of two.
        in_batch: Whether the documents of other pairs and their given negatives are candidates of
            `query_to_document`; False leaves every query its own given negatives.

    Returns:
        Pairs with B anchors. The positive is the similarity of a query to its document in every block.
    """
    collect = batch.collect if in_batch else _here
    from_queries, to_documents = block.startswith("query"), not block.endswith("query")
    anchors = batch.queries if from_queries else batch.documents
    others = batch.documents if to_documents else batch.queries
    with_given = batch.given is not None and block in ("query_to_document", "document_to_document")
    given = batch.given if with_given else None
    shared = in_batch  # whether the documents or queries of other pairs are among the candidates

    def joined(of_pairs: Tensor | None, of_given: Tensor | None) -> Tensor:
        """What the candidates have: the pairs first, then the given negatives."""
        parts = [collect(of_pairs)] if shared and of_pairs is not None else []
        parts += [collect(of_given)] if with_given and of_given is not None else []
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    given_count = 0 if given is None else given.shape[0]
    nothing = batch.document_ids.new_full((given_count,), -1) if with_given else None
    keys, ids = joined(others, given), joined(batch.document_ids, batch.given_ids)
    query_ids = None if batch.query_ids is None else joined(batch.query_ids, nothing)
    owners = None
    if with_given:
        count = len(anchors)
        numbers, each = apart(torch.arange(count, device=anchors.device)), given_count // count
        owners = numbers, joined(torch.full_like(numbers, -1), numbers.repeat_interleave(each))
    rows = batch.document_ids if batch.rows is None else batch.rows
    guide = None
    if batch.guide is not None:
        of_queries, of_documents = batch.guide
        seen, positive = (of_queries, of_documents) if from_queries else (of_documents, of_queries)
        vectors = joined(of_documents if to_documents else of_queries, batch.given_guide)
        guide = Guide(seen, (of_queries * of_documents).sum(1), vectors, positive)
    product = None
    if batch.views is not None and few_pairs(anchors.shape[0], keys.shape[0]):
        product = torch.mm(anchors, keys.T)
    return Pairs(
        anchors,
        batch.document_ids,
        torch.linalg.vecdot(batch.queries, batch.documents) if product is None else product.diagonal(),
        keys,
        ids,
        (batch.documents if from_queries else batch.queries).detach(),
        anchor_rows=batch.rows,
        candidate_rows=None if batch.rows is None and not with_given else joined(rows, nothing),
        guide=guide,
        log_weights=_log_weights(batch, to_documents, joined, given_count),
        positive_log_weights=batch.log_weights,
        block=block,
        identities=_identities(batch, ids, query_ids),
        owners=owners if block == "query_to_document" else None,
        facts=PairFacts(
            Extent(1.0, 0.0, 1.0, -1.0 if with_given else 0.0) if batch.unit and batch.alone else None,
            batch.row_span,
            _related(batch, block, ids, query_ids, owners, in_batch),
            product,
        ),
    )


def _here(tensor: Tensor) -> Tensor:
    """The identity, in the place of a gather over ranks."""
    return tensor


def _log_weights(
    batch: PairedBatch, to_documents: bool, joined: Callable[[Tensor, Tensor], Tensor], given_count: int
) -> Tensor | None:
    """What is added to the logits of the candidates, if these are documents and some have such a weight."""
    if not to_documents or (batch.log_weights is None and batch.given_log_weights is None):
        return None
    like = batch.queries.detach()
    of_pairs = like.new_zeros(len(like)) if batch.log_weights is None else batch.log_weights.to(like)
    none = batch.given_log_weights is None
    of_given = like.new_zeros(given_count) if none else batch.given_log_weights.to(like)  # type: ignore[union-attr]
    return joined(of_pairs, of_given)


def _identities(batch: PairedBatch, ids: Tensor, query_ids: Tensor | None) -> Identities | None:
    if batch.query_ids is None or query_ids is None:
        return None
    return Identities(batch.query_ids, batch.document_ids, query_ids, ids)


def _related(
    batch: PairedBatch,
    block: Block,
    ids: Tensor,
    query_ids: Tensor | None,
    owners: tuple[Tensor, Tensor] | None,
    in_batch: bool,
) -> SameSample:
    """Which pairs of an anchor and a candidate never count."""
    spaces = []
    if batch.query_ids is not None and query_ids is not None and not _distinct(query_ids):
        spaces.append((batch.query_ids, query_ids))
    if owners is not None and block == "document_to_document":
        spaces.append(owners)
    only = owners if not in_batch else None
    if spaces or only is not None:
        return Excluded(batch.document_ids, ids, spaces, only)
    known = batch.distinct and batch.document_ids.shape == ids.shape and ids.shape[0] > 1 and batch.alone
    return SameSample(batch.document_ids, ids, views=1 if known else 0)


def _distinct(query_ids: Tensor) -> bool:
    """Whether no query comes twice, as far as that can be told without a synchronisation."""
    if not on_host(query_ids):
        return False
    numbers = query_ids[query_ids >= 0].tolist()
    return len(set(numbers)) == len(numbers)


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
    return make_block(PairedBatch(first, second, ids, None, rows, guide=guide, log_weights=log_weights))
