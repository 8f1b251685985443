"""`PairTable`: listed pairs of queries and documents, looked up by identity.

The distinct identities of each side are sorted and numbered from 0; the documents of each query follow each other in
one list of numbers. Memory is linear in the pairs: 4 bytes for each, and 8 to 16 for every distinct query and document.
A lookup costs one binary search per identity of the batch, and one per document listed with its queries.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.identity import identities
from antipodes.pairs import Listed

LARGE_COMPONENT = 0.1
"""Share of the pairs from which a connected component is suspicious."""


class PairTable(nn.Module):
    """Pairs of a query and a document, by identity; with `closure` the connected components that they make.

    Args:
        queries: (L,) identity of every pair's query, at least 0.
        documents: (L,) identity of its document.
        closure: Keep the connected components in place of the pairs.

    Example:
        >>> table = PairTable(torch.tensor([7, 7, 9]), torch.tensor([1, 2, 2]))
        >>> table.find(torch.tensor([9, 7, 5]), torch.tensor([2, 1, 3]))
        (tensor([0, 1, 1]), tensor([0, 1, 0]))
    """

    query_ids: Tensor
    document_ids: Tensor
    query_numbers: Tensor
    document_numbers: Tensor
    firsts: Tensor | None
    documents: Tensor | None

    def __init__(self, queries: Tensor, documents: Tensor, closure: bool = False) -> None:
        super().__init__()
        query_ids, of_pairs = queries.unique(return_inverse=True)
        document_ids, to_pairs = documents.unique(return_inverse=True)
        numbers = torch.arange(len(query_ids)), torch.arange(len(document_ids))
        if closure:
            numbers = _components(of_pairs, to_pairs, len(query_ids), len(document_ids))
            _warn_of_large(numbers[0][of_pairs])
        firsts, listed = (None, None) if closure else _rows(of_pairs, to_pairs, len(query_ids), len(document_ids))
        self.register_buffer("query_ids", query_ids)
        self.register_buffer("document_ids", document_ids)
        self.register_buffer("query_numbers", numbers[0])
        self.register_buffer("document_numbers", numbers[1])
        self.register_buffer("firsts", firsts)
        self.register_buffer("documents", listed)

    def __deepcopy__(self, memo: dict[int, Any]) -> PairTable:
        """Return the table itself: it never changes, so that the policies of two directions can share it."""
        return self

    @property
    def closure(self) -> bool:
        """Whether it holds connected components in place of pairs."""
        return self.firsts is None

    def also_known_as(self, queries: Tensor | None, documents: Tensor | None) -> None:
        """Add a second identity for every query, every document or both, in the order of `query_ids`, `document_ids`.

        A file of text cannot say whether 7 is a number or a name: the table then finds it as both.
        """
        for side, others in (("query", queries), ("document", documents)):
            if others is None:
                continue
            ids, order = torch.cat((getattr(self, f"{side}_ids"), others)).sort()
            setattr(self, f"{side}_ids", ids)
            setattr(self, f"{side}_numbers", getattr(self, f"{side}_numbers").repeat(2)[order])

    def number_queries(self, ids: Tensor) -> Tensor:
        """The number of each of these queries: its component with `closure`; -1 if the table does not list it."""
        return _numbers(self.query_ids, self.query_numbers, ids)

    def number_documents(self, ids: Tensor) -> Tensor:
        """The number of each of these documents, as for queries."""
        return _numbers(self.document_ids, self.document_numbers, ids)

    def find(self, query_ids: Tensor, document_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Find the listed pairs among all pairs of these queries and documents.

        Args:
            query_ids: (P,) identities, in any order, several of which may be equal; negative for an empty slot.
            document_ids: (C,) likewise.

        Returns:
            Positions of queries and of documents, (N,) each: one entry per listed pair.
        """
        assert self.firsts is not None
        assert self.documents is not None
        queries = self.number_queries(query_ids)
        first = self.firsts[queries.clamp(min=0)]
        count = torch.where(queries < 0, 0, self.firsts[queries + 1] - first)
        position, number = spread(count)
        listed = self.documents[first[position] + number].long()
        ordered, order = self.number_documents(document_ids).sort(stable=True)
        start = torch.searchsorted(ordered, listed)
        here = torch.cat((ordered, ordered.new_full((1,), -1)))[start] == listed
        position, start, listed = position[here], start[here], listed[here]  # few of a query's documents are in a batch
        source, number = spread(torch.searchsorted(ordered, listed, right=True) - start)
        return position[source], order[start[source] + number]

    def listed(self, query_ids: Tensor, document_ids: Tensor, anchors_are_queries: bool = True) -> Listed:
        """Return the listed pairs of a step, whose anchors are the queries or the documents."""
        queries, documents = self.find(query_ids, document_ids)
        return Listed(queries, documents) if anchors_are_queries else Listed(documents, queries)


