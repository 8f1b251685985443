"""The dense kernel: all pairs as one matrix. It is the definition of the sums, in a form that one can read.

Forward, for each direction and rule:

1. s = anchors candidates^T and z = s / tau, (A, C); the second of two directions takes the transpose.
2. The masks W (kept) and Y (pulled), (A, C).
3. log_sum_i = log sum_k W_ik e^{z_ik}, kept_i = sum_k W_ik, pulled_sum_i = sum_k Y_ik s_ik, pulled_i = sum_k Y_ik; or
   another function of the pair in the place of e^z and s, see `PairFunction`.

Backward, from the gradients of these sums:

1. G (A, C), the gradient of s: with g_i that of log_sum_i, W_ik e^{z_ik - log_sum_i} g_i / tau, and what is pulled.
2. Anchors receive G candidates and candidates G^T anchors; the temperature receives -sum_ik G_ik s_ik / tau.

Memory is O(A x C), so it is chosen for few pairs, where a step pays by the operation and not by the pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.masks import Block, Mask, Matrices, keep_mask, pull_mask, whole
from antipodes.functional.plan import Direction, PairFunction, Plan


def pair_values(
    function: PairFunction, logits: Tensor, added: Tensor | None, pulls: bool, out: Tensor, buffers: Matrices
) -> tuple[Tensor | None, Tensor]:
    """Return what is summed over kept pairs, or None for nothing, and over pulled pairs, (h, w) each.

    For `softmax` and `none` the second matrix is the logits themselves: a sum of s is tau times a sum of logits.

    Args:
        function: the function of a pair.
        logits: (h, w) similarities divided by the temperature.
        added: what is added to the logits: the bias, (), or the offsets of the candidates, (w,).
        pulls: whether the second matrix is needed.
        out: (h, w) where the first matrix is written; it may be the logits, if these are not needed any more.
        buffers: where the others are written.
    """
    if function == "none":
        return None, logits
    z = logits if added is None else torch.add(logits, added, out=out)
    if function == "softmax":
        return torch.exp(z, out=out), logits
    shape = (logits.shape[0], logits.shape[1])
    # softplus(z) = max(z, 0) + log(1 + e^-|z|), and softplus(-z) has the same second term: nothing overflows
    rest = torch.abs(z, out=buffers("rest", shape)).neg_().exp_().log1p_()
    opposite = logits
    if pulls and function == "sigmoid":
        opposite = torch.neg(z, out=buffers("opposite", shape)).clamp_(min=0.0).add_(rest)
    return torch.clamp(z, min=0.0, out=out).add_(rest), opposite


def pair_slopes(
    function: PairFunction, logits: Tensor, added: Tensor | None, pulls: bool, out: Tensor, buffers: Matrices
) -> tuple[Tensor | None, Tensor | None]:
    """Return the derivatives of both values by the logit, (h, w) each; None stands for 1. Arguments: `pair_values`."""
    if function == "none":
        return None, None
    z = logits if added is None else torch.add(logits, added, out=out)
    if function == "softmax":
        return torch.exp(z, out=out), None
    slope = torch.sigmoid(z, out=out)
    return slope, torch.sub(slope, 1.0, out=buffers("opposite", (z.shape[0], z.shape[1]))) if pulls else None


FAR = 1e30
"""So far below all others are the logits of pairs that do not count: e^-FAR is 0, and 0 times FAR is still 0."""

LOWEST = -1e29
"""The peak of an anchor that keeps nothing: below all logits, and above those that are FAR below."""

VANISHED, TINY = -60.0, 1e-26
"""No logit counts as further below its anchor's peak than e^VANISHED < TINY: exponentials that underflow are slow."""

NOTHING = {torch.float32: 1e-26, torch.float64: 1e-270}
"""Below every sum of exponentials of something, and so far from 0 that dividing by it does not overflow."""

FAINT = 1e-11
"""Gradients so much smaller than the largest count as zero: times exponentials they would underflow."""


def largest(grads: Sequence[Tensor | None]) -> Tensor:
    """Return the largest absolute value of these gradients, (), or 1 if all are zero.

    Gradients of pairs are computed relative to it: those of a loss near zero would underflow as products.
    """
    top = torch.stack([each.abs().max() for each in grads if each is not None and each.numel()]).max()
    return torch.where(top > 0, top, 1.0)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""Of the anchors, the candidates, the temperature and the bias; None where there is none."""


class RuleState(NamedTuple):
    """What a rule leaves for the backward pass.

    Attributes:
        weights: (A, C) the kept pairs: W e^{z - peak} of a softmax, otherwise W, or W - Y of the sigmoid.
        total: (A,) the sum of the weights of a softmax, otherwise None.
        pull: (A, C) Y, or None.
    """

    weights: Tensor
    total: Tensor | None
    pull: Tensor | None


class Saved(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        directions: the rules' part, by direction.
        tiles: the similarities (A, C), the one tile there is.
    """

    directions: list[list[RuleState]]
    tiles: list[Tensor]

    @property
    def similarities(self) -> Tensor:
        """(A, C)."""
        return self.tiles[0]


