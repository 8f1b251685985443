"""Few pairs: the sums of one tile of all pairs, which is kept for the gradient.

What costs time here is the number of operations, not that of pairs: nothing is cut, nothing is computed twice, and a
batch that is its own candidates gets both of its gradients from one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antipodes.functional._compiling import first_order
from antipodes.functional._masks import Block, Mask, keep_mask, pull_mask
from antipodes.functional._shift import LOWEST
from antipodes.functional._stream import FAINT, FAR, TINY, VANISHED, largest
from antipodes.functional._task import Task
from antipodes.functional._tiles import Buffers


class OneTile(torch.autograd.Function):
    """What `Stream` computes, of pairs that fit into one tile."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, task: Task) -> tuple[Tensor, ...]:
        """Return for each direction log sums, numbers kept, sums of pulled similarities and numbers pulled, (R, A).

        Args:
            ctx: the context of autograd.
            anchors: (A, D) of float32 or float64.
            candidates: (C, D); detached where they are the anchors.
            temperature: () or (A,).
            task: of one tile.
        """
        own = torch.mm(anchors, candidates.T) if task.product is None else task.product
        guide = None if task.guide is None else task.guide[0] @ task.guide[1].T
        block, buffers = Block(task.tiles[0], own, guide), Buffers(task.cells, own)
        inverse = temperature.reciprocal()
        logits = own * (inverse if inverse.ndim == 0 else inverse[:, None])
        if task.offsets is not None:
            logits += task.offsets
        if task.warm:
            logits.exp_()
        ctx.kept = []  # of each direction's rules: the weights of pairs, their sums and what is pulled
        outputs: list[Tensor] = []
        for direction in task.directions:
            rules = []
            for mask in direction.masks:
                weights, peak, kept, pull = _weigh(mask, logits, block, direction.mirror, task, buffers)
                total = weights.sum(0 if direction.mirror else 1)
                log_sum = total.log() if peak is None else total.log().add_(peak)
                pulled_sum, pulled = torch.zeros_like(log_sum), torch.zeros_like(kept)
                if pull is not None:
                    dim = 0 if direction.mirror else 1
                    pulled_sum, pulled = (pull * own).sum(dim), pull.sum(dim)
                rules.append((log_sum, kept, pulled_sum, pulled))
                ctx.kept.append((weights, total, pull))
            one = len(rules) == 1
            columns = (each[0][None] if one else torch.stack(each) for each in zip(*rules, strict=True))
            log_sums, every_kept, pulled_sums, every_pulled = columns
            ctx.mark_non_differentiable(every_kept, every_pulled)
            outputs += [log_sums, every_kept, pulled_sums, every_pulled]
        ctx.task, ctx.inverse, ctx.own = task, inverse, own if ctx.needs_input_grad[2] else None
        ctx.save_for_backward(anchors, candidates)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of anchors, candidates and temperature."""
        task: Task = ctx.task
        anchors, candidates = ctx.saved_tensors
        # where pair (i, k) weighs as much as pair (k, i), what both hand to their ends is added up at once
        even = task.warm and task.shared and all(mask.mutual for mask in task.directions[0].masks)
        gradient: Tensor | None = None  # of the similarities, by the sums of kept pairs
        pulling: Tensor | None = None  # by those of pulled pairs
        kept = iter(ctx.kept)
        # only where it is cold are there exponentials so small that they would underflow
        top = None if task.warm or all(each is None for each in grads) else largest(grads)
        for number, direction in enumerate(task.directions):
            on_log_sum, _, on_pulled, _ = grads[4 * number : 4 * number + 4]
            for rule in range(len(direction.masks)):
                weights, total, pull = next(kept)
                if on_log_sum is not None:
                    given, present = on_log_sum[rule], total > 0  # nothing goes where nothing is kept
                    if top is not None:
                        given, present = given / top, present & (given.abs() > FAINT * top)
                    share = torch.where(present, given * ctx.inverse / total, 0.0)
                    gradient = _add(gradient, weights, _spread(share, direction.mirror, even))
                if on_pulled is not None and pull is not None:
                    given = on_pulled[rule] if top is None else on_pulled[rule] / top
                    pulling = _add(pulling, pull, _spread(given, direction.mirror, even))
        on_temperature: Tensor | None = None
        if ctx.needs_input_grad[2] and gradient is not None:
            shares = (gradient * ctx.own).sum(1) * (-0.5 if even else -1.0)
            on_temperature = _back((shares if ctx.inverse.ndim else shares.sum()) * ctx.inverse, top)
        if pulling is not None:
            gradient = pulling if gradient is None else gradient.add_(pulling)
        if gradient is None:
            return None, None, None, None
        if task.shared:
            on_views = _back(torch.mm(gradient if even else gradient + gradient.T, anchors), top)
            return on_views, None, on_temperature, None
        on_anchors = _back(torch.mm(gradient, candidates), top) if ctx.needs_input_grad[0] else None
        on_candidates = _back(torch.mm(gradient.T, anchors), top) if ctx.needs_input_grad[1] else None
        return on_anchors, on_candidates, on_temperature, None


def _back(gradient: Tensor, top: Tensor | None) -> Tensor:
    """Return a gradient that was made relative to the largest one as it is."""
    return gradient if top is None else gradient.mul_(top)


def _weigh(
    mask: Mask, logits: Tensor, block: Block, mirror: bool, task: Task, buffers: Buffers
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return a rule's weights, exp(logit - peak) where a pair is kept, the peaks, numbers kept, and pulled pairs.

    Where `task.warm`, `logits` are their exponentials already and there are no peaks.
    """
    dim = 0 if mirror else 1
    keep = keep_mask(mask, block, mirror, "keep", buffers)
    kept = keep.sum(dim)
    pull = pull_mask(mask, block, mirror, keep, buffers).clone() if mask.pulls else None
    if task.warm:
        return logits * keep, None, kept, pull
    values = torch.add(logits, keep.sub_(1.0), alpha=FAR)
    peak = values.amax(dim).clamp_(min=LOWEST)  # of nothing, above what is FAR below: all of that vanishes
    weights = (values - (peak if mirror else peak[:, None])).clamp_(min=VANISHED).exp_()
    return torch.threshold_(weights, TINY, 0.0), peak, kept, pull


def _spread(share: Tensor, mirror: bool, even: bool) -> Tensor:
    """Return the share of every anchor as one of pairs; with `even`, that of both of their ends."""
    if even:
        return share[:, None] + share
    return share if mirror else share[:, None]


def _add(total: Tensor | None, weights: Tensor, shares: Tensor) -> Tensor:
    """Return the total plus the weights times the shares."""
    return weights * shares if total is None else total.addcmul_(weights, shares)
