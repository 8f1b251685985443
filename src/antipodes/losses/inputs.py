"""What a user hands to a loss, checked and turned into pairs: ids of any kind, views, candidates, weights, a guide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from antipodes.arguments import LARGEST, check_vectors, describe, is_dense
from antipodes.distributed import apart, gather, world_size
from antipodes.functional.checks import Extent
from antipodes.functional.normalise import Measured, link, measure
from antipodes.functional.softmax_losses import Views
from antipodes.functional.tensors import NotFinite, on_host, read, span_on_host, spans
from antipodes.identity import content_ids
from antipodes.losses.shares import check_shares
from antipodes.losses.temperature import check_temperature
from antipodes.pairs import Guide, PairFacts, Pairs

if TYPE_CHECKING:
    from antipodes.losses.loss import Loss

Ids = Tensor | Sequence[int] | Sequence[str] | Any
"""Whole numbers, as a tensor, a list or a NumPy array; or texts."""


@dataclass(frozen=True)
class Given:
    """The arguments of a call of a loss, once they are checked.

    Attributes:
        views: Both views (B, D) before they are linked to the graph; None without a second view, or of dot products.
        first: (B, D) the first view, of length 1 unless the loss compares dot products, with gradient.
        second: (B, D) likewise, or None.
        raw_second: The second view as it was given.
        ids: (B,).
        rows: (B,), or None for the ids.
        facts: What the check has found out about the batch.
        distinct: Whether no two ids are known to be equal.
        candidates: (C, D) as they were given.
        candidate_ids: (C,).
        candidate_rows: (C,), or None for the ids.
        joined: Whether every rank gives the same candidates.
        guide: The guide's vectors (B, G) of both views, of length 1.
        candidate_guide: (C, G) likewise.
        weights: (B,), or None.
        log_weights: (C,), or (B,) without candidates.
        positive_log_weights: (B,), or None.
        temperature: Of this call, or None.
        unit: Whether embeddings are scaled to length 1.
    """

    views: Views | None
    first: Tensor
    second: Tensor | None
    raw_second: Tensor | None
    ids: Tensor
    rows: Tensor | None
    facts: PairFacts
    distinct: bool
    candidates: Tensor | None
    candidate_ids: Tensor | None
    candidate_rows: Tensor | None
    joined: bool
    guide: tuple[Tensor, Tensor] | None
    candidate_guide: Tensor | None
    weights: Tensor | None
    log_weights: Tensor | None
    positive_log_weights: Tensor | None
    temperature: float | Tensor | None
    unit: bool = True


def check_call(
    loss: Loss,
    z1: Tensor,
    z2: Tensor | None,
    ids: Ids | None,
    rows: Ids | None,
    candidates: Tensor | None,
    candidate_ids: Ids | None,
    candidate_rows: Ids | None,
    gathered: bool | None,
    supports: Tensor | None,
    guide: tuple[Tensor, Tensor] | None,
    candidate_guide: Tensor | None,
    weights: Tensor | None,
    log_weights: Tensor | None,
    positive_log_weights: Tensor | None,
    temperature: float | Tensor | None,
) -> Given:
    """Refuse whatever `Loss.forward`, whose arguments these are, cannot use; nothing has moved until it returns."""
    if (candidates is None) != (candidate_ids is None):
        raise ValueError("candidates and candidate_ids must both be given: the ids keep an anchor's own copy out")
    if z2 is None:
        check_single_view(loss, guide)
        check_embeddings(z1=z1, candidates=candidates)
    else:
        check_embeddings(z1=z1, z2=z2, candidates=candidates)
    numbers = None if ids is None else read_ids(ids, z1)
    check_shapes(z1, z1 if z2 is None else z2, numbers)
    if numbers is None:
        numbers = loss.own_ids(z1, candidates)
    places = None if rows is None else whole_numbers(rows, z1, "rows")
    check_length("rows", places, len(z1))
    if places is None and is_text(ids) and loss.needs_rows:
        raise ValueError("rows are missing: ids are texts, and a policy or the loss looks samples up by table row (B,)")
    if supports is not None:
        check_supports(supports, z1)
    if weights is not None:
        check_weights("weights", weights, len(z1), least=0)
    _check_log_weights(loss, z1, candidates, log_weights, positive_log_weights)
    temperature = call_temperature(temperature)
    # both views in one go, and linked to the graph once it is known how: small batches pay by the operation
    unit = loss.similarity == "cosine"
    both = z1.detach() if z2 is None else torch.cat((z1.detach(), z2.detach()))
    measured = measure(both)
    seen = loss.check_views([measured], numbers, places)
    vectors = view_guide(guide, len(z1))
    views = Views(z1, z2, measured) if z2 is not None and unit else None
    first: Tensor = z1
    second = z2
    joined, key_ids, key_rows = True, None, None
    if candidates is not None and candidate_ids is not None:
        key_ids = read_ids(candidate_ids, z1, "candidate_ids")
        key_rows = None if candidate_rows is None else whole_numbers(candidate_rows, z1, "candidate_rows")
        if z2 is not None and is_same(candidates, z2):  # the second view itself: it needs no arguments of its own
            key_rows = places if key_rows is None else key_rows
            candidate_guide = vectors[1] if candidate_guide is None and vectors is not None else candidate_guide
        check_candidates(z1, candidates, key_ids, places, key_rows, vectors, candidate_guide, gathered)
        joined = check_shares(
            z1, z1 if z2 is None else z2, numbers, candidates, key_ids, gathered, learning=loss.learning
        )
        if views is not None:
            first, second = views.joined().chunk(2)
            views = None
    elif world_size() > 1:
        check_shares(z1, z1 if z2 is None else z2, numbers, learning=loss.learning)
    if views is None and z2 is None:
        first = in_place(z1, measured, unit)
    elif not unit:
        first, second = in_place(z1, measured, unit), None if z2 is None else in_place(z2, measured, unit)
    extent, row_span = seen.known()
    alone = candidates is None and (world_size() == 1) and unit
    return Given(
        views, first, second, z2, numbers, places, PairFacts(extent if alone else None, row_span), seen.distinct,
        candidates, key_ids, key_rows, joined, vectors, candidate_guide, weights, log_weights, positive_log_weights,
        temperature, unit,
    )  # fmt: skip


def _check_log_weights(
    loss: Loss, z1: Tensor, candidates: Tensor | None, log_weights: Tensor | None, positive_log_weights: Tensor | None
) -> None:
    """Refuse log weights that fit neither candidates nor samples, and warn of those that leave the positives out."""
    if log_weights is None and positive_log_weights is None:
        return
    check_weights("candidate_log_weights", log_weights, len(z1 if candidates is None else candidates))
    if positive_log_weights is not None and candidates is None:
        raise ValueError("without candidates the positives have the weights of their samples: leave them out")
    check_weights("positive_log_weights", positive_log_weights, len(z1))
    if loss.sums_positives and positive_log_weights is None and log_weights is not None and candidates is not None:
        loss.warn_once(_ONE_SIDED)


NOT_FINITE = "z1 or z2 hold NaN or infinite numbers: check the encoder's output before the loss"


class ViewFacts(NamedTuple):
    """What checking the views of a batch has found out about them.

    Attributes:
        shortest: Their shortest length.
        lowest_id: The lowest id.
        rows: The lowest and the highest row.
        distinct: Whether no two ids are known to be equal.
    """

    shortest: float
    lowest_id: float
    rows: tuple[int, int]
    distinct: bool

    def known(self) -> tuple[Extent, tuple[int, int]]:
        """The extent and the span of rows of pairs that hold nothing else."""
        return Extent(1.0, float(self.shortest > 0), 1.0, float(self.lowest_id)), self.rows


def examine_views(measured: Sequence[Measured], ids: Tensor, rows: Tensor | None = None) -> ViewFacts:
    """Refuse ids and embeddings that make no sense; everything in one read.

    Args:
        measured: The views, in one pass or one after the other.
        ids: (B,) identities of the samples.
        rows: (B,) where they stand in tables; None takes the ids.

    Raises:
        ValueError: for an id below 0, or embeddings that are not finite (`NotFinite`).
    """
    lengths = [each.span for each in measured if each.span is not None]
    if lengths and on_host(ids):
        of_ids = span_on_host(ids)
        of_rows = of_ids if rows is None else span_on_host(rows)
    else:  # on a device, where it is worth reading everything at once
        *found, of_rows, of_ids = spans(*[each.length for each in measured], ids if rows is None else rows, ids)
        lengths = [each[:2] for each in found]
    if of_ids.lowest < 0:
        raise ValueError(f"ids must be at least 0, got {of_ids.lowest:.0f}: they are dataset indices")
    shortest = math.inf
    for least, longest in lengths:
        if not longest < math.inf:
            raise NotFinite(NOT_FINITE)
        shortest = min(shortest, least)
    return ViewFacts(shortest, of_ids.lowest, (int(of_rows.lowest), int(of_rows.highest)), of_ids.distinct)


FULL = (torch.float32, torch.float64)
_ONE_SIDED = (
    "candidate_log_weights without positive_log_weights leave the positives' logits as they are: "
    "a logQ correction is meant for both"
)


def in_place(embeddings: Tensor, measured: Measured, unit: bool) -> Tensor:
    """Embeddings with their gradient, in float32 or better: at length 1, or as they are for dot products."""
    if unit:
        return link(embeddings, measured)
    return embeddings if embeddings.dtype in FULL else embeddings.float()


def check_single_view(loss: Loss, guide: object) -> None:
    """Refuse a call without second views where something needs them."""
    if not loss.pulls_inside:
        raise ValueError(f"{type(loss).__name__} compares every anchor with a view of its own: give z2")
    if loss.treatment not in ("attract", "attract_inside"):
        raise ValueError(
            "without z2 the positives are the candidates that the policy flags: "
            "give negatives and treatment='attract' or 'attract_inside'"
        )
    if guide is not None or loss.distill is not None:
        raise ValueError("a guide compares both views of a sample: give z2")


def call_temperature(temperature: Any) -> float | Tensor | None:
    """The temperature of one call: a number, or a scalar tensor with its gradient.

    Raises:
        ValueError: if it cannot divide similarities.
    """
    if temperature is None:
        return None
    check_temperature(temperature)
    return temperature.reshape(()) if isinstance(temperature, Tensor) else float(temperature)


def is_text(ids: Any) -> bool:
    """Whether these are texts rather than numbers, by the first of them."""
    if ids is None or isinstance(ids, (Tensor, str)):
        return isinstance(ids, str)
    kind = getattr(getattr(ids, "dtype", None), "kind", None)  # of NumPy
    if kind is not None and kind != "O":
        return bool(kind in "US")
    return hasattr(ids, "__len__") and hasattr(ids, "__getitem__") and len(ids) > 0 and isinstance(ids[0], str)


def read_ids(given: Ids, like: Tensor, name: str = "ids") -> Tensor:
    """Whole numbers as `whole_numbers` reads them, and texts as their hashes.

    Example:
        >>> a, b, again = read_ids(["a", "b", "a"], torch.zeros(3))
        >>> bool(a == again), bool(a == b)
        (True, False)
    """
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(given[0], (Real, str, Tensor)):
        raise ValueError(f"{name} of queries and of documents are two spaces: they go to OneWay or TwoWay")
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, Tensor) and each.dim() for each in given):
        raise ValueError(f"{name} of queries and of documents are two spaces: they go to OneWay or TwoWay")
    if isinstance(given, Tensor) or not is_text(given):
        return whole_numbers(given, like, name)
    try:
        return content_ids(list(given)).to(like.device)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{name} must be whole numbers or texts, all of one kind") from error


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers, as far as that can be told without a synchronisation."""
    if one is other:
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    return one.data_ptr() == other.data_ptr() or (on_host(one) and torch.equal(one, other))


