"""What the kernels refuse.

Shapes and dtypes are known at once. Whatever has to be known about the numbers in tensors (are they finite, how large,
which slots are empty) is asked for in one go, because every answer makes the program wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.rule import Rule
from antipodes.functional.tensors import NotFinite, read

Guide = tuple[Tensor, Tensor | None]
"""A guide's vectors of the anchors (A, G) and of the candidates (C, G); None where the anchors are the candidates."""


class Extent(NamedTuple):
    """What kernels must know about the numbers in embeddings and ids; whoever runs several reads it once.

    Attributes:
        longest: the length of the longest anchor; NaN if one is not finite.
        shortest: that of the shortest.
        farthest: that of the longest candidate.
        lowest: the smallest id of the candidates and anchors.
    """

    longest: float
    shortest: float
    farthest: float
    lowest: float

    @staticmethod
    def numbers(anchors: Tensor, candidates: Tensor | None, *ids: Tensor) -> list[Tensor]:
        """Return what has to be read to make one: there must be anchors and candidates."""
        dtype = torch.promote_types(anchors.dtype, torch.float32)
        shortest, longest = torch.linalg.vector_norm(anchors.detach(), dim=1, dtype=dtype).aminmax()
        farthest = longest
        if candidates is not None:
            farthest = torch.linalg.vector_norm(candidates.detach(), dim=1, dtype=dtype).max()
        lowest = ids[0].min() if len(ids) == 1 else torch.cat(ids).min()
        return [longest, shortest, farthest, lowest]


class Questions:
    """Yes-or-no questions to tensors, whose answers are read all at once; a yes refuses the input."""

    def __init__(self) -> None:
        self.conditions: list[Tensor] = []
        self.refusals: list[Callable[[], Exception]] = []

    def refuse(self, condition: Tensor, refusal: Callable[[], Exception]) -> None:
        """Refuse the input if the condition, a tensor of one boolean, holds."""
        self.conditions.append(condition)
        self.refusals.append(refusal)

    def answers(self, *numbers: Tensor) -> list[float]:
        """Raise the first refusal whose condition holds; return these numbers, read with the conditions at once."""
        every = read(*numbers, *self.conditions)
        for flag, refusal in zip(every[len(numbers) :], self.refusals, strict=True):
            if flag:
                raise refusal()
        return every[: len(numbers)]


def check_pairs(anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor) -> None:
    """Refuse embeddings and ids that do not match."""
    if anchors.ndim != 2 or candidates.ndim != 2 or anchors.shape[1] != candidates.shape[1]:
        shapes = f"{tuple(anchors.shape)} and {tuple(candidates.shape)}"
        raise ValueError(f"anchors and candidates must be (A, D) and (C, D), got {shapes}")
    if not anchors.is_floating_point() or anchors.dtype != candidates.dtype:
        dtypes = f"{anchors.dtype} and {candidates.dtype}"
        raise ValueError(f"anchors and candidates must share a floating dtype, got {dtypes}")
    _check_numbers("anchor_ids", anchor_ids, len(anchors))
    _check_numbers("candidate_ids", candidate_ids, len(candidates))


def check_rules(rules: Sequence[Rule], anchors: int, candidates: int, questions: Questions) -> None:
    """Refuse rules that do not fit so many anchors and candidates."""
    if not rules:
        raise ValueError("rules is empty: give at least one Rule(), which keeps every pair")
    for rule in rules:
        for prefix, bounds in (("Rule", rule.bounds), ("Bounds", rule.guide)):
            if bounds is None:
                continue
            for name, bound in bounds.named:
                _check_bound(f"{prefix}.{name}", bound, anchors, questions)
            if bounds.above not in ("drop", "pull"):
                raise ValueError(f'{prefix}.above must be "drop" or "pull", got {bounds.above!r}')
        for group in rule.groups:
            _check_numbers("Group.anchors", group.anchors, anchors)
            _check_numbers("Group.candidates", group.candidates, candidates)
            if group.same not in ("drop", "only", "pull"):
                raise ValueError(f'Group.same must be "drop", "only" or "pull", got {group.same!r}')
        for listed in rule.lists:
            _check_positions("Listed.anchors", listed.anchors, len(listed.anchors), anchors, questions)
            _check_positions("Listed.candidates", listed.candidates, len(listed.anchors), candidates, questions)
            if listed.act not in ("drop", "pull"):
                raise ValueError(f'Listed.act must be "drop" or "pull", got {listed.act!r}')
            if listed.weights is not None:
                _check_weights(listed.weights, listed.act, len(listed.anchors), questions)
        for ranks in rule.ranks:
            if ranks.space not in ("own", "guide"):
                raise ValueError(f'Ranks.space must be "own" or "guide", got {ranks.space!r}')


