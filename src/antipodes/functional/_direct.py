"""Few pairs: the sums of one tile of all pairs, by plain operations that torch differentiates itself.

What costs time here is the number of operations, not that of pairs: nothing is cut, nothing computed twice, and the one
number that is read back comes from the logits themselves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.functional._arguments import check_reach, not_finite
from antipodes.functional._masks import Block, Mask, keep_mask, pull_mask
from antipodes.functional._stream import FAR
from antipodes.functional._task import Task, as_dtype
from antipodes.functional._tiles import Buffers
from antipodes.functional.sums import Sums


def direct_sums(anchors: Tensor, candidates: Tensor, temperature: Tensor, task: Task) -> list[Sums]:
    """Return the sums of each direction.

    Args:
        anchors: (A, D) of float32 or float64.
        candidates: (C, D).
        temperature: () or (A,).
        task: of one tile.
    """
    scaled = anchors / (temperature if temperature.ndim == 0 else temperature[:, None])
    logits = torch.mm(scaled, candidates.T)
    fixed = logits.detach()
    _check(fixed, anchors, candidates, task)
    guide = None if task.guide is None else task.guide[0] @ task.guide[1].T
    block = Block(task.tiles[0], fixed, guide)
    buffers = Buffers(task.cells, fixed)
    every = []
    for direction in task.directions:
        rows = [
            _one_rule(mask, logits, temperature, block, direction.mirror, task, buffers) for mask in direction.masks
        ]
        if len(rows) == 1:
            every.append(Sums(*(each[None] for each in rows[0])))
        else:
            every.append(Sums(*(torch.stack(column) for column in zip(*rows, strict=True))))
    return every


def _one_rule(
    mask: Mask, logits: Tensor, temperature: Tensor, block: Block, mirror: bool, task: Task, buffers: Buffers
) -> Sums:
    """Return the sums of one rule, (A,) each."""
    dim, kept = 0 if mirror else 1, mask.kept
    pulled = pulled_sum = None
    values = logits
    if not mask.trivial:
        keep = keep_mask(mask, block, mirror, "keep", buffers)
        kept = keep.sum(dim, dtype=torch.int64) if kept is None else kept
        if mask.pulls:
            pull = pull_mask(mask, block, mirror, keep, buffers).clone()
            pulled, pulled_sum = pull.sum(dim, dtype=torch.int64), (pull * logits).sum(dim) * temperature
        values = torch.add(values, keep.sub_(1.0), alpha=FAR)
    elif block.tile.excluded is not None:
        far = torch.zeros_like(block.own)
        far.view(-1).index_fill_(0, block.tile.excluded, -FAR)
        values = values + far
    if task.offsets is not None:
        values = values + task.offsets
    assert kept is not None
    log_sum = values.logsumexp(dim)
    if kept.device.type != "cpu" or not kept.numpy().all():  # the sum of nothing, without gradient
        log_sum = log_sum.masked_fill(kept == 0, -torch.inf)
    if pulled is None or pulled_sum is None:
        pulled, pulled_sum = torch.zeros_like(kept), torch.zeros_like(log_sum.detach())
    return Sums(log_sum, as_dtype(kept, torch.int64), pulled_sum, pulled)


def _check(logits: Tensor, anchors: Tensor, candidates: Tensor, task: Task) -> None:
    """Refuse logits that are not finite, or so large that they cannot be told apart."""
    low, high = logits.aminmax()
    (reach,) = task.questions.answers(torch.maximum(high, -low))
    if not reach < torch.inf:
        refusal = not_finite(anchors=anchors, candidates=candidates)
        if refusal is not None:
            raise refusal
    check_reach(reach, logits.dtype)