def whole_numbers(given: Ids, like: Tensor, name: str = "ids") -> Tensor:
    """The same numbers as int64 on the device of `like`.

    Raises:
        ValueError: if they are not whole numbers, or so large that their floating type has no room for all of them.

    Example:
        >>> whole_numbers([3.0, 1.0], torch.zeros(2))
        tensor([3, 1])
    """
    if (
        isinstance(given, Tensor)
        and given.dtype is torch.int64
        and given.device == like.device
        and given.layout is torch.strided
    ):
        return given
    try:
        numbers = torch.as_tensor(given).to_dense()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = type(given).__name__
        raise ValueError(f"{name} must be whole numbers, one per sample, got a {kind} of something else") from error
    fractions = numbers.is_floating_point() and not bool((numbers == numbers.floor()).all())
    if numbers.is_complex() or fractions:
        raise ValueError(f"{name} must be whole numbers, got {numbers.dtype} with fractions: they are dataset indices")
    if numbers.is_floating_point() and numbers.numel():
        limit = 2 / torch.finfo(numbers.dtype).eps  # from here on neighbours are the same number
        if not numbers.abs().max().item() < limit:
            raise ValueError(f"{name} in {numbers.dtype} are exact below {limit:.0f} only: give them as int64")
    return numbers.to(like.device, torch.int64)


