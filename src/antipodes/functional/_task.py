"""The task of a kernel: its arguments, checked, with rules as masks and all pairs cut into tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from antipodes.functional._arguments import (
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
from antipodes.functional._tiles import BLOCK, WIDE, Listing, Tile, cut
from antipodes.functional.errors import NotFinite
from antipodes.functional.ranks import bounded
from antipodes.functional.rule import Group, Rule
from antipodes.functional.same_sample import SameSample

DIRECT_PAIRS = 2**17  # up to this many pairs there is one tile, which is kept for the backward pass
RETAINED_PAIRS = 2**20  # up to this many pairs the tiles of the forward pass are kept, 4 MB in float32 at most
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
        halved: whether the candidates are the anchors and tiles below the diagonal are left out, because those above
            stand for them as well; both gradients are then one.
        direct: whether there is one tile of all pairs, which is small enough to be kept.
        retained: whether tiles are kept for the backward pass instead of being computed again.
        warm: whether exponentials need no shift; bounds are then compared with exponentials, otherwise with logits.
        guide: the guide's vectors of rows and columns, if a mask asks for them.
        offsets: (C,) what is added to the logits of every candidate, or None.
        rows_need_grad: whether the anchors' gradient will be asked for, by themselves or by the temperature.
        columns_need_grad: whether the candidates' will.
        questions: what has to be asked before anything is returned, if it has not been yet.
    """

    tiles: tuple[Tile, ...]
    directions: tuple[Direction, ...]
    halved: bool
    direct: bool
    retained: bool
    warm: bool
    guide: tuple[Tensor, Tensor] | None
    offsets: Tensor | None
    rows_need_grad: bool
    columns_need_grad: bool
    questions: Questions = field(default_factory=Questions)

    @property
    def cells(self) -> int:
        """How many pairs the largest tile has."""
        return max((tile.shape[0] * tile.shape[1] for tile in self.tiles), default=0)

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
        halve: whether tiles may stand for their mirror images, given that the candidates are the anchors.
        exponentials: whether the kernel works without a shift, on exponentials, where the temperature allows it.
        direct: whether the kernel has a way of its own for few pairs.

    Returns:
        Anchors and candidates in the dtype of the sums, the temperature, () or (A,), and the task.
    """
    ways = [_as_tuple(rules)] + ([] if mirror_rules is None else [_as_tuple(mirror_rules)])
    if (candidates is None) != (candidate_ids is None):
        raise ValueError("candidates and candidate_ids go together: give both or neither")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, got {block}: it is the edge of the blocks of pairs")
    shared = candidates is None
    keys = anchors if candidates is None else candidates
    key_ids = anchor_ids if candidate_ids is None else candidate_ids
    check_pairs(anchors, keys, anchor_ids, key_ids)
    questions = Questions()
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

    direct = direct and block is None and 0 < anchors.shape[0] * keys.shape[0] <= DIRECT_PAIRS
    warm = False
    if direct:
        empty = key_ids.device.type != "cpu" or _lowest(*((key_ids,) if shared else (key_ids, anchor_ids))) < 0
    else:
        reach, lowest = _look(anchors, keys, tau, offsets, torch.cat((key_ids, anchor_ids)), dtype, questions)
        warm, empty = exponentials and reach <= WARM_REACH[dtype], lowest < 0
    if empty and not direct and mirror_rules is None:  # leave the slots out before the products
        filled = (key_ids >= 0).nonzero().squeeze(1)
        keys, key_ids, shared, empty = keys[filled], key_ids[filled], False, False
        offsets = None if offsets is None else offsets[filled]
        guides = None if guides is None else (guides[0], guides[1][filled])
        ways = [tuple(rule.of_candidates(filled) for rule in ways[0])]
        same = SameSample(anchor_ids, key_ids)
    lists = any(rule.lists for each in ways for rule in each)
    lopsided = (guides is not None and guides[0] is not guides[1]) or offsets is not None
    halved = shared and halve and not (direct or tau.ndim or lists or lopsided)

    anchors = as_dtype(anchors, dtype)
    keys = anchors if shared else as_dtype(keys, dtype)
    tau = as_dtype(tau, dtype)
    tiles: tuple[Tile, ...]
    others: tuple[Tensor, ...] | None
    if direct:
        tiles, others = _one_tile(same, mirror_rules is not None)
    else:
        pairs = _same_sample_pairs(same, limit=8 * (anchors.shape[0] + keys.shape[0]))
        others = None if pairs is None else _others(pairs, anchors.shape[0], keys.shape[0])
        listing = None if pairs is None or not pairs[0].shape[0] else Listing(*pairs)
        several = anchors.device.type == "cpu" and torch.get_num_threads() > 1
        height = block or (BLOCK if anchors.device.type == "cpu" else 4096)
        width = height * (WIDE if several and block is None else 1)
        tiles = cut(anchors.shape[0], keys.shape[0], height, width, halved, listing)
    if others is None:  # a list of them would outgrow the embeddings: compare ids like groups
        own = (Rule(groups=(Group(anchor_ids, key_ids),)), Rule(groups=(Group(key_ids, anchor_ids),)))
        ways = [tuple(rule & own[place] for rule in each) for place, each in enumerate(ways)]
    with_grad, ids, fixed = torch.is_grad_enabled(), (anchor_ids, key_ids), tau.detach()
    rows_need_grad = with_grad and (anchors.requires_grad or tau.requires_grad)
    task = Task(
        tiles=tiles,
        directions=tuple(
            _direction(each, bool(place), fixed, warm, tiles, halved, others, ids, empty)
            for place, each in enumerate(ways)
        ),
        halved=halved,
        direct=direct,
        retained=with_grad and keys.requires_grad and anchors.shape[0] * keys.shape[0] <= RETAINED_PAIRS,
        warm=warm,
        guide=guides if needed else None,
        offsets=offsets,
        rows_need_grad=rows_need_grad,
        columns_need_grad=with_grad and keys.requires_grad,
        questions=questions,
    )
    return anchors, keys, tau, task


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in that dtype, without the price of asking where it is in it already."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def _as_tuple(rules: Rule | Sequence[Rule]) -> tuple[Rule, ...]:
    return (rules,) if isinstance(rules, Rule) else tuple(rules)


def _checked_offsets(offsets: Tensor, candidates: int, dtype: torch.dtype, questions: Questions) -> Tensor:
    if offsets.shape != (candidates,) or not offsets.is_floating_point():
        what = f"{tuple(offsets.shape)} of {offsets.dtype}"
        raise ValueError(f"offsets must be one floating number per candidate, ({candidates},), got {what}")
    offsets = offsets.detach().to(dtype)
    questions.refuse(~offsets.isfinite().all(), lambda: NotFinite("offsets hold NaN or infinite numbers"))
    return offsets


def _lowest(*ids: Tensor) -> int:
    """The smallest of ids on a CPU, where looking makes nobody wait."""
    return min((int(each.numpy().min()) for each in ids if len(each)), default=0)


def _look(
    anchors: Tensor,
    keys: Tensor,
    tau: Tensor,
    offsets: Tensor | None,
    ids: Tensor,
    dtype: torch.dtype,
    questions: Questions,
) -> tuple[float, float]:
    """Refuse what is not finite or too large; return the largest |logit| that there can be, and the smallest id."""
    if not (anchors.shape[0] and keys.shape[0]):
        questions.answers(torch.zeros((), device=anchors.device))
        return 0.0, -1.0
    parts = (anchors,) if keys is anchors else (anchors, keys)
    lengths = [torch.linalg.vector_norm(part.detach(), dim=1, dtype=dtype).max() for part in parts]
    shift = torch.zeros_like(lengths[0]) if offsets is None else offsets.abs().max()
    coldest, lowest, shifted, *longest = questions.answers(tau.min(), ids.min(), shift, *lengths)
    reach = longest[0] * longest[-1] / coldest  # |s| / tau is at most this
    if not reach < torch.inf:
        refusal = not_finite(anchors=anchors, candidates=keys)
        if refusal is not None:
            raise refusal
    check_reach(reach, dtype)
    return reach + shifted, lowest


def _same_sample_pairs(same: SameSample, limit: int) -> tuple[Tensor, Tensor] | None:
    """List the pairs of one sample, rows in order; None if there are more than the limit, or if looking would stall."""
    if same.anchor_ids.device.type != "cpu" or same.count.numpy().sum() > limit:
        return None
    return same.pairs()


def _others(same: tuple[Tensor, Tensor], anchors: int, candidates: int) -> tuple[Tensor, Tensor]:
    """How many pairs every anchor and every candidate is in, apart from these."""
    of_anchors, of_candidates = (
        torch.bincount(part, minlength=count) for part, count in zip(same, (anchors, candidates), strict=True)
    )
    return candidates - of_anchors, anchors - of_candidates


def _one_tile(same: SameSample, both: bool) -> tuple[tuple[Tile, ...], tuple[Tensor, ...] | None]:
    """Return all pairs as one tile, and how many others than its own sample every anchor and, for both, candidate has.

    On a CPU the pairs of one sample are listed; elsewhere looking at them would stall, and there are no such numbers.
    """
    rows, columns = same.anchor_ids.shape[0], same.candidate_ids.shape[0]
    every = (slice(0, rows), slice(0, columns), (rows, columns), False)
    if same.anchor_ids.device.type != "cpu":
        return (Tile(0, *every, None),), None
    flat = same.in_one_block
    others = [columns - np.bincount(flat // columns, minlength=rows)]
    if both:
        others.append(rows - np.bincount(flat % columns, minlength=columns))
    excluded = torch.from_numpy(flat) if len(flat) else None
    return (Tile(0, *every, excluded),), tuple(torch.from_numpy(each) for each in others)


def _direction(
    rules: Sequence[Rule],
    mirror: bool,
    tau: Tensor,
    warm: bool,
    tiles: Sequence[Tile],
    halved: bool,
    others: tuple[Tensor, ...] | None,
    ids: tuple[Tensor, Tensor],
    empty: bool,
) -> Direction:
    """Compile the rules of one direction; `ids` are those of rows and columns, `empty` says that some are negative."""
    anchor_ids, candidate_ids = ids[::-1] if mirror else ids

    def scale(bound: Tensor) -> Tensor:
        return torch.exp(bound / tau) if warm else bound / tau

    masks = [compile_rule(rule, scale, tiles, tau.dtype, halved, mirror) for rule in rules]
    if empty:
        filled = (candidate_ids >= 0).to(tau.dtype)
        slot = Factor(torch.ge, "group", filled, torch.full_like(anchor_ids, 0.5, dtype=tau.dtype))
        masks = [mask._replace(keep=(*mask.keep, slot), mutual=False) for mask in masks]
    elif others is not None:
        kept = others[1 if mirror else 0]
        masks = [mask if mask.keep or mask.dropped else mask._replace(kept=kept) for mask in masks]
    return Direction(tuple(masks), mirror, anchor_ids.shape[0])
