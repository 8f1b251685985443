"""What a user hands to a loss, checked and turned into pairs: ids of any kind, views, candidates, weights, a guide."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from antipodes.arguments import LARGEST, check_vectors, describe, is_dense
from antipodes.distributed import gather, rank
from antipodes.functional._reading import on_host, read
from antipodes.functional.errors import NotFinite
from antipodes.functional.normalise import measure
from antipodes.losses.shares import check_shares
from antipodes.pairs import Guide, Pairs, normalise

Ids = Tensor | Sequence[int] | Any
"""Whole numbers: a tensor, a list or a NumPy array."""


def whole_numbers(given: Ids, like: Tensor, name: str = "ids") -> Tensor:
    """The same numbers as int64 on the device of `like`.

    Raises:
        ValueError: if they are not whole numbers, or so large that their floating type has no room for all of them.

    Example:
        >>> whole_numbers([3.0, 1.0], torch.zeros(2))
        tensor([3, 1])
    """
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
    return torch.arange(rank() * count, (rank() + 1) * count, device=like.device)


def check_embeddings(**given: Any) -> None:
    """Raise a ValueError that names the first argument that is no tensor of embeddings; `candidates` may be None.

    Raises:
        ValueError: also if some are in double precision and others are not, which would be compared across types.
    """
    tensors = {name: each for name, each in given.items() if each is not None or name != "candidates"}
    for name, each in tensors.items():
        if not is_dense(each) or each.is_complex() or not each.dim():
            what = describe(each) if isinstance(each, Tensor) else f"a {type(each).__name__}"
            raise ValueError(f"{name} must be a tensor of embeddings, got {what}: torch.stack makes one of a list")
    if len({each.dtype == torch.float64 for each in tensors.values()}) > 1:
        types = ", ".join(f"{name} {each.dtype}" for name, each in tensors.items())
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
    """Refuse views and ids that do not fit together."""
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


def queue_pairs(
    first: Tensor,
    second: Tensor,
    ids: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor,
    rows: Tensor | None = None,
    candidate_rows: Tensor | None = None,
    guide: tuple[Tensor, Tensor] | None = None,
    candidate_guide: Tensor | None = None,
    log_weights: Tensor | None = None,
    positive_log_weights: Tensor | None = None,
    gathered: bool | None = None,
) -> Pairs:
    """Queries with their keys as positives and given candidates: one direction.

    Args:
        first: (b, D) normalised queries, this rank's share.
        second: (b, D) normalised keys.
        ids: (b,) identities.
        candidates: (c, D) of any length.
        candidate_ids: (c,), -1 for empty slots.
        rows: (b,) table rows; None takes the ids.
        candidate_rows: (c,) table rows; None takes the ids.
        guide: The guide's normalised vectors (b, G) of queries and keys.
        candidate_guide: (c, G) those of the candidates.
        log_weights: (c,) by which the candidates' logits are raised.
        positive_log_weights: (b,) by which those of the positives are.
        gathered: Whether every rank gives the same candidates; False joins the shares that the ranks give. None finds
            out by their ids: those of a queue or bank that every rank holds are equal, and so are its vectors.
    """
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
        raise ValueError("rows and candidate_rows go together: give the table rows of the candidates, too")
    check_length("candidate_rows", candidate_rows, len(candidate_ids))
    if candidates.dim() != 2 or candidates.shape[1] != first.shape[1] or candidate_ids.shape != candidates.shape[:1]:
        shapes = f"{tuple(candidates.shape)} and {tuple(candidate_ids.shape)}"
        raise ValueError(f"candidates must be (C, D) with D = {first.shape[1]} and candidate_ids (C,), got {shapes}")
    keys = normalise(candidates)
    if not check_shares(first, second, ids, candidates, candidate_ids, gathered):
        keys, candidate_ids = gather(keys), gather(candidate_ids)
        candidate_rows = None if candidate_rows is None else gather(candidate_rows)
        candidate_guide = None if candidate_guide is None else gather(candidate_guide)
        log_weights = None if log_weights is None else gather(log_weights)
    seen = None
    if guide is not None and candidate_guide is not None:
        seen = Guide(guide[0], (guide[0] * guide[1]).sum(1), _seen("candidate_guide", candidate_guide), guide[1])
    return Pairs(
        first,
        ids,
        (first * second).sum(1),
        keys,
        candidate_ids,
        second.detach(),
        anchor_rows=rows,
        candidate_rows=candidate_rows,
        guide=seen,
        log_weights=log_weights,
        positive_log_weights=positive_log_weights,
    )