def own_numbers(count: int, like: Tensor) -> Tensor:
    """Ids for samples that have none: different ones for every sample of the global batch."""
    return apart(torch.arange(count, device=like.device))


def check_embeddings(**given: Any) -> None:
    """Raise a ValueError that names the first argument that is no tensor of embeddings; `candidates` may be None.

    Raises:
        ValueError: also if some are in double precision and others are not, which would be compared across types.
    """
    doubles = []
    for name, each in given.items():
        if each is None and name == "candidates":
            continue
        if not (isinstance(each, Tensor) and each.layout is torch.strided and not each.is_complex() and each.dim()):
            what = describe(each) if isinstance(each, Tensor) else f"a {type(each).__name__}"
            raise ValueError(f"{name} must be a tensor of embeddings, got {what}: torch.stack makes one of a list")
        doubles.append(each.dtype is torch.float64)
    if any(doubles) and not all(doubles):
        types = ", ".join(f"{name} {each.dtype}" for name, each in given.items() if each is not None)
        raise ValueError(f"embeddings must share a precision, got {types}: convert them with .float() or .double()")


def check_weights(name: str, values: Any, count: int, least: float = -math.inf) -> None:
    """Refuse weights that are not one finite floating-point number per sample or candidate.

    Args:
        name: What the user calls them.
        values: (count,), or None for none.
        count: How many there must be.
        least: What none of them may be below.
    """
    if values is None:
        return
    if not is_dense(values) or values.shape != (count,) or not values.is_floating_point():
        what = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(f"{name} must be ({count},) floating-point numbers, got {what}")
    if not count:
        return
    smallest, largest = read(*torch.aminmax(values.detach()))  # NaN is both
    if not max(least, -LARGEST) <= smallest <= largest <= LARGEST:
        bound = "" if least == -math.inf else f" of at least {least:g}"
        raise ValueError(f"{name} must be finite numbers{bound}, got {smallest:g} to {largest:g}")


