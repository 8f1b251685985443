"""The stream: one pass over the tiles for the sums, and one for the gradient.

Sums. exp(s/tau) fits float32 without a shift (`contrast` sees to it), so sums of a tile simply add up. A tile above the
diagonal of the symmetric case gives its row sums to its rows and its column sums to its columns.

Gradient. With g_i the gradient of log_sum_i and r_i = exp(log_sum_i), the similarities receive
G_ik = E_ik M_ik g_i / (r_i tau_i), the anchors G c and the candidates G^T a. In the symmetric case both are the same
matrix and the tile takes E_ik (M_ik g_i/r_i + M_ki g_k/r_k)/tau at once: two products per tile above the diagonal.
The tile is computed again rather than stored, except where this is cheaper:

- few pairs: the exponentials of the forward pass are kept.
- no gradient for the candidates (a queue, a bank): (E M) c is summed in the forward pass and scaled in the backward.

The gradient of the temperature is free: d log_sum_i / d tau_i = - sum_k G_ik s_ik / tau_i, and sum_k G_ik s_ik is the
dot product of anchor i and its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from antipodes.functional._tiles import Buffers, Mask, Tile, Vector, keep_mask, pull_mask

RETAINED_PAIRS = 2**20  # up to this many pairs the tiles of the forward pass are kept, 4 MB in float32 at most


@dataclass(frozen=True)
class Task:
    """Everything about a call that has no gradient.

    Attributes:
        tiles: the tiles to walk.
        masks: one per rule.
        symmetric: whether the candidates are the anchors and tiles below the diagonal are left out.
        block: the edge of a tile.
        rows_need_grad: whether the anchors' gradient will be asked for, by themselves or by the temperature.
        columns_need_grad: whether the candidates' will.
    """

    tiles: list[Tile]
    masks: list[Mask]
    symmetric: bool
    block: int
    rows_need_grad: bool
    columns_need_grad: bool

    @property
    def pulls(self) -> bool:
        """Whether any rule pulls."""
        return any(mask.pulls for mask in self.masks)


class Stream(torch.autograd.Function):
    """Sums over kept and over pulled pairs, with first-order gradients to anchors, candidates and temperature."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, task: Task
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return log sums, numbers kept, sums of pulled similarities and numbers pulled, all (R, A).

        Args:
            ctx: the context of autograd.
            anchors: (A, D) of float32 or float64.
            candidates: (C, D); in the symmetric case the anchors, detached.
            temperature: (A,).
            task: the rest.
        """
        shape = (len(task.masks), len(anchors))
        total, kept, pulled_sum, pulled = sums = [anchors.new_zeros(shape) for _ in range(4)]
        totals, kepts, pulled_sums, pulleds = ([row.split(task.block) for row in each] for each in sums)
        drawn = pulled_drawn = None  # (R, A, D) weighted sums of candidates, when the gradient can be taken along
        if task.rows_need_grad and not task.columns_need_grad:
            drawn = anchors.new_zeros(*shape, anchors.shape[1])
            pulled_drawn = torch.zeros_like(drawn) if task.pulls else None
        draws, pulled_draws = ([] if each is None else each.split(task.block, dim=1) for each in (drawn, pulled_drawn))
        retain = task.columns_need_grad and len(anchors) * len(candidates) <= RETAINED_PAIRS
        retained: list[Tensor] = []
        walk = Walk(task, anchors, candidates, temperature)
        ones = anchors.new_ones(len(candidates)).split(task.block)
        for tile in task.tiles:
            logits, exponentials = walk.exponentials(tile)
            for number, mask in enumerate(task.masks):
                for sides in _sides(mask, tile.mirrored):
                    values = exponentials
                    if not mask.trivial:
                        values = keep_mask(mask, tile, sides[0], exponentials, "keep", walk.buffers)
                        if mask.kept is None:
                            _add_sums(kepts[number], tile, sides, values, ones)
                        if mask.pulls:
                            pull = pull_mask(mask, tile, sides[0], exponentials, values, walk.buffers)
                            _add_sums(pulleds[number], tile, sides, pull, ones)
                            if pulled_draws:
                                pulled_draws[tile.row][number].addmm_(pull, walk.candidates[tile.column])
                            _add_sums(pulled_sums[number], tile, sides, pull.mul_(logits), ones)
                        values.mul_(exponentials)
                    _add_sums(totals[number], tile, sides, values, ones)
                    if draws:
                        draws[tile.row][number].addmm_(values, walk.candidates[tile.column])
            if retain:
                retained.append(exponentials.clone())
        for number, mask in enumerate(task.masks):
            if mask.kept is not None:
                kept[number] = mask.kept
        pulled_sum *= temperature
        ctx.task, ctx.retained = task, retained
        ctx.save_for_backward(anchors, candidates, temperature, total, pulled_sum, drawn, pulled_drawn)
        ctx.mark_non_differentiable(kept, pulled)
        return total.log(), kept, pulled_sum, pulled

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_log_sum: Tensor, _kept: None, grad_pulled_sum: Tensor, _pulled: None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of anchors, candidates and temperature."""
        task: Task = ctx.task
        anchors, candidates, temperature, total, pulled_sum, drawn, pulled_drawn = ctx.saved_tensors
        # What a kept exponential of anchor i hands to its similarity; nothing where nothing is kept.
        push = torch.where(total > 0, grad_log_sum / (total * temperature), 0.0)
        grad_candidates: Tensor | None = None
        if drawn is not None:
            grad_anchors = torch.einsum("ra,rad->ad", push, drawn)
            if pulled_drawn is not None:
                grad_anchors += torch.einsum("ra,rad->ad", grad_pulled_sum, pulled_drawn)
        else:
            grad_anchors = torch.zeros_like(anchors)
            grad_candidates = grad_anchors if task.symmetric else torch.zeros_like(candidates)
            walk = Walk(task, anchors, candidates, temperature)
            walk.back(ctx.retained, push, grad_pulled_sum, grad_anchors, grad_candidates)
        grad_temperature: Tensor | None = None
        if ctx.needs_input_grad[2]:
            # In the symmetric case a pair's share appears at both of its ends: the sum over all is halved.
            share = (anchors * grad_anchors).sum(1) * (0.5 if task.symmetric else 1.0)
            grad_temperature = ((grad_pulled_sum * pulled_sum).sum(0) - share) / temperature
        return grad_anchors, None if task.symmetric else grad_candidates, grad_temperature, None


