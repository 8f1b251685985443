"""Few pairs: all of them in one tile, whose exponentials the forward pass keeps for the gradient.

What costs time here is the number of operations, not that of pairs: nothing is cut, nothing computed twice, and the one
number that is read back comes from the logits themselves. Exponentials are relative to each anchor's peak.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from antipodes.functional._arguments import check_reach, not_finite
from antipodes.functional._masks import keep_mask, pull_mask
from antipodes.functional._stream import FAR, LOWEST, Walk, like_temperature
from antipodes.functional._task import Task


def checked_logits(walk: Walk, anchors: Tensor, candidates: Tensor) -> Tensor:
    """Return the logits of all pairs, after asking whether they are finite and small enough to tell them apart."""
    tile = walk.task.tiles[0]
    logits = torch.mm(walk.scaled, candidates.T)
    low, high = logits.aminmax()
    (reach,) = walk.task.questions.answers(torch.maximum(high, -low))
    if not reach < torch.inf:
        refusal = not_finite(anchors=anchors, candidates=candidates)
        if refusal is not None:
            raise refusal
    check_reach(reach, logits.dtype)
    if tile.excluded is not None:
        logits.view(-1).index_fill_(0, tile.excluded, -FAR)
    return logits


class Direct(torch.autograd.Function):
    """The sums of `Stream` for one tile."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, task: Task) -> tuple[Tensor, ...]:
        """Return what `Stream.forward` returns."""
        walk = Walk(task, anchors, candidates, temperature)
        logits = checked_logits(walk, anchors, candidates)
        block = walk.block(task.tiles[0], logits)
        outputs: list[Tensor] = []
        kept_weights: list[tuple[int, int, bool, Tensor, Tensor, Tensor | None]] = []
        for place, direction in enumerate(task.directions):
            dim = 0 if direction.mirror else 1
            rows: list[tuple[Tensor, ...]] = []
            for number, mask in enumerate(direction.masks):
                keep = pull = None
                values = logits
                kept, pulled_sum, pulled = mask.kept, logits.new_zeros(direction.count), None
                if not mask.trivial:
                    keep = keep_mask(mask, block, direction.mirror, "keep", walk.buffers)
                    kept = keep.sum(dim) if kept is None else kept
                    if mask.pulls:
                        pull = pull_mask(mask, block, direction.mirror, keep, walk.buffers).clone()
                        pulled_sum, pulled = (pull * logits).sum(dim) * temperature, pull.sum(dim)
                    values = torch.add(logits, keep.sub_(1.0), alpha=FAR)
                if task.offsets is not None:
                    values = values + task.offsets
                peak = values.amax(dim, keepdim=True).clamp_(min=LOWEST)
                values = (values - peak).exp_()
                total = values.sum(dim)
                log_sum = total.log().add_(peak.squeeze(dim))
                assert kept is not None
                rows.append((log_sum, kept, pulled_sum, torch.zeros_like(pulled_sum) if pulled is None else pulled))
                kept_weights.append((place, number, direction.mirror, values, total, pull))
            log_sum, kept, pulled_sum, pulled = (torch.stack(column) for column in zip(*rows, strict=True))
            outputs += [log_sum, kept, pulled_sum, pulled]
            ctx.mark_non_differentiable(kept, pulled)
        ctx.task, ctx.kept_weights = task, kept_weights
        ctx.save_for_backward(anchors, candidates, temperature, *outputs[2::4])
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of anchors, candidates and temperature."""
        task: Task = ctx.task
        anchors, candidates, temperature, *pulled_sums = ctx.saved_tensors
        weight: Tensor | None = None
        for place, number, mirror, values, total, pull in ctx.kept_weights:
            # a peak adds 1 to its total: below that, nothing was kept and all values are zero
            scale = grads[4 * place][number] / (total.clamp(min=1.0) * temperature)
            share = values * (scale if mirror else scale[:, None])
            if pull is not None:
                on_pulled = grads[4 * place + 2][number]
                share.addcmul_(pull, on_pulled if mirror else on_pulled[:, None])
            weight = share if weight is None else weight.add_(share)
        assert weight is not None
        grad_temperature: Tensor | None = None
        if ctx.needs_input_grad[2]:
            share = like_temperature((anchors * (weight @ candidates)).sum(1), temperature)
            for place, pulled_sum in enumerate(pulled_sums):
                share = share - like_temperature(grads[4 * place + 2] * pulled_sum, temperature)
            grad_temperature = -share / temperature
        if task.shared:
            return (weight + weight.T) @ anchors, None, grad_temperature, None
        grad_candidates = weight.T @ anchors if ctx.needs_input_grad[1] else None
        return weight @ candidates, grad_candidates, grad_temperature, None