def check_length(name: str, values: Tensor | None, count: int) -> None:
    """Refuse what is not one number per sample."""
    if values is not None and values.shape != (count,):
        raise ValueError(f"{name} must be one per sample, ({count},), got {tuple(values.shape)}")


def share_of_training(progress: Any) -> float:
    """The share of training done as a number.

    Raises:
        ValueError: if it is none in [0, 1].
    """
    number: Any = progress.item() if isinstance(progress, Tensor) and progress.numel() == 1 else progress
    if not (isinstance(number, Real) and 0 <= float(number) <= 1):
        what = number if isinstance(number, Real) else f"a {type(progress).__name__}"
        raise ValueError(f"progress must be in [0, 1], got {what}: it is the share of training done")
    return float(number)


def check_shapes(z1: Tensor, z2: Tensor, ids: Tensor | None) -> None:
    """Refuse views and ids that do not match."""
    shapes_fit = z1.dim() == 2 and z1.shape == z2.shape and z1.numel()
    if not shapes_fit or (ids is not None and ids.shape != z1.shape[:1]):
        got = None if ids is None else tuple(ids.shape)
        raise ValueError(f"z1 and z2 must be (B, D) and ids (B,), got {tuple(z1.shape)}, {tuple(z2.shape)} and {got}")


def check_supports(supports: Any, z1: Tensor) -> None:
    """Refuse further views that are not like the first, or not finite where reading is free."""
    check_embeddings(supports=supports)
    if supports.dim() != 3 or supports.shape[1:] != z1.shape or not len(supports) or not supports.is_floating_point():
        raise ValueError(f"supports must be (S, B, D) of views like z1, got {describe(supports)}")
    if on_host(supports) and not bool(supports.detach().isfinite().all()):
        raise NotFinite("supports hold NaN or infinite numbers: check the encoder's output before the loss")