class Walk:
    """One pass over the tiles: the embeddings in blocks, and the buffers."""

    def __init__(self, task: Task, anchors: Tensor, candidates: Tensor, temperature: Tensor) -> None:
        self.task = task
        self.anchors = anchors.split(task.block)
        self.candidates = candidates.split(task.block)
        # One operand carries 1/tau, so that the product is the logit.
        self.scaled = (anchors / temperature.unsqueeze(1)).split(task.block)
        self.transposed = [each.T for each in self.candidates]
        self.buffers = Buffers(task.block, anchors)
        self.logits_name = "logits" if task.pulls else "exponentials"

    def exponentials(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the tile's logits and their exponentials, in one buffer unless something is pulled."""
        logits = self.buffers(self.logits_name, tile.shape)
        torch.mm(self.scaled[tile.row], self.transposed[tile.column], out=logits)
        exponentials = torch.exp(logits, out=self.buffers("exponentials", tile.shape))
        if tile.excluded is not None:
            exponentials.view(-1).index_fill_(0, tile.excluded, 0.0)
        return logits, exponentials

    def back(
        self, retained: list[Tensor], push: Tensor, pull_weight: Tensor, grad_anchors: Tensor, grad_candidates: Tensor
    ) -> None:
        """Walk the tiles once more and add up the gradients of anchors and candidates."""
        task, buffers = self.task, self.buffers
        pushes = [Vector.cut(row, task.block) for row in push]
        pull_weights = [Vector.cut(row, task.block) for row in pull_weight]
        to_rows, to_columns = grad_anchors.split(task.block), grad_candidates.split(task.block)
        for position, tile in enumerate(task.tiles):
            exponentials = retained[position] if retained else self.exponentials(tile)[1]
            weight: Tensor | None = None
            pulled: Tensor | None = None
            for mask, share, pull_share in zip(task.masks, pushes, pull_weights, strict=True):
                for sides in _sides(mask, task.symmetric):
                    name = "weight" if weight is None else "keep"
                    if mask.trivial:
                        out = buffers(name, tile.shape)
                        spread = _spread(share, tile, sides, out)
                        weight = out.copy_(spread) if weight is None else weight.add_(spread)
                        continue
                    keep = keep_mask(mask, tile, sides[0], exponentials, name, buffers)
                    if mask.pulls:
                        pull = pull_mask(mask, tile, sides[0], exponentials, keep, buffers)
                        pull.mul_(_spread(pull_share, tile, sides, buffers("share", tile.shape)))
                        pulled = buffers("pulled", tile.shape).copy_(pull) if pulled is None else pulled.add_(pull)
                    spread = _spread(share, tile, sides, buffers("share", tile.shape))
                    weight = keep.mul_(spread) if weight is None else weight.addcmul_(keep, spread)
            assert weight is not None  # there is at least one rule
            weight.mul_(exponentials)
            if pulled is not None:
                weight.add_(pulled)
            to_rows[tile.row].addmm_(weight, self.candidates[tile.column])
            if tile.mirrored or not task.symmetric:
                to_columns[tile.column].addmm_(weight.T, self.anchors[tile.row])


def _sides(mask: Mask, mirrored: bool) -> list[tuple[bool, ...]]:
    """Return the directions in which a tile is read, together where they share a mask; True is the mirror image."""
    if not mirrored:
        return [(False,)]
    return [(False, True)] if mask.mutual else [(False,), (True,)]


def _add_sums(
    totals: tuple[Tensor, ...], tile: Tile, sides: tuple[bool, ...], values: Tensor, ones: Sequence[Tensor]
) -> None:
    """Add a tile's row sums to its rows' totals and, for the mirror image, its column sums to its columns'."""
    for mirror in sides:
        if mirror:
            totals[tile.column].addmv_(values.T, ones[tile.row])
        else:
            totals[tile.row].addmv_(values, ones[tile.column])


def _spread(vector: Vector, tile: Tile, sides: tuple[bool, ...], out: Tensor) -> Tensor:
    """Return what anchors hand out: beside the rows, along the columns for the mirror image, or the sum of both."""
    if len(sides) == 2:
        return torch.add(vector.down[tile.row], vector.along[tile.column], out=out)
    return vector.along[tile.column] if sides[0] else vector.down[tile.row]