def forward(
    plan: Plan, anchors: Tensor, candidates: Tensor, temperature: Tensor, added: Tensor | None
) -> tuple[list[Tensor | None], Saved]:
    """Return for each direction values of kept pairs, their number, values of pulled pairs and their number, (R, A).

    A number of kept pairs is None if all of other samples are kept, any other sum if there is nothing to sum.

    Args:
        plan: of the call.
        anchors: (A, D).
        candidates: (C, D).
        temperature: () or (A,).
        added: what is added to logits: the offsets (C,), the bias () or nothing.
    """
    similarities = torch.mm(anchors, candidates.T) if plan.product is None else plan.product
    guide = None if plan.guide is None else torch.mm(plan.guide[0], plan.guide[1].T)
    outputs: list[Tensor | None] = []
    directions = []
    for direction in plan.directions:
        turn = direction.mirror
        own = similarities.T if turn else similarities
        seen = guide.T if turn and guide is not None else guide
        sums, states = _sum_direction(plan, direction, own, seen, temperature, added)
        outputs += [_of_rules(each) for each in sums]
        directions.append(states)
    return outputs, Saved(directions, [similarities])


def backward(
    plan: Plan,
    saved: Saved,
    anchors: Tensor,
    candidates: Tensor,
    temperature: Tensor,
    added: Tensor | None,
    grads: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
    on_positives: Tensor | None = None,
) -> Gradients:
    """Return the gradients of what `forward` was given.

    Args:
        plan: of the call, like the other arguments of `forward`.
        saved: what `forward` left.
        anchors: (A, D).
        candidates: (C, D).
        temperature: () or (A,).
        added: the offsets, the bias or nothing.
        grads: of the outputs of `forward`; None where nothing depends on one.
        wanted: whether anchors, candidates, temperature and bias want a gradient.
        on_positives: the gradient of the logits of the positives, where `positive_diagonal` has them; None for none.
    """
    if all(each is None for each in grads):
        return None, None, None, None
    inverse, top = temperature.reciprocal(), None
    if plan.shift == "peak":  # where logits are far apart, gradients may be so small that they underflow
        top = largest(grads)
        grads = tuple(None if each is None else each / top for each in grads)
        on_positives = None if on_positives is None else on_positives / top
    of_kept: Tensor | None = None  # the parts of G
    of_pulled: Tensor | None = None
    for place, (direction, states) in enumerate(zip(plan.directions, saved.directions, strict=True)):
        on_value, _, on_pulled, _ = grads[4 * place : 4 * place + 4]
        kept: Tensor | None = None
        pulled: Tensor | None = None
        for number, state in enumerate(states):
            if on_value is not None and plan.function != "none":
                share = on_value[number] * inverse
                if top is not None:
                    share = torch.where(on_value[number].abs() > FAINT, share, 0.0)
                if state.total is not None:  # where nothing is kept all weights are 0
                    share = share / state.total.clamp(min=NOTHING[share.dtype])
                kept = _add(kept, state.weights, share)
            if on_pulled is not None and state.pull is not None and plan.function != "soft sigmoid":
                pulled = _add(pulled, state.pull, on_pulled[number])
        if "sigmoid" in plan.function:
            own = saved.similarities.T if direction.mirror else saved.similarities
            logits = own * inverse
            slope, opposite = pair_slopes(plan.function, logits, added, direction.pulls, logits, _fresh(own))
            kept = None if kept is None or slope is None else kept.mul_(slope)
            pulled = None if pulled is None or opposite is None else pulled.mul_(opposite).mul_(inverse)
        of_kept = _join(of_kept, kept, direction.mirror)
        of_pulled = _join(of_pulled, pulled, direction.mirror)
    on_temperature: Tensor | None = None
    if "sigmoid" in plan.function:  # here the pulled part depends on the temperature as well
        of_kept, of_pulled = _join(of_kept, of_pulled, turned=False), None
    if on_positives is not None and of_kept is not None:
        positive_diagonal(plan, of_kept).add_(on_positives * inverse)
    if wanted[2] and of_kept is not None:
        shares = (of_kept * saved.similarities).sum(1).mul_(inverse).neg_()
        on_temperature = shares if temperature.ndim else shares.sum()
    on_bias = of_kept.sum() * temperature if wanted[3] and of_kept is not None else None
    gradient = _join(of_kept, of_pulled, turned=False)
    if gradient is None:
        return None, None, None, None
    on_anchors = on_candidates = None
    if plan.shared:
        on_anchors = torch.mm(gradient, anchors).addmm_(gradient.T, anchors)
    elif wanted[0]:
        on_anchors = torch.mm(gradient, candidates)
    if wanted[1]:
        on_candidates = torch.mm(gradient.T, anchors)
    found = on_anchors, on_candidates, on_temperature, on_bias
    if top is None:
        return found
    first, second, third, fourth = (None if each is None else each.mul_(top) for each in found)
    return first, second, third, fourth