def view_guide(guide: tuple[Tensor, Tensor] | None, count: int) -> tuple[Tensor, Tensor] | None:
    """The guide's vectors of both views, normalised and without gradient.

    Raises:
        ValueError: if they are not two (B, G).
    """
    if guide is None:
        return None
    if not isinstance(guide, (tuple, list)) or len(guide) != 2:
        raise ValueError(f"guide must be two ({count}, G), the guide's vectors of both views, got {describe(guide)}")
    for part in guide:
        check_vectors("guide", part)
    if len({part.shape for part in guide}) > 1 or len(guide[0]) != count:
        shapes = " and ".join(str(tuple(part.shape)) for part in guide)
        raise ValueError(f"guide must be two ({count}, G), the guide's vectors of both views, got {shapes}")
    first, second = (_seen("guide", part) for part in guide)
    return first, second


def _seen(name: str, vectors: Tensor) -> Tensor:
    """A guide's vectors at length 1, without gradient; refuse those that are not finite, where reading is free."""
    measured = measure(vectors)
    if measured.span is not None and not math.isfinite(measured.span[1]):
        raise NotFinite(f"{name} holds NaN or infinite numbers: check the guide's vectors")
    return measured.unit


def check_candidates(
    z1: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor,
    rows: Tensor | None,
    candidate_rows: Tensor | None,
    guide: tuple[Tensor, Tensor] | None,
    candidate_guide: Tensor | None,
    gathered: bool | None,
) -> None:
    """Refuse candidates that do not fit the views, or that lack ids, rows or vectors of a guide."""
    check_length("candidate_ids", candidate_ids, len(candidates))
    if candidate_guide is not None:
        check_vectors("candidate_guide", candidate_guide, None if guide is None else guide[0].shape[1])
        if len(candidate_guide) != len(candidates):
            raise ValueError(f"candidate_guide must be ({len(candidates)}, G), got {describe(candidate_guide)}")
    if gathered is not None and not isinstance(gathered, bool):
        raise ValueError(f"gathered must be True, False or None, got {describe(gathered)}")
    if guide is not None and candidate_guide is None:
        raise ValueError("candidates with a guide need the guide's vectors of the candidates: give candidate_guide")
    if candidate_rows is None and rows is not None:
        raise ValueError("rows and candidate_rows must both be given: the candidates have table rows, too")
    check_length("candidate_rows", candidate_rows, len(candidate_ids))
    if candidates.dim() != 2 or candidates.shape[1] != z1.shape[1] or candidate_ids.shape != candidates.shape[:1]:
        shapes = f"{tuple(candidates.shape)} and {tuple(candidate_ids.shape)}"
        raise ValueError(f"candidates must be (C, D) with D = {z1.shape[1]} and candidate_ids (C,), got {shapes}")


def queue_pairs(given: Given) -> Pairs:
    """Queries with their keys as positives and given candidates: one direction.

    Candidates that every rank holds, as those of a queue or bank, stay as they are; shares of them are joined.
    """
    candidates, candidate_ids, candidate_rows = given.candidates, given.candidate_ids, given.candidate_rows
    assert candidates is not None
    assert candidate_ids is not None
    keys = in_place(candidates, measure(candidates), given.unit)
    log_weights, vectors = given.log_weights, given.candidate_guide
    if not given.joined:
        keys, candidate_ids = gather(keys), gather(candidate_ids)
        candidate_rows = None if candidate_rows is None else gather(candidate_rows)
        vectors = None if vectors is None else gather(vectors)
        log_weights = None if log_weights is None else gather(log_weights)
    seen, guide, second = None, given.guide, given.second
    if guide is not None and vectors is not None:
        seen = Guide(guide[0], (guide[0] * guide[1]).sum(1), _seen("candidate_guide", vectors), guide[1])
    positives = torch.zeros_like(given.first[:, 0]) if second is None else (given.first * second).sum(1)
    pairs = Pairs(
        given.first,
        given.ids,
        positives,
        keys,
        candidate_ids,
        None if second is None else second.detach(),
        anchor_rows=given.rows,
        candidate_rows=candidate_rows,
        guide=seen,
        log_weights=log_weights,
        positive_log_weights=given.positive_log_weights,
        has_positive=second is not None,
    )
    return pairs.measured()[0]
