"""Counts: how many candidates exceed a threshold, without their exponentials."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent
from antipodes.functional._compiling import full_precision
from antipodes.functional._masks import Block, keep_mask
from antipodes.functional._stream import Walk, add_sums
from antipodes.functional._task import prepare
from antipodes.functional._tiles import Buffers, Tile
from antipodes.functional._workers import share_out
from antipodes.functional.rule import Rule, binding
from antipodes.functional.same_sample import SameSample


def count_in(product: Tensor, thresholds: Tensor, same_sample: SameSample) -> Tensor:
    """Count the same in the similarities (A, C) of few pairs, which somebody has already.

    Example:
        >>> count_in(torch.eye(3), torch.tensor([-0.5, 0.0, 0.5]), SameSample(torch.arange(3)))
        tensor([2., 0., 0.])
    """
    bound = binding(thresholds).to(product.dtype)
    above = torch.gt(product, bound[:, None], out=torch.empty_like(product))
    return same_sample.blank(above).sum(1)


@torch.no_grad()
def count_above(
    anchors: Tensor,
    candidates: Tensor | None,
    thresholds: Tensor,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    block: int | None = None,
) -> Tensor:
    """Count the candidates of other samples whose similarity to an anchor exceeds its threshold.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves, at half the cost.
        thresholds: (A,) similarities; from 1 on nothing exceeds one, whatever the rounding.
        anchor_ids: (A,) dataset ids; candidates of the anchor's own id do not count, nor do those of a negative one.
        candidate_ids: (C,) dataset ids; only with candidates.
        same_sample: as in `contrast`.
        extent: as in `contrast`.
        block: as in `contrast`.

    Returns:
        (A,) floating-point whole numbers.

    Raises:
        ValueError: as `contrast`.

    Example:
        >>> count_above(torch.eye(3), None, torch.tensor([-0.5, 0.0, 0.5]), anchor_ids=torch.arange(3))
        tensor([2., 0., 0.])
    """
    if thresholds.shape != anchors.shape[:1]:
        raise ValueError(f"thresholds must be one per anchor, ({len(anchors)},), got {tuple(thresholds.shape)}")
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    thresholds = binding(thresholds).to(dtype)
    # what is above a threshold is what a band keeps whose lower end is the next number
    rule = Rule(low=thresholds.nextafter(torch.full_like(thresholds, torch.inf)))
    anchors, candidates, tau, task = prepare(
        anchors,
        candidates,
        anchor_ids,
        candidate_ids,
        1.0,
        rule,
        block,
        same_sample=same_sample,
        extent=extent,
        trusted=True,
        exponentials=False,
    )
    (mask,) = task.directions[0].masks
    with full_precision():
        if task.direct:
            similarities = torch.mm(anchors, candidates.T)
            block_of_all, buffers = Block(task.tiles[0], similarities, None), Buffers(task.cells, similarities)
            return keep_mask(mask, block_of_all, False, "keep", buffers).sum(1)
        walk = Walk(task, anchors, candidates, tau)
        ones = anchors.new_ones(max(len(anchors), len(candidates)))

        def part(tiles: Sequence[Tile]) -> Tensor:
            counts, own = anchors.new_zeros(len(anchors)), walk.beside()
            for tile in tiles:
                seen = own.block(tile, own.logits(tile))
                for _, _, each, sides in own.reads(tile, tile.mirrored):
                    add_sums(counts, tile, sides, keep_mask(each, seen, sides[0], "keep", own.buffers), ones)
            return counts

        counts, *rest = share_out(task.tiles, anchors.device, part)
        for others in rest:
            counts += others
    return counts