def positive_diagonal(plan: Plan, matrix: Tensor) -> Tensor:
    """Return what a matrix (A, C) holds for the positives: pairs (i, i), or of two views of b samples (i, b + i)."""
    return matrix.diagonal(matrix.shape[0] // 2 if plan.shared else 0)


def _sum_direction(
    plan: Plan,
    direction: Direction,
    similarities: Tensor,
    guide: Tensor | None,
    temperature: Tensor,
    added: Tensor | None,
) -> tuple[list[list[Tensor | None]], list[RuleState]]:
    """Return the four sums of every rule, (A,) each, and what the rules leave for the backward pass.

    Args:
        plan: of the call.
        direction: whose anchors are the rows.
        similarities: (A, C).
        guide: (A, C) the guide's similarities, or None.
        temperature: () or (A,).
        added: what is added to logits.
    """
    inverse = temperature.reciprocal()
    logits = similarities * (inverse if inverse.ndim == 0 else inverse[:, None])
    relative = plan.function == "softmax" and plan.shift == "peak"
    values, of_pulled, pulls = None, similarities, direction.pulls
    if relative:
        logits = logits if added is None else logits.add_(added)
    else:
        values, opposite = pair_values(plan.function, logits, added, pulls, logits, _fresh(logits))
        of_pulled = opposite if plan.function == "sigmoid" else similarities
    sums: list[list[Tensor | None]] = [[], [], [], []]
    states = []
    nothing = similarities.new_zeros(similarities.shape[0]) if pulls else None
    for number, mask in enumerate(direction.masks):
        keep, kept, pull = _judge(direction, mask, similarities, guide)
        if pull is not None and plan.teacher is not None:
            everything = (slice(None), slice(None))
            pull.mul_(plan.teacher.weights(number, *everything, torch.empty_like(pull)))
        value: Tensor | None = None
        total: Tensor | None = None
        weights, pulled, pulled_value = similarities, nothing, nothing
        if pull is not None:
            pulled = pull.sum(1)
            if plan.function != "soft sigmoid":
                pulled_value = (pull * of_pulled).sum(1)
        if keep is None and values is not None:
            values = direction.same_sample.blank(values)
        if relative:
            everyone = direction.same_sample.different if keep is None else keep
            weights, total, value = _relative(logits, everyone)
        elif plan.function == "softmax" and values is not None:
            weights = values if keep is None else keep.mul_(values)
            total = weights.sum(1)
            value = total.log()
        elif values is not None:
            weights = direction.same_sample.blank(torch.ones_like(values)) if keep is None else keep
            if pull is not None and plan.function == "sigmoid":
                weights.sub_(pull)
            value = (weights * values).sum(1)
        for column, each in zip(sums, (value, kept, pulled_value, pulled), strict=True):
            column.append(each)
        states.append(RuleState(weights, total, pull))
    return sums, states


def _of_rules(numbers: list[Tensor | None]) -> Tensor | None:
    """Return numbers (A,) of every rule as (R, A); None where there are none."""
    if numbers[0] is None:
        return None
    return numbers[0][None] if len(numbers) == 1 else torch.stack(numbers)  # type: ignore[arg-type]


def _judge(
    direction: Direction, mask: Mask, similarities: Tensor, guide: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return W (A, C) of a rule and the number kept (A,), or None where all other samples are; Y (A, C) or None."""
    same = direction.same_sample
    if direction.plain:
        return None, None, None
    if mask.keeps_all and not mask.pulls:
        return None, same.available, None
    buffers = _fresh(similarities)
    block = Block(whole(similarities.shape[0], similarities.shape[1]), similarities, guide)
    keep = same.blank(keep_mask(mask, block, False, buffers))
    return keep, keep.sum(1), pull_mask(mask, block, False, keep, buffers) if mask.pulls else None


def _relative(logits: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return W e^{z - peak} (A, C), its sum and the log sum, (A,), with an anchor's largest kept logit as its peak."""
    shifted = torch.add(logits, keep - 1.0, alpha=FAR)
    peak = shifted.amax(1).clamp_(min=LOWEST)  # of nothing, above what is FAR below: all of that vanishes
    weights = shifted.sub_(peak[:, None]).clamp_(min=VANISHED).exp_()
    weights = torch.threshold_(weights, TINY, 0.0)
    total = weights.sum(1)
    return weights, total, total.log().add_(peak)


def _fresh(like: Tensor) -> Matrices:
    """Return what makes a new matrix each time."""
    return lambda _, shape: like.new_empty(shape)


def _add(total: Tensor | None, weights: Tensor, share: Tensor) -> Tensor:
    """Return the total plus the weights (A, C) times the shares (A,) of their anchors."""
    return weights * share[:, None] if total is None else total.addcmul_(weights, share[:, None])


def _join(total: Tensor | None, part: Tensor | None, turned: bool) -> Tensor | None:
    """Return the sum of two parts of a gradient (A, C), of which the second may be turned over."""
    if part is None:
        return total
    part = part.T if turned else part
    return part if total is None else total + part