def checked_temperature(
    temperature: float | Tensor, anchors: Tensor, dtype: torch.dtype, questions: Questions
) -> Tensor:
    """Return the temperature as a tensor, () or (A,), with its gradient; refuse what cannot divide similarities."""
    if not isinstance(temperature, Tensor):
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be positive and finite, got {temperature}")
        return torch.tensor(temperature, dtype=dtype, device=anchors.device)
    if temperature.shape not in ((), anchors.shape[:1]):
        shape = tuple(temperature.shape)
        raise ValueError(
            f"temperature must be a number, a scalar or one per anchor, ({len(anchors)},), got shape {shape}"
        )
    detached = temperature.detach()
    if len(anchors):
        questions.refuse(
            ~((detached > 0) & (detached < torch.inf)).all(),
            lambda: ValueError(f"temperature must be positive and finite, got {float(detached.min())}"),
        )
    return temperature.to(anchors.device)


def checked_guide(
    guide: Guide | None, needed: bool, anchors: int, candidates: int, shared: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    """Return the guide's vectors of anchors and candidates in the dtype of the sums, or None where no rule needs them.

    Args:
        guide: what the caller gave.
        needed: whether a rule looks at it.
        anchors: their number.
        candidates: their number.
        shared: whether the anchors are the candidates.
        dtype: of the sums.
    """
    if guide is None:
        if needed:
            raise ValueError("a rule looks at the guide's space: give guide=(anchor_guides, candidate_guides)")
        return None
    first, second = guide
    if second is None:
        if not shared:
            raise ValueError("guide needs the candidates' vectors as well: give (anchor_guides, candidate_guides)")
        second = first
    fits = first.ndim == 2 and second.ndim == 2 and first.shape[1] == second.shape[1]
    if not fits or (len(first), len(second)) != (anchors, candidates):
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"guide must be ({anchors}, G) for the anchors and ({candidates}, G), got {shapes}")
    if not needed:
        return None
    ours = first.detach().to(dtype)
    return ours, ours if second is first else second.detach().to(dtype)


def checked_offsets(offsets: Tensor, candidates: int, dtype: torch.dtype, questions: Questions) -> Tensor:
    """Return the offsets (C,) in the dtype of the sums; refuse what cannot be added to the logits of candidates."""
    if offsets.shape != (candidates,) or not offsets.is_floating_point():
        what = f"{tuple(offsets.shape)} of {offsets.dtype}"
        raise ValueError(f"offsets must be one floating number per candidate, ({candidates},), got {what}")
    offsets = offsets.detach().to(dtype)
    questions.refuse(~offsets.isfinite().all(), lambda: NotFinite("offsets hold NaN or infinite numbers"))
    return offsets


def not_finite(**embeddings: Tensor) -> Exception | None:
    """Return the refusal of the first of these that hold NaN or infinite numbers, or None."""
    for name, values in embeddings.items():
        if not bool(values.detach().isfinite().all()):
            return NotFinite(f"{name} hold NaN or infinite numbers: check the encoder's output before the loss")
    return None


def check_reach(reach: float, dtype: torch.dtype) -> None:
    """Refuse similarities that are so large that rounding blurs what is a thousandth of a logit apart."""
    limit = 1e-3 / torch.finfo(dtype).eps
    if not reach <= limit:
        raise ValueError(
            f"similarities divided by the temperature reach {reach:.0f}, beyond {limit:.0f} their exponentials are "
            "rounding errors or overflow: normalise the embeddings or raise the temperature"
        )


def _check_numbers(name: str, numbers: Tensor, count: int) -> None:
    if numbers.shape != (count,) or numbers.is_floating_point():
        raise ValueError(f"{name} must be ({count},) integers, got {tuple(numbers.shape)} of {numbers.dtype}")


def _check_bound(name: str, bound: Tensor, anchors: int, questions: Questions) -> None:
    if bound.shape != (anchors,):
        raise ValueError(f"{name} must hold one bound per anchor, ({anchors},), got shape {tuple(bound.shape)}")
    questions.refuse(
        bound.isnan().any(), lambda: ValueError(f"{name} holds NaN: use -inf or inf, or None, where there is no bound")
    )


def _check_weights(weights: Tensor, act: str, count: int, questions: Questions) -> None:
    if act != "pull":
        raise ValueError('Listed.weights say how much pairs are pulled: give act="pull", or no weights to drop pairs')
    if weights.shape != (count,) or not weights.is_floating_point():
        what = f"{tuple(weights.shape)} of {weights.dtype}"
        raise ValueError(f"Listed.weights must be one floating number per pair, ({count},), got {what}")
    questions.refuse(
        ~((weights >= 0) & (weights <= 1)).all(),
        lambda: ValueError("Listed.weights must be in [0, 1]: they say how much a pair is pulled"),
    )


def _check_positions(name: str, positions: Tensor, length: int, count: int, questions: Questions) -> None:
    _check_numbers(name, positions, length)
    questions.refuse(
        ((positions < 0) | (positions >= count)).any(),
        lambda: ValueError(f"{name} must be positions in 0..{count - 1}, got {positions.tolist()[:5]}"),
    )
