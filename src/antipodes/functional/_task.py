"""The task of a kernel: its arguments, checked, with rules as masks and all pairs cut into tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antipodes.functional._arguments import (
    Extent,
    Guide,
    Questions,
    check_pairs,
    check_reach,
    check_rules,
    checked_guide,
    checked_temperature,
    not_finite,
)
from antipodes.functional._masks import Factor, Mask, compile_rule
from antipodes.functional._reading import on_host
from antipodes.functional._tiles import BLOCK, SMALL_BLOCK, Listing, Tile, cut
from antipodes.functional.errors import NotFinite
from antipodes.functional.ranks import bounded
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import FEW_PAIRS, SameSample

TINY_PAIRS = 2**16  # up to this many, fewer operations are worth more than fewer exponentials
RETAINED_PAIRS = 2**20  # up to this many pairs the tiles of the forward pass are kept, 4 MB in float32, or 8 if cold
WARM_REACH = {torch.float32: 55.0, torch.float64: 600.0}  # |s| / tau whose exponentials and their sums need no shift


@dataclass
class Direction:
    """Anchors that look at candidates, with a mask per rule.

    Attributes:
        masks: one per rule.
        mirror: whether the anchors are the columns of the tiles.
        count: the number of anchors.
    """

    masks: tuple[Mask, ...]
    mirror: bool
    count: int


@dataclass
class Task:
    """Everything about a call that has no gradient.

    Attributes:
        tiles: the tiles to walk.
        directions: one, or two that share every tile.
        shared: whether the candidates are the anchors and share their gradient.
        halved: whether tiles below the diagonal are left out besides, because those above stand for them as well.
        direct: whether there is one tile of all pairs, which is small enough to be kept.
        retained: whether tiles are kept for the backward pass instead of being computed again.
        warm: whether exponentials need no shift; bounds are then compared with exponentials, otherwise with logits.
        shifts: whether one shift may do for all of them, where somebody may look at the first tile and at the sums.
        reach: the largest |logit| that there can be.
        guide: the guide's vectors of rows and columns, if a mask asks for them.
        offsets: (C,) what is added to the logits of every candidate, or None.
        rows_need_grad: whether the anchors' gradient will be asked for, by themselves or by the temperature.
        columns_need_grad: whether the candidates' will.
        product: (A, C) the similarities, if there is one tile and the caller has them.
    """

    tiles: tuple[Tile, ...]
    directions: tuple[Direction, ...]
    shared: bool
    halved: bool
    direct: bool
    retained: bool
    warm: bool
    shifts: bool
    reach: float
    guide: tuple[Tensor, Tensor] | None
    offsets: Tensor | None
    rows_need_grad: bool
    columns_need_grad: bool
    product: Tensor | None = None

    @property
    def cells(self) -> int:
        """How many pairs the largest tile has."""
        return max((tile.shape[0] * tile.shape[1] for tile in self.tiles), default=0)

    @property
    def weighted(self) -> bool:
        """Whether numbers of pulled pairs are sums of weights."""
        return any(mask.left for direction in self.directions for mask in direction.masks)

    @property
    def looks(self) -> bool:
        """Whether logits are wanted beside their exponentials: to compare them with bounds, or to pull."""
        return self.pulls or any(mask.looks for direction in self.directions for mask in direction.masks)

    @property
    def pulls(self) -> bool:
        """Whether any rule pulls."""
        return any(mask.pulls for direction in self.directions for mask in direction.masks)


def prepare(
    anchors: Tensor,
    candidates: Tensor | None,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None,
    temperature: float | Tensor,
    rules: Rule | Sequence[Rule],
    block: int | None,
    *,
    mirror_rules: Rule | Sequence[Rule] | None = None,
    offsets: Tensor | None = None,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    product: Tensor | None = None,
    trusted: bool = False,
    halve: bool = True,
    exponentials: bool = True,
    direct: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Task]:
    """Check the arguments of a kernel and cut them into tiles.

    Args:
        anchors: as in `contrast`, like most that follow.
        candidates: None for the anchors themselves.
        anchor_ids: (A,).
        candidate_ids: (C,).
        temperature: of the similarities.
        rules: what to keep and to pull.
        block: the edge of a tile; None chooses it, or one tile for few pairs.
        mirror_rules: those of the candidates as anchors, when both directions are asked for.
        offsets: (C,) added to the logits.
        guide: the guide's vectors.
        same_sample: which candidates are of the anchors' own samples, if somebody found them already.
        extent: of these embeddings and ids, if somebody has read it already.
        product: (A, C) the similarities, if somebody has them already; only few pairs make use of it.
        trusted: whether the rules are the kernel's own, which need no check.
        halve: whether tiles may stand for their mirror images, given that the candidates are the anchors.
        exponentials: whether the kernel works without a shift, on exponentials, where the temperature allows it.
        direct: whether the kernel has a way of its own for few pairs.

    Returns:
        Anchors and candidates in the dtype of the sums, the temperature, () or (A,), and the task.
    """
    ways = [as_rules(rules)] + ([] if mirror_rules is None else [as_rules(mirror_rules)])
    if (candidates is None) != (candidate_ids is None):
        raise ValueError("candidates and candidate_ids go together: give both or neither")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, got {block}: it is the edge of the blocks of pairs")
    shared = candidates is None
    keys = anchors if candidates is None else candidates
    key_ids = anchor_ids if candidate_ids is None else candidate_ids
    check_pairs(anchors, keys, anchor_ids, key_ids)
    questions = Questions()
    if not trusted:
        check_rules(ways[0], anchors.shape[0], keys.shape[0], questions)
    if mirror_rules is not None:
        check_rules(ways[1], keys.shape[0], anchors.shape[0], questions)
    dtype = torch.float64 if anchors.dtype is torch.float64 else torch.float32
    tau = checked_temperature(temperature, anchors, dtype, questions)
    needed = any(rule.needs_guide for each in ways for rule in each)
    guides = checked_guide(guide, needed, anchors.shape[0], keys.shape[0], shared, dtype)
    offsets = None if offsets is None else _checked_offsets(offsets, keys.shape[0], dtype, questions)
    same = SameSample(anchor_ids, key_ids) if same_sample is None else same_sample
    ways[0] = bounded(ways[0], anchors, keys, anchor_ids, key_ids, guide=guides, same_sample=same)
    if mirror_rules is not None:
        turned = None if guides is None else (guides[1], guides[0])
        ways[1] = bounded(ways[1], keys, anchors, key_ids, anchor_ids, guide=turned)

    direct = direct and block is None and few_pairs(len(anchors), len(keys))
    reach, lowest = _look(anchors, keys, temperature, tau, offsets, (anchor_ids, key_ids), extent, questions)
    warm, empty = exponentials and reach <= WARM_REACH[dtype], lowest < 0
    if not warm and mirror_rules is not None and len(anchors) * len(keys) > TINY_PAIRS:
        direct = False  # the stream has one exponential for both directions
    if empty and not direct and mirror_rules is None:  # leave the slots out before the products
        filled = (key_ids >= 0).nonzero().squeeze(1)
        keys, key_ids, shared, empty = keys[filled], key_ids[filled], False, False
        offsets = None if offsets is None else offsets[filled]
        guides = None if guides is None else (guides[0], guides[1][filled])
        ways = [tuple(rule.of_candidates(filled) for rule in ways[0])]
        same = same.of_candidates(filled)
    lists = any(rule.lists for each in ways for rule in each)
    lopsided = (guides is not None and guides[0] is not guides[1]) or offsets is not None
    even = shared and halve and not (tau.ndim or lists or lopsided)  # pair (i, k) weighs as much as pair (k, i)
    halved = even and not direct

    anchors = as_dtype(anchors, dtype)
    keys = anchors if shared else as_dtype(keys, dtype)
    tau = as_dtype(tau, dtype)
    tiles: tuple[Tile, ...]
    others: tuple[Tensor, Tensor] | None
    if direct:
        shape, others = (anchors.shape[0], keys.shape[0]), None
        tiles = (Tile(0, slice(0, shape[0]), slice(0, shape[1]), shape, False, None),)
    else:
        pairs = _same_sample_pairs(same, limit=8 * (anchors.shape[0] + keys.shape[0]))
        others = None if pairs is None else _others(pairs, anchors.shape[0], keys.shape[0])
        listing = None if pairs is None or not pairs[0].shape[0] else Listing(*pairs)
        edges = _edges(anchors, keys, block, two_ways=mirror_rules is not None)
        tiles = cut(anchors.shape[0], keys.shape[0], *edges, halved, listing)
    with_grad, fixed = torch.is_grad_enabled(), None if direct else tau.detach()
    own = same.spaces(dtype) if others is None else []
    sizes, slots = (len(anchor_ids), len(key_ids)), (anchor_ids, key_ids) if empty else None
    rows_need_grad = with_grad and (anchors.requires_grad or tau.requires_grad)
    task = Task(
        tiles=tiles,
        directions=tuple(
            _direction(each, sizes[place], bool(place), fixed, warm, tiles, even, others, own, slots, dtype)
            for place, each in enumerate(ways)
        ),
        shared=shared,
        halved=halved,
        direct=direct,
        retained=with_grad and keys.requires_grad and anchors.shape[0] * keys.shape[0] <= RETAINED_PAIRS,
        warm=warm,
        shifts=dtype is torch.float32 and offsets is None and on_host(anchors),
        reach=reach,
        guide=guides if needed else None,
        offsets=offsets,
        rows_need_grad=rows_need_grad,
        columns_need_grad=with_grad and keys.requires_grad,
        product=product if direct else None,
    )
    return anchors, keys, tau, task


def _edges(anchors: Tensor, keys: Tensor, block: int | None, two_ways: bool) -> tuple[int, int]:
    """The height and the width of tiles: as asked for, all of few pairs, or such that no tile is a narrow rest."""
    counts = (anchors.shape[0], keys.shape[0])
    if block is not None:
        return block, block
    few, host = few_pairs(*counts), anchors.device.type == "cpu"
    if few and not (two_ways and host):
        return counts
    most = SMALL_BLOCK if few else BLOCK if host else 4096
    height, width = (8 * math.ceil(count / math.ceil(count / most) / 8) if count else 1 for count in counts)
    return height, width


def few_pairs(anchors: int, candidates: int) -> bool:
    """Whether all pairs of so many are one tile."""
    return 0 < anchors * candidates <= FEW_PAIRS


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in that dtype, without the price of asking where it is in it already."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def as_rules(rules: Rule | Sequence[Rule]) -> tuple[Rule, ...]:
    """Return one rule or several as several."""
    return (rules,) if isinstance(rules, Rule) else tuple(rules)


def _checked_offsets(offsets: Tensor, candidates: int, dtype: torch.dtype, questions: Questions) -> Tensor:
    if offsets.shape != (candidates,) or not offsets.is_floating_point():
        what = f"{tuple(offsets.shape)} of {offsets.dtype}"
        raise ValueError(f"offsets must be one floating number per candidate, ({candidates},), got {what}")
    offsets = offsets.detach().to(dtype)
    questions.refuse(~offsets.isfinite().all(), lambda: NotFinite("offsets hold NaN or infinite numbers"))
    return offsets


def _look(
    anchors: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    tau: Tensor,
    offsets: Tensor | None,
    ids: tuple[Tensor, Tensor],
    extent: Extent | None,
    questions: Questions,
) -> tuple[float, float]:
    """Refuse what is not finite or too large; return the largest |logit| that there can be, and the smallest id."""
    if not (anchors.shape[0] and keys.shape[0]):
        questions.answers()
        return 0.0, -1.0
    asked = [] if isinstance(temperature, float | int) else [tau.detach().min()]
    asked += [] if offsets is None else [offsets.abs().max()]
    shared = keys is anchors
    rest = Extent.numbers(anchors, None if shared else keys, *ids[: 1 if shared else 2]) if extent is None else []
    answers = questions.answers(*asked, *rest)
    coldest = float(temperature) if isinstance(temperature, float | int) else answers.pop(0)
    shifted = 0.0 if offsets is None else answers.pop(0)
    extent = Extent(*answers) if extent is None else extent
    reach = extent.longest * extent.farthest / coldest  # |s| / tau is at most this
    if not reach < torch.inf:
        refusal = not_finite(anchors=anchors, candidates=keys)
        if refusal is not None:
            raise refusal
    check_reach(reach, tau.dtype)
    return reach + shifted, extent.lowest


def _same_sample_pairs(same: SameSample, limit: int) -> tuple[Tensor, Tensor] | None:
    """List the pairs of one sample, rows in order; None if there are more than the limit, or if looking would stall."""
    if not on_host(same.anchor_ids) or same.number_of_pairs() > limit:
        return None
    return same.pairs()


def _others(same: tuple[Tensor, Tensor], anchors: int, candidates: int) -> tuple[Tensor, Tensor]:
    """How many pairs every anchor and every candidate is in, apart from these."""
    of_anchors, of_candidates = (
        torch.bincount(part, minlength=count) for part, count in zip(same, (anchors, candidates), strict=True)
    )
    return candidates - of_anchors, anchors - of_candidates


def _direction(
    rules: Sequence[Rule],
    count: int,
    mirror: bool,
    tau: Tensor | None,
    warm: bool,
    tiles: Sequence[Tile],
    even: bool,
    others: tuple[Tensor, Tensor] | None,
    own: Sequence[tuple[Tensor, Tensor]],
    ids: tuple[Tensor, Tensor] | None,
    dtype: torch.dtype,
) -> Direction:
    """Compile the rules of one direction.

    Bounds are those of similarities without `tau`, otherwise of logits or, where it is warm, of their exponentials.

    Args:
        rules: of the direction.
        count: the number of anchors.
        mirror: whether its anchors are the columns of the tiles.
        tau: the temperature, or None.
        warm: as in `Task`.
        tiles: all of them.
        even: whether pair (i, k) is as good as pair (k, i).
        others: how many pairs the rows and the columns are in apart from those of one sample, which tiles list.
        own: numbers of rows and columns that must differ, one pair per space, where tiles do not list equal ones.
        ids: those of rows and columns if some are negative.
        dtype: of the sums.
    """

    def scale(bound: Tensor) -> Tensor:
        if tau is None:
            return bound
        return torch.exp(bound / tau) if warm else bound / tau

    masks = [compile_rule(rule, scale, tiles, dtype, even, mirror) for rule in rules]
    for each in own:  # first, so that a mask of nothing else needs no second block
        anchors, candidates = each[::-1] if mirror else each
        factor = Factor(torch.ne, "group", candidates, anchors)
        masks = [mask._replace(keep=(factor, *mask.keep)) for mask in masks]
    if ids is not None:
        anchor_ids, candidate_ids = ids[::-1] if mirror else ids
        filled = (candidate_ids >= 0).to(dtype)
        slot = Factor(torch.ge, "group", filled, torch.full_like(anchor_ids, 0.5, dtype=dtype))
        masks = [mask._replace(keep=(*mask.keep, slot), mutual=False) for mask in masks]
    elif others is not None:
        kept = others[1 if mirror else 0]
        masks = [mask if mask.keep or mask.dropped else mask._replace(kept=kept) for mask in masks]
    return Direction(tuple(masks), mirror, count)