def make_table(queries: Any, documents: Any, closure: bool = False) -> PairTable:
    """Build a table from what a user gives: whole numbers or texts, one query and one document a pair.

    Raises:
        ValueError: if they are something else, or not equally many.
    """
    query_ids, document_ids = identities(queries, "queries"), identities(documents, "documents")
    if len(query_ids) != len(document_ids):
        raise ValueError(
            f"queries and documents must be equally many, one of each a pair, got {len(query_ids)} and "
            f"{len(document_ids)}"
        )
    if not isinstance(closure, bool):
        raise ValueError(f"closure must be True or False, got a {type(closure).__name__}")
    return PairTable(query_ids, document_ids, closure)


def spread(counts: Tensor) -> tuple[Tensor, Tensor]:
    """For counts (P,): the position of each of all things that they count, and its number among those of its position.

    Example:
        >>> spread(torch.tensor([2, 0, 1]))
        (tensor([0, 0, 2]), tensor([0, 1, 0]))
    """
    position = torch.repeat_interleave(counts)
    return position, torch.arange(len(position), device=counts.device) - (counts.cumsum(0) - counts)[position]


def _numbers(known: Tensor, numbers: Tensor, ids: Tensor) -> Tensor:
    """The numbers of ids (P,) in a sorted list of known ones; -1 for those that are not in it."""
    if not len(known):
        return torch.full_like(ids, -1)
    place = torch.searchsorted(known, ids.contiguous()).clamp(max=len(known) - 1)
    return torch.where(known[place] == ids, numbers[place], -1)


def _rows(queries: Tensor, documents: Tensor, query_count: int, document_count: int) -> tuple[Tensor, Tensor]:
    """Where the documents of every query start (Q + 1,), and the documents of all of them (L,), each pair once."""
    pairs = (queries * document_count + documents).unique()
    counts = torch.bincount(torch.div(pairs, max(document_count, 1), rounding_mode="floor"), minlength=query_count)
    listed = pairs % max(document_count, 1)
    small = document_count <= torch.iinfo(torch.int32).max
    return torch.cat((counts.new_zeros(1), counts.cumsum(0))), listed.int() if small else listed


def _components(queries: Tensor, documents: Tensor, query_count: int, document_count: int) -> tuple[Tensor, Tensor]:
    """The connected component of every query (Q,) and of every document (D,), by the number of its first query.

    Every component takes over the lowest label among its neighbours until none changes; following labels of labels in
    between makes the number of rounds logarithmic.
    """
    labels = torch.arange(query_count + document_count)
    documents = documents + query_count
    while True:
        lowest = torch.minimum(labels[queries], labels[documents])
        lower = labels.scatter_reduce(0, labels[queries], lowest, "amin")
        lower.scatter_reduce_(0, labels[documents], lowest, "amin")
        while not torch.equal(shorter := lower[lower], lower):
            lower = shorter
        if torch.equal(lower, labels):
            return labels[:query_count], labels[query_count:]
        labels = lower


def _warn_of_large(of_pairs: Tensor) -> None:
    """Warn if one component holds a large share of the pairs, whose components (L,) these are."""
    if not len(of_pairs):
        return
    largest = int(torch.bincount(of_pairs).max())
    if largest > LARGE_COMPONENT * len(of_pairs):
        warnings.warn(
            f"closure=True joins {largest} of {len(of_pairs)} pairs ({largest / len(of_pairs):.0%}) into one connected "
            "component, in which nothing is a negative of anything: leave closure out if a shared document does not "
            "make two queries the same, as in a history of users and items",
            stacklevel=4,
        )
