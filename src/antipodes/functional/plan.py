"""`Plan`: everything about a call of the kernel that has no gradient, worked out before a similarity is computed.

1. The inputs are checked: shapes at once, and whatever depends on numbers in tensors in a single read.
2. The path is chosen: `dense` keeps all pairs as one matrix, `stream` cuts them into tiles.
3. Exponentials need no shift while |s| / tau is small; otherwise every anchor's are relative to its largest logit.
4. Rules become masks, and candidates in empty slots are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from antipodes.functional.checks import (
    Extent,
    Guide,
    Questions,
    check_pairs,
    check_reach,
    check_rules,
    checked_guide,
    checked_offsets,
    checked_temperature,
    not_finite,
)
from antipodes.functional.masks import (
    CPU_EDGE,
    DEVICE_EDGE,
    Factor,
    Listing,
    Mask,
    Tile,
    compile_rule,
    cut,
    edges,
    whole,
)
from antipodes.functional.rule import EVERY_PAIR, Rule
from antipodes.functional.same_sample import SameSample, few_pairs
from antipodes.functional.select import bounded
from antipodes.functional.tensors import on_host


@dataclass(frozen=True)
class Teacher:
    """The weights w_ik = exp(t_i . k_k / T - reference_i) of pulled pairs, at most 1, as constants.

    Attributes:
        vectors: (A, G) the teacher's vector t of every anchor, divided by the teacher's temperature T.
        candidates: (C, G) the candidates k as the teacher sees them; a zero vector is unknown and weighs 0.
        reference: (R, A) what weights are relative to, by rule; infinite for an anchor whose weights are all 0.
    """

    vectors: Tensor
    candidates: Tensor
    reference: Tensor

    def of_candidates(self, positions: Tensor) -> Teacher:
        """Return the teacher for the candidates at these positions."""
        return replace(self, candidates=self.candidates[positions])

    def logits(self, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Return t_i . k_k / T (h, w) of some anchors and candidates."""
        return torch.mm(self.vectors[rows], self.candidates[columns].T, out=out)

    def weights(self, rule: int, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Return the weights (h, w) of some anchors and candidates under a rule."""
        said = self.logits(rows, columns, out).sub_(self.reference[rule, rows, None])
        known = self.candidates[columns].any(1).to(said.dtype)
        return said.clamp_(max=0.0).exp_().mul_(known)


Kernel = Literal["auto", "dense", "stream"]
"""How pairs are summed: all at once as a matrix, tile by tile, or whichever is faster for their number."""

PairFunction = Literal["softmax", "sigmoid", "soft sigmoid", "none"]
"""What is summed over pairs: functions of a pair's logit z = s / tau.

| function | summed over kept pairs | summed over pulled pairs |
|---|---|---|
| `softmax` | e^z, and then the logarithm is taken | s |
| `sigmoid` | softplus(z) of kept pairs that are not pulled | softplus(-z) |
| `soft sigmoid` | softplus(z) of all kept pairs | nothing |
| `none` | nothing | s |
"""

Shift = Literal["none", "peak"]
"""What is subtracted from an anchor's logits before their exponentials: nothing, or the largest of those it keeps.

One shift for all anchors would do in float32 down to tau = 0.01 or so. It made the loss of 2,048 pairs a seventh faster
there, which is 1.2 % of a training step of resnet8-slim, so there is none.
"""

UNSHIFTED_REACH = {torch.float32: 55.0, torch.float64: 600.0}
"""Up to this |s| / tau exponentials and sums of millions of them neither overflow nor underflow."""


class Inputs(NamedTuple):
    """The arguments of a kernel, as in `contrast`.

    Attributes:
        anchors: (A, D).
        candidates: (C, D); None for the anchors themselves.
        anchor_ids: (A,).
        candidate_ids: (C,); None where the candidates are.
        temperature: a number, () or (A,).
        rules: with the anchors as anchors.
        mirror_rules: with the candidates as anchors, where both directions are asked for.
        offsets: (C,) added to the logits.
        guide: the guide's vectors of anchors and candidates.
        teacher: weighs what is pulled.
        same_sample: which candidates are of the anchors' own samples, if that is known.
        extent: facts about the numbers in embeddings and ids, if they are known.
        product: (A, C) the similarities, if they are known; the dense kernel makes use of them.
        trusted: whether the rules need no check, which reads numbers from their bounds.
    """

    anchors: Tensor
    candidates: Tensor | None
    anchor_ids: Tensor
    candidate_ids: Tensor | None
    temperature: float | Tensor
    rules: Rule | Sequence[Rule]
    mirror_rules: Rule | Sequence[Rule] | None = None
    offsets: Tensor | None = None
    guide: Guide | None = None
    teacher: Teacher | None = None
    same_sample: SameSample | None = None
    extent: Extent | None = None
    product: Tensor | None = None
    trusted: bool = False


class Direction(NamedTuple):
    """Anchors that are compared with candidates, with a mask per rule.

    Attributes:
        masks: one per rule.
        mirror: whether the anchors are the columns of the matrix of pairs.
        anchors: how many there are.
        same_sample: which candidates are of the anchors' own samples.
        plain: whether it is known that every rule keeps all pairs of different samples and pulls none.
    """

    masks: tuple[Mask, ...]
    mirror: bool
    anchors: int
    same_sample: SameSample
    plain: bool = False

    @property
    def pulls(self) -> bool:
        """Whether any rule pulls."""
        return not self.plain and any(mask.pulls for mask in self.masks)


class Plan(NamedTuple):
    """What both kernels need to know about a call.

    Attributes:
        function: what is summed over pairs.
        dense: whether all pairs are one matrix; otherwise tiles are visited one after the other.
        shift: what exponentials are relative to.
        tiles: the blocks of pairs of the streaming kernel; the dense kernel judges each direction as a whole.
        directions: one, or two that share the similarities.
        shared: whether the candidates are the anchors and share their gradient.
        halved: whether tiles below the diagonal are left out, because those above stand for them as well.
        guide: the guide's vectors of rows and columns, if a mask asks for them.
        offsets: (C,) what is added to the logits of every candidate, or None.
        teacher: weighs what is pulled, or None.
        rows_need_grad: whether the anchors' gradient will be asked for, by themselves or by the temperature.
        columns_need_grad: whether the candidates' will.
        product: (A, C) the similarities, if the caller has them.
    """

    function: PairFunction
    dense: bool
    shift: Shift
    tiles: tuple[Tile, ...]
    directions: tuple[Direction, ...]
    shared: bool
    halved: bool = False
    guide: tuple[Tensor, Tensor] | None = None
    offsets: Tensor | None = None
    teacher: Teacher | None = None
    rows_need_grad: bool = True
    columns_need_grad: bool = True
    product: Tensor | None = None

    @property
    def pulls(self) -> bool:
        """Whether any rule pulls."""
        return any(direction.pulls for direction in self.directions)

    @property
    def weighted(self) -> bool:
        """Whether numbers of pulled pairs are sums of weights."""
        return self.teacher is not None or any(mask.left for each in self.directions for mask in each.masks)


def make_plan(
    inputs: Inputs, function: PairFunction = "softmax", kernel: Kernel = "auto", block: int | None = None
) -> tuple[Tensor, Tensor, Tensor, Plan]:
    """Check the inputs of a kernel and plan its work.

    Args:
        inputs: what is compared.
        function: what is summed over pairs.
        kernel: the path; `auto` is dense for few pairs, unless a block is given.
        block: the edge of the tiles; None chooses it.

    Returns:
        Anchors (A, D) and candidates (C, D) in the dtype of the sums, without empty slots, the temperature, () or (A,),
        and the plan.
    """
    if function == "softmax" and kernel == "auto" and block is None:
        found = _plan_known(inputs)
        if found is not None:
            return found
    anchors, keys, ids = inputs.anchors, *_candidates(inputs)
    questions = Questions()
    rules = [as_rules(each) for each in (inputs.rules, inputs.mirror_rules) if each is not None]
    sizes = (anchors.shape[0], keys.shape[0])
    for each, count, others in zip(rules, sizes, sizes[::-1], strict=False):
        if not inputs.trusted:
            check_rules(each, count, others, questions)
    dtype = torch.float64 if anchors.dtype is torch.float64 else torch.float32
    tau = checked_temperature(inputs.temperature, anchors, dtype, questions)
    guided = any(rule.needs_guide for each in rules for rule in each)
    guide = checked_guide(inputs.guide, guided, *sizes, inputs.candidates is None, dtype)
    offsets = None if inputs.offsets is None else checked_offsets(inputs.offsets, sizes[1], dtype, questions)
    reach, lowest_id = _measure(inputs, keys, tau, offsets, ids, questions)

    dense = _is_dense(kernel, block, sizes)
    same = inputs.same_sample or SameSample(*ids)
    rules = _without_ranks(rules, anchors, keys, ids, guide, same)
    teacher, shared = inputs.teacher, inputs.candidates is None
    empty = lowest_id < 0 and not dense
    if empty and len(rules) == 1:  # leave the slots out before the products
        filled = (ids[1] >= 0).nonzero().squeeze(1)
        keys, ids, shared, empty = keys[filled], (ids[0], ids[1][filled]), False, False
        offsets = None if offsets is None else offsets[filled]
        guide = None if guide is None else (guide[0], guide[1][filled])
        teacher = None if teacher is None else teacher.of_candidates(filled)
        rules, same = [tuple(rule.of_candidates(filled) for rule in rules[0])], same.of_candidates(filled)
    sided = offsets is not None or teacher is not None or (guide is not None and guide[0] is not guide[1])
    listed = any(rule.lists for each in rules for rule in each)
    symmetric = shared and not (dense or tau.ndim or sided or listed)

    anchors = as_dtype(anchors, dtype)
    keys = anchors if shared else as_dtype(keys, dtype)
    tau = as_dtype(tau, dtype)
    if dense:
        tiles: tuple[Tile, ...] = ()
        directions = _dense_directions(rules, same, dtype)
    else:
        tiles, directions = _tiled(rules, anchors, keys, ids, same, tau.detach(), block, symmetric, empty)
    with_grad = torch.is_grad_enabled()
    return (
        anchors,
        keys,
        tau,
        Plan(
            function=function,
            dense=dense,
            shift="none" if reach <= UNSHIFTED_REACH[dtype] else "peak",
            tiles=tiles,
            directions=directions,
            shared=shared,
            halved=symmetric,
            guide=guide,
            offsets=offsets,
            teacher=teacher,
            rows_need_grad=with_grad and (anchors.requires_grad or tau.requires_grad),
            columns_need_grad=with_grad and keys.requires_grad,
            product=inputs.product,
        ),
    )


def _plan_known(inputs: Inputs) -> tuple[Tensor, Tensor, Tensor, Plan] | None:
    """Plan the sums of few pairs about which everything is known, whose rules are ceilings at most; None for others.

    A small batch pays by the step. There is nothing to check: whoever computed the similarities has read the rest.
    """
    product, same, extent, temperature = inputs.product, inputs.same_sample, inputs.extent, inputs.temperature
    if product is None or same is None or extent is None or inputs.offsets is not None:
        return None
    rules = [as_rules(each) for each in (inputs.rules, inputs.mirror_rules) if each is not None]
    for each in rules:
        for rule in each:
            if not rule.ceiling_alone:
                return None
    coldest = float(temperature.detach().min()) if isinstance(temperature, Tensor) else float(temperature)
    reach = extent.longest * extent.farthest / coldest if coldest > 0 else torch.inf
    if not reach <= 1e-3 / torch.finfo(product.dtype).eps:
        return None  # to be refused
    anchors = inputs.anchors
    tau = temperature.to(anchors) if isinstance(temperature, Tensor) else anchors.new_tensor(temperature)
    shared, with_grad = inputs.candidates is None, torch.is_grad_enabled()
    keys = anchors if inputs.candidates is None else inputs.candidates
    plan = Plan(
        function="softmax",
        dense=True,
        shift="none" if reach <= UNSHIFTED_REACH[product.dtype] else "peak",
        tiles=(),
        directions=_dense_directions(rules, same, product.dtype),
        shared=shared,
        teacher=inputs.teacher,
        rows_need_grad=with_grad and (anchors.requires_grad or tau.requires_grad),
        columns_need_grad=with_grad and keys.requires_grad,
        product=product,
    )
    return anchors, keys, tau, plan


def as_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor in that dtype; `Tensor.to` takes longer to see that it has it already."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def as_rules(rules: Rule | Sequence[Rule]) -> tuple[Rule, ...]:
    """Return one rule or several as several."""
    return (rules,) if isinstance(rules, Rule) else tuple(rules)


def _candidates(inputs: Inputs) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the candidates, and the ids of anchors and candidates; refuse what does not match."""
    if (inputs.candidates is None) != (inputs.candidate_ids is None):
        raise ValueError("candidates and candidate_ids must both be given, or neither")
    keys = inputs.anchors if inputs.candidates is None else inputs.candidates
    key_ids = inputs.anchor_ids if inputs.candidate_ids is None else inputs.candidate_ids
    check_pairs(inputs.anchors, keys, inputs.anchor_ids, key_ids)
    return keys, (inputs.anchor_ids, key_ids)


def _is_dense(kernel: Kernel, block: int | None, sizes: tuple[int, int]) -> bool:
    """Return whether all pairs are one matrix."""
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel must be one of {', '.join(get_args(Kernel))}, got {kernel!r}")
    if block is not None and block < 1:
        raise ValueError(f"block must be at least 1, got {block}: it is the edge of the blocks of pairs")
    if block is not None and kernel == "dense":
        raise ValueError("block is the edge of the tiles of the streaming kernel: leave it out with kernel='dense'")
    fits = kernel == "dense" or (kernel == "auto" and block is None and few_pairs(*sizes))
    return fits and sizes[0] * sizes[1] > 0


def _measure(
    inputs: Inputs,
    keys: Tensor,
    tau: Tensor,
    offsets: Tensor | None,
    ids: tuple[Tensor, Tensor],
    questions: Questions,
) -> tuple[float, float]:
    """Refuse what is not finite or too large; return the largest |logit| that there can be, and the smallest id."""
    anchors, temperature, extent = inputs.anchors, inputs.temperature, inputs.extent
    if not (anchors.shape[0] and keys.shape[0]):
        questions.answers()
        return 0.0, 0.0
    asked = [] if isinstance(temperature, float | int) else [tau.detach().min()]
    asked += [] if offsets is None else [offsets.abs().max()]
    shared = keys is anchors
    rest = Extent.numbers(anchors, None if shared else keys, *ids[: 1 if shared else 2]) if extent is None else []
    answers = questions.answers(*asked, *rest)
    coldest = float(temperature) if isinstance(temperature, float | int) else answers.pop(0)
    added = 0.0 if offsets is None else answers.pop(0)
    extent = Extent(*answers) if extent is None else extent
    reach = extent.longest * extent.farthest / coldest  # |s| / tau is at most this
    if not reach < torch.inf:
        refusal = not_finite(anchors=anchors, candidates=keys)
        if refusal is not None:
            raise refusal
    check_reach(reach, tau.dtype)
    return reach + added, extent.lowest


def _without_ranks(
    rules: list[tuple[Rule, ...]],
    anchors: Tensor,
    keys: Tensor,
    ids: tuple[Tensor, Tensor],
    guide: tuple[Tensor, Tensor] | None,
    same: SameSample,
) -> list[tuple[Rule, ...]]:
    """Return the rules of each direction with their ranks as bounds."""
    found = [bounded(rules[0], anchors, keys, *ids, guide=guide, same_sample=same)]
    if len(rules) == 2:
        turned = None if guide is None else (guide[1], guide[0])
        found.append(bounded(rules[1], keys, anchors, ids[1], ids[0], guide=turned))
    return found


def _dense_directions(rules: Sequence[tuple[Rule, ...]], same: SameSample, dtype: torch.dtype) -> tuple[Direction, ...]:
    """Compile rules for one matrix of similarities per direction, whose rows are the direction's anchors."""
    directions = []
    for place, each in enumerate(rules):
        own, mirror = (same, False) if place == 0 else (same.turned(), True)
        count, others = own.anchor_ids.shape[0], own.candidate_ids.shape[0]
        if each is EVERY_PAIR:
            directions.append(Direction(_EVERY_PAIR, mirror, count, own, plain=True))
            continue
        tile = whole(count, others)
        masks = tuple([compile_rule(rule, _as_it_is, (tile,), dtype) for rule in each])
        directions.append(Direction(masks, mirror, count, own))
    return tuple(directions)


_EVERY_PAIR = (compile_rule(EVERY_PAIR[0], lambda bound: bound, (), torch.float32),)


def _as_it_is(bound: Tensor) -> Tensor:
    """Return a bound of similarities that are compared as they are."""
    return bound


def _tiled(
    rules: Sequence[tuple[Rule, ...]],
    anchors: Tensor,
    keys: Tensor,
    ids: tuple[Tensor, Tensor],
    same: SameSample,
    tau: Tensor,
    block: int | None,
    symmetric: bool,
    empty: bool,
) -> tuple[tuple[Tile, ...], tuple[Direction, ...]]:
    """Cut all pairs into tiles and compile the rules for them; bounds are compared with logits.

    Pairs of one sample are listed by tile where there are few and finding them needs no synchronisation; otherwise ids
    are compared in every tile, as groups are.

    Args:
        rules: of each direction.
        anchors: (A, D).
        keys: (C, D).
        ids: (A,) and (C,).
        same: which pairs are of one sample.
        tau: the temperature.
        block: the edge of the tiles, or None.
        symmetric: whether the weight of pair (i, k) equals that of pair (k, i) before any rule.
        empty: whether there may be empty slots.
    """
    sizes = (anchors.shape[0], keys.shape[0])
    listed = on_host(anchors) and same.number_of_pairs() <= 8 * sum(sizes)
    pairs = same.pairs() if listed else None
    listing = Listing(*pairs) if pairs is not None and pairs[0].shape[0] else None
    edge = (block, block) if block is not None else edges(*sizes, CPU_EDGE if on_host(anchors) else DEVICE_EDGE)
    tiles = cut(*sizes, *edge, symmetric, listing)
    spaces = [] if listed else same.spaces(tau.dtype)
    directions = []
    for place, each in enumerate(rules):
        mirror = place == 1
        masks = [compile_rule(rule, lambda bound: bound / tau, tiles, tau.dtype, symmetric, mirror) for rule in each]
        for numbers in spaces:  # first, so that a mask of nothing else needs no second block
            others = Factor(torch.ne, "group", numbers[1 - place], numbers[place])
            masks = [mask._replace(keep=(others, *mask.keep)) for mask in masks]
        if empty:
            filled = (ids[1 - place] >= 0).to(tau.dtype)
            slot = Factor(torch.ge, "group", filled, torch.full_like(ids[place], 0.5, dtype=tau.dtype))
            masks = [mask._replace(keep=(*mask.keep, slot), mutual=False) for mask in masks]
        elif pairs is not None:
            kept = sizes[1 - place] - torch.bincount(pairs[place], minlength=sizes[place])
            masks = [mask._replace(kept=kept) if mask.keeps_all else mask for mask in masks]
        directions.append(Direction(tuple(masks), mirror, sizes[place], same))
    return tiles, tuple(directions)
