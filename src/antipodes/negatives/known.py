"""`Known`: false negatives that the user knows, by groups of rows, by pairs of rows, or by queries and documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from antipodes.negatives.dataset_neighbours import match_partners
from antipodes.negatives.known_file import knowledge_of, read_knowledge, whole_groups
from antipodes.negatives.known_pairs import PairTable, make_table, spread
from antipodes.negatives.policy import Needs, Policy, check_rows
from antipodes.pairs import Group, Pairs, Rule
from antipodes.state import ByRow, sample_count


class Known(Policy):
    """Rows of one group are not negatives of each other: duplicates by content, records of a patient, one product.

    Groups may come from anywhere: content hashes, product or patient ids, an audit. Listed pairs say the same of two
    rows at a time, in both directions, without making a group of them. `Known.from_pairs` lists queries and documents
    by identity instead of rows: relevance judgements, or what every user has bought.

    Args:
        groups: (n,) the group of every row, whole numbers or names; a negative or missing one is alone. Or a file for
            `Known.read`, or columns such as `antipodes.audit(...).groups` or `.pairs`.
        pairs: (L, 2) pairs of rows.
        num_samples: Size of the dataset, where neither says it; rows beyond `groups` are alone.
        weights: (L,) numbers in [0, 1], how much each of the pairs is pulled, where the positive is pulled by 1. They
            have a meaning with the treatments that pull: `attract` and `refine`.
        kinds: Of an audit's pairs, the kinds that count, such as `false negative`; duplicates if not given.

    Example:
        >>> policy = Known([0, 0, -1, 1, 1])
        >>> policy.groups
        tensor([ 0,  0, -1,  1,  1])
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {
        name: ByRow(holds="data") for name in ("groups", "partners", "firsts", "weights")
    }
    groups: Tensor
    partners: Tensor
    firsts: Tensor
    weights: Tensor | None
    table: PairTable | None

    def __init__(
        self,
        groups: Tensor | str | Path | Any | None = None,
        pairs: Tensor | Any | None = None,
        num_samples: int | None = None,
        weights: Tensor | Any | None = None,
        kinds: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        num_samples = None if num_samples is None else sample_count(num_samples)
        self.table = None
        if isinstance(groups, (str, Path, Mapping)):
            if isinstance(groups, Mapping):
                known = knowledge_of(groups, kinds)
            else:
                known = read_knowledge(Path(groups), num_samples, kinds=kinds)
            if known.table is not None:
                if pairs is not None:
                    raise ValueError(f"{groups} lists queries and documents by identity: leave pairs of rows out")
                self._take(known.table)
                return
            groups = known.groups
            pairs, weights = (known.pairs, known.weights) if pairs is None else (pairs, weights)
        if groups is None and pairs is None:
            raise ValueError("known needs to know something: give groups (n,) by row, or pairs (L, 2) of rows")
        numbers = None if groups is None else _groups(groups)
        listed, shares = _listed(pairs, weights)
        least = max(1, 0 if numbers is None else len(numbers), 1 + int(listed.max()) if len(listed) else 0)
        if num_samples is not None and num_samples < least:
            raise ValueError(f"known speaks of row {least - 1}, and the dataset has only {num_samples} rows")
        self.num_samples = least if num_samples is None else num_samples
        table = torch.full((self.num_samples,), -1)
        if numbers is not None:
            table[: len(numbers)] = numbers
        self.register_buffer("groups", table)
        order = listed[:, 0].argsort(stable=True)
        counts = torch.bincount(listed[:, 0], minlength=self.num_samples)
        self.register_buffer("partners", listed[order, 1])
        self.register_buffer("firsts", torch.cat((counts.new_zeros(1), counts.cumsum(0))))
        self.register_buffer("weights", None if shares is None else shares[order])
        self.needs = replace(self.needs, weighs=shares is not None)

    @classmethod
    def from_pairs(cls, queries: Any, documents: Any, closure: bool = False) -> Known:
        """Know that these queries and documents are positive pairs, and nothing else.

        They are looked up by the identities that `OneWay` and `TwoWay` receive, `ids=(query_ids, document_ids)`. A
        listed document is no negative of its query, nor the query of the document. Memory is linear in the pairs.

        Args:
            queries: (L,) query or user of every pair, whole numbers or texts.
            documents: (L,) its document or item.
            closure: Join pairs that share a query or a document, directly or through others, and treat each connected
                component as one group. This is right for copies of one text, and wrong for users and items, where
                nearly all are connected. It warns if one component holds more than 10 % of the pairs.

        Raises:
            ValueError: if they are not equally many, or neither whole numbers of at least 0 nor texts.

        Example:
            >>> history = Known.from_pairs(["ann", "ann", "bob"], [10, 20, 20])
        """
        return cls._of_table(make_table(queries, documents, closure))

    @classmethod
    def read(
        cls,
        path: str | Path,
        num_samples: int | None = None,
        closure: bool = False,
        kinds: Sequence[str] | None = None,
    ) -> Known:
        """Read what is known from a file; its columns decide what it says.

        | columns | meaning |
        |---|---|
        | `row`, `group` (or `group` alone, in the order of rows) | groups of rows |
        | `row`, `other`, perhaps `weight` | pairs of rows, and how much each is pulled |
        | `row`, `other` and `kind` | an audit's pairs: duplicates, or what `kinds` says |
        | `query-id`, `query_id`, `query` or `user` with `corpus-id`, `document` or `item`, perhaps `score` | pairs by
          identity, as in `from_pairs`; only those with a score above 0 |
        | TREC's four columns without a header | the same: query, iteration, document, relevance |

        Whole numbers in a file of text are found both as numbers and as texts.

        Args:
            path: A table (`.parquet`, `.csv`, `.tsv`, `.jsonl`; those of text also compressed, `.gz`), TREC's
                judgements (`.tsv`, `.txt`, `.qrels`, `.trec`), arrays with the names of columns in an `.npz`, or a
                tensor of groups saved by torch (`.pt`).
            num_samples: Size of the dataset, for files that name rows; by default up to the last row that is named.
            closure: For pairs by identity: see `from_pairs`.
            kinds: Of an audit's pairs, the kinds that count, such as `false negative`; duplicates if not given.

        Raises:
            ValueError: if the file cannot be read, has other columns, names rows that there are not, or gives one row
                two groups.
        """
        if not closure:
            return cls(path, num_samples=num_samples, kinds=kinds)
        known = read_knowledge(Path(path), num_samples, closure)
        if known.table is None:
            raise ValueError(f"{path} lists rows, and closure joins queries and documents: leave it out")
        return cls._of_table(known.table)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's group, or is listed with it."""
        if self.table is not None:
            return [_rule_of_table(self.table, pairs)]
        anchor_rows, candidate_rows = pairs.rows()
        check_rows(pairs, len(self.groups))
        of_anchors = self.groups[anchor_rows]
        of_candidates = of_anchors
        if candidate_rows is not anchor_rows:
            of_candidates = self.groups[candidate_rows.clamp(min=0)].masked_fill_(candidate_rows < 0, -1)
        rule = Rule(groups=(Group(of_anchors, of_candidates, "drop"),))
        if not len(self.partners):
            return [rule]
        first = self.firsts[anchor_rows]
        position, number = spread(self.firsts[anchor_rows + 1] - first)
        places = first[position] + number
        weights = None if self.weights is None else self.weights[places].to(pairs.anchors)
        listed = match_partners(position, self.partners[places], candidate_rows, weights)
        return [rule & Rule(lists=(listed,))]

    @classmethod
    def _of_table(cls, table: PairTable) -> Known:
        known = cls.__new__(cls)
        Policy.__init__(known)
        known._take(table)
        return known

    def _take(self, table: PairTable) -> None:
        """Know a table of pairs by identity, and nothing about rows."""
        self.table, self.needs = table, Needs(rows=False, identities=True)
        self.register_buffer("groups", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("partners", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("firsts", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("weights", None)


def _groups(given: Any) -> Tensor:
    """Groups (n,) as int64; tensors must be whole numbers already."""
    if isinstance(given, Tensor) and (given.dim() != 1 or given.is_floating_point() or given.dtype == torch.bool):
        raise ValueError(f"groups must be whole numbers, got {given.dtype} of shape {tuple(given.shape)}")
    try:
        return whole_groups(given)
    except TypeError as error:
        raise ValueError(f"groups must be one per row, got a {type(given).__name__}") from error


def _listed(given: Any, weights: Any) -> tuple[Tensor, Tensor | None]:
    """Pairs of rows in both directions (L, 2), each once, with their weights (L,) if there are some."""
    if given is None:
        if weights is not None:
            raise ValueError("weights are those of pairs: give pairs (L, 2) of rows, too")
        return torch.zeros(0, 2, dtype=torch.int64), None
    try:
        pairs = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"pairs must be (L, 2) rows of the dataset, got a {type(given).__name__}") from error
    if pairs.dim() != 2 or pairs.is_floating_point() or pairs.dtype == torch.bool:
        raise ValueError(f"pairs must be whole numbers, got {pairs.dtype} of shape {tuple(pairs.shape)}")
    if pairs.shape[1] != 2 or (len(pairs) and int(pairs.min()) < 0):
        raise ValueError(f"pairs must be (L, 2) rows of the dataset, got shape {tuple(pairs.shape)}")
    both = torch.cat((pairs.long(), pairs.long().flip(1)))
    distinct, inverse = both.unique(dim=0, return_inverse=True)
    if weights is None:
        return distinct, None
    shares = torch.as_tensor(weights)
    if shares.shape != pairs.shape[:1] or not bool(((shares >= 0) & (shares <= 1)).all()):
        raise ValueError(f"weights must be ({len(pairs)},) numbers in [0, 1], one per pair: how much each is pulled")
    shares = shares.float().repeat(2)
    of_distinct = shares.new_zeros(len(distinct))
    of_distinct[inverse] = shares
    twice = (of_distinct[inverse] != shares).nonzero()[:, 0]
    if len(twice):
        row, other = both[twice[0]].tolist()
        raise ValueError(f"pairs list ({row}, {other}) with different weights: give every pair once")
    return distinct, of_distinct


def _rule_of_table(table: PairTable, pairs: Pairs) -> Rule:
    """Drop the candidates that a table of pairs by identity lists with the anchor's pair, or joins with it.

    A candidate that is a document is looked up with the anchor's query, one that is a query with the anchor's document,
    whichever of the two the anchor itself is: what answers query i is no negative of sample i.
    """
    names, block = pairs.identities, pairs.block
    if names is None or block is None:
        raise ValueError(
            "Known.from_pairs looks queries and documents up by their identities: give OneWay or TwoWay "
            "ids=(query_ids, document_ids)"
        )
    to_queries = block.endswith("query")
    if not table.closure:
        if to_queries:
            return Rule(
                lists=(table.listed(names.candidate_queries, names.anchor_documents, anchors_are_queries=False),)
            )
        return Rule(lists=(table.listed(names.anchor_queries, names.candidate_documents),))
    # the anchor's own query and document are a pair, listed or not; each may lead to a component
    candidates = (
        table.number_queries(names.candidate_queries)
        if to_queries
        else table.number_documents(names.candidate_documents)
    )
    anchors = (table.number_queries(names.anchor_queries), table.number_documents(names.anchor_documents))
    return Rule(groups=tuple(Group(of_anchors, candidates) for of_anchors in anchors))
