"""The arguments of `OneWay` and `TwoWay`, checked and turned into a batch of pairs of a query and a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from antipodes.arguments import check_vectors, describe, is_dense
from antipodes.candidates.cross import OWN_IDS, PairedBatch
from antipodes.distributed import apart, world_size
from antipodes.functional.normalise import Measured, measure
from antipodes.functional.softmax_losses import Views
from antipodes.functional.tensors import on_host
from antipodes.losses.inputs import (
    FULL,
    Ids,
    check_embeddings,
    check_length,
    check_weights,
    in_place,
    is_text,
    own_numbers,
    read_ids,
    view_guide,
    whole_numbers,
)
from antipodes.losses.loss import Loss
from antipodes.losses.shares import check_shares
from antipodes.pairs import normalise

PairIds = Ids | tuple[Ids, Ids]
"""One identity a pair, or those of the queries and those of the documents."""


def check_pairs(
    loss: Loss,
    queries: Tensor,
    documents: Tensor,
    ids: PairIds | None,
    rows: Ids | None = None,
    hard_negatives: Tensor | None = None,
    hard_negative_ids: Ids | None = None,
    log_q: Tensor | None = None,
    hard_negative_log_q: Tensor | None = None,
    gather: bool = True,
    guide: Sequence[Tensor] | None = None,
    weights: Tensor | None = None,
    names: tuple[str, str] = ("queries", "documents"),
    direct: bool = False,
) -> PairedBatch:
    """Refuse what `OneWay.forward`, whose arguments these are, cannot use; nothing has moved until it returns.

    With `direct` the loss may do without a link between the embeddings and the pairs (`PairedBatch.views`).
    """
    check_embeddings(**{names[0]: queries, names[1]: documents})
    if queries.dim() != 2 or queries.shape != documents.shape or not queries.numel():
        shapes = f"{tuple(queries.shape)} and {tuple(documents.shape)}"
        raise ValueError(f"{names[0]} and {names[1]} must both be (B, D), got {shapes}")
    if not isinstance(gather, bool):
        raise ValueError(f"gather must be True or False, got {describe(gather)}")
    count = queries.shape[0]
    gathers = gather and world_size() > 1
    given = _check_given(queries, hard_negatives, hard_negative_ids, hard_negative_log_q)
    query_ids, document_ids = _read_pair_ids(loss, ids, queries)
    places = None if rows is None else whole_numbers(rows, queries, "rows")
    check_length("rows", places, count)
    if places is None and (query_ids is not None or is_text(ids)) and loss.needs_rows:
        raise ValueError(
            "rows are missing: a policy or the loss looks samples up by table row, and ids are texts or in two spaces: "
            "give rows (B,)"
        )
    given_ids = _read_given_ids(hard_negative_ids, given, ids is None)
    check_weights("weights", weights, count, least=0)
    check_weights("log_q", log_q, count)
    vectors, given_guide = _read_guide(guide, count, given)
    if gathers:
        given_count = 0 if given is None else len(given)
        check_shares(queries, documents, document_ids, given=given_count, learning=loss.learning)

    unit = loss.similarity == "cosine"
    both = measure(torch.cat((queries.detach(), documents.detach())))  # in one go: small batches pay by the call
    checked, negatives = [both], None
    if given is not None and given_ids is not None:
        rest, of_rest, to_check = _fill(given, given_ids >= 0, hard_negative_ids is not None)
        checked += to_check
        negatives = in_place(rest, of_rest, unit)
    seen = loss.check_views(checked, document_ids, places)
    views = Views(queries, documents, both)
    direct = direct and unit and given is None and log_q is None and not gathers
    if unit:
        first, second = views.units() if direct else views.linked()
    else:
        first, second = (each if each.dtype in FULL else each.float() for each in (queries, documents))
    if given_ids is not None and given is not None:
        loss.count_ignored((given_ids.view(count, -1) == document_ids[:, None]).sum(), given_ids)
    return PairedBatch(
        first,
        second,
        document_ids,
        query_ids,
        places,
        negatives,
        given_ids,
        vectors,
        given_guide,
        None if log_q is None else -log_q.detach(),
        None if hard_negative_log_q is None else -hard_negative_log_q.detach().reshape(-1),
        gathers,
        seen.rows,
        unit,
        seen.distinct,
        views if direct else None,
    )


def _fill(given: Tensor, filled: Tensor, may_be_padded: bool) -> tuple[Tensor, Measured, list[Measured]]:
    """The given negatives (B K, D) with zeros in the place of padding, at length 1 as well, and what to check of them.

    Padding is no vector: that it is short means nothing.
    """
    if not may_be_padded or bool(filled.all()):
        measured = measure(given)
        return given, measured, [measured]
    rest = torch.where(filled[:, None], given, 0.0)
    return rest, measure(rest), [measure(given[filled])] if bool(filled.any()) else []


def _check_given(queries: Tensor, negatives: Any, ids: Any, log_q: Any) -> Tensor | None:
    """The given negatives as (B K, D), or None; refuse what does not fit the queries."""
    if negatives is None:
        for name, each in (("hard_negative_ids", ids), ("hard_negative_log_q", log_q)):
            if each is not None:
                raise ValueError(f"{name} are those of hard_negatives: give these, too")
        return None
    check_embeddings(queries=queries, hard_negatives=negatives)
    count, dim = queries.shape
    if negatives.dim() != 3 or negatives.shape[0] != count or negatives.shape[2] != dim or not negatives.numel():
        raise ValueError(f"hard_negatives must be ({count}, K, {dim}), got {tuple(negatives.shape)}")
    given: Tensor = negatives.reshape(-1, dim)
    if log_q is not None and (not isinstance(log_q, Tensor) or log_q.shape != negatives.shape[:2]):
        raise ValueError(f"hard_negative_log_q must be {tuple(negatives.shape[:2])}, got {describe(log_q)}")
    check_weights("hard_negative_log_q", None if log_q is None else log_q.reshape(-1), len(given))
    return given


def _read_pair_ids(loss: Loss, ids: PairIds | None, queries: Tensor) -> tuple[Tensor | None, Tensor]:
    """Identities of the queries, where they are another space, and of the documents or pairs, (B,) each."""
    count = queries.shape[0]
    if ids is None:
        loss.own_ids(queries)  # it may refuse
        numbers = own_numbers(count, queries)
        return None, numbers
    spaces = ids if _in_two_spaces(ids) else (ids,)
    names = ("ids[0]", "ids[1]") if len(spaces) == 2 else ("ids",)
    found = [read_ids(each, queries, name) for each, name in zip(spaces, names, strict=True)]
    for name, numbers in zip(names, found, strict=True):
        check_length(name, numbers, count)
    if len(found) == 1:
        return None, found[0]
    if on_host(found[0]) and int(found[0].min()) < 0:
        raise ValueError(f"ids must be at least 0, got {int(found[0].min())}: -1 marks padding of hard_negative_ids")
    return found[0], found[1]


def _in_two_spaces(ids: Any) -> bool:
    """Whether ids are a pair of the queries' and the documents', rather than two numbers or texts."""
    if not isinstance(ids, (tuple, list)) or len(ids) != 2:
        return False
    return all(isinstance(each, (list, tuple)) or getattr(each, "ndim", 0) for each in ids)


def _read_given_ids(ids: Any, given: Tensor | None, pairs_without: bool) -> Tensor | None:
    """Document ids of the given negatives, (B K,): their own, or numbers that nothing else has."""
    if given is None:
        return None
    count = len(given)
    if ids is None:
        return _own_ids(given)
    if isinstance(ids, (list, tuple)) and ids and not isinstance(ids[0], Tensor) and is_text(ids[0]):
        ids = read_ids([text for of_query in ids for text in of_query], given, "hard_negative_ids")
    elif not isinstance(ids, Tensor) and getattr(getattr(ids, "dtype", None), "kind", "") in ("U", "S", "O"):
        ids = read_ids(ids.reshape(-1).tolist(), given, "hard_negative_ids")
    else:
        if isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], Tensor):
            ids = torch.stack(list(ids))
        ids = whole_numbers(ids, given, "hard_negative_ids")
    if ids.numel() != count or ids.dim() > 2:
        raise ValueError(f"hard_negative_ids must be one per given negative, {count} in all, got {tuple(ids.shape)}")
    ids = ids.reshape(-1)
    # pairs without ids have no document ids that these could be compared with
    return torch.where(ids >= 0, _own_ids(given), ids) if pairs_without else ids


def _own_ids(given: Tensor) -> Tensor:
    """Numbers that nothing else has, (B K,)."""
    return OWN_IDS - apart(torch.arange(len(given), device=given.device))


def _read_guide(guide: Any, count: int, given: Tensor | None) -> tuple[tuple[Tensor, Tensor] | None, Tensor | None]:
    """The guide's vectors of queries and documents, and of given negatives (B K, G), of length 1."""
    if guide is None:
        return None, None
    wanted = 2 if given is None else 3
    if not isinstance(guide, (tuple, list)) or len(guide) != wanted:
        what = f"({count}, G) of queries and of documents" + (
            "" if given is None else " and (B, K, G) of hard_negatives"
        )
        raise ValueError(f"guide must be the guide's vectors {what}, got {describe(guide)}")
    vectors = view_guide(tuple(guide[:2]), count)
    if given is None:
        return vectors, None
    hard = guide[2]
    if not is_dense(hard) or hard.dim() != 3 or hard.shape[0] * hard.shape[1] != len(given):
        raise ValueError(
            f"guide[2] must be ({count}, K, G), the guide's vectors of hard_negatives, got {describe(hard)}"
        )
    assert vectors is not None
    flat = hard.reshape(len(given), -1)
    check_vectors("guide[2]", flat, vectors[0].shape[1])
    return vectors, normalise(flat.detach())
