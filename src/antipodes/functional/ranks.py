"""Ranks: rules that go by the order of similarities instead of their size.

A rank becomes a bound once all similarities of its anchor are known. `bounded` computes them for that purpose, after
which every kernel can apply the rule. Where a band of ranks is all that a rule says and the candidates are constants (a
queue, a bank), `ranked_sums` needs no second look at them:

1. The logits of a block of anchors with all candidates are computed.
2. While it is in the processor's cache, a copy of each row is partitioned for the bounds, and the row becomes its
   exponentials relative to the largest logit between them, zero outside: the row of weights.
3. The block of weights gives the sums and, in a product with the candidates, the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.row_blocks import RowBlocks
from antipodes.functional.rule import Bounds, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.select import band, partition, within
from antipodes.functional.sums import Collected, Sums

SERIAL = 2**15 - 1  # torch wakes no other threads for operations on so few numbers; for a row that takes longer


def checked(ranks: Ranks, blocks: RowBlocks) -> tuple[Tensor, Tensor]:
    """The first and last ranks of every anchor, (A,) each.

    Raises:
        ValueError: if they are something else.
    """
    return blocks.per_anchor(ranks.first, "Ranks.first"), blocks.per_anchor(ranks.last, "Ranks.last")


def bounded(
    rules: Sequence[Rule],
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    *,
    guide: tuple[Tensor, Tensor] | None = None,
    same_sample: SameSample | None = None,
) -> tuple[Rule, ...]:
    """Return the same rules with their ranks as bounds of similarities.

    Args:
        rules: with or without ranks.
        anchors: (A, D).
        candidates: (C, D).
        anchor_ids: (A,).
        candidate_ids: (C,).
        guide: the guide's vectors (A, G) and (C, G), for ranks in its space.
        same_sample: which candidates are of the anchors' own samples, if somebody found them already.

    Raises:
        ValueError: for ranks that are neither numbers nor one integer per anchor, or inputs that are not finite.
    """
    if not any(rule.ranks for rule in rules):
        return tuple(rules)
    spaces: dict[str, RowBlocks] = {}
    result = []
    for rule in rules:
        for ranks in rule.ranks:
            if ranks.space == "guide" and guide is None:
                raise ValueError("a rule ranks by the guide's space: give guide=(anchor_guides, candidate_guides)")
            if ranks.space not in spaces:
                vectors = guide if ranks.space == "guide" and guide is not None else (anchors, candidates)
                spaces[ranks.space] = RowBlocks(*vectors, anchor_ids, candidate_ids, same_sample)
            blocks = spaces[ranks.space]
            low, high = band(blocks, *checked(ranks, blocks))
            rule = rule & (Rule(low=low, high=high) if ranks.space == "own" else Rule(guide=Bounds(low, high)))
        result.append(replace(rule, ranks=()))
    return tuple(result)


def ranked_sums(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    temperature: float,
    ranks: Ranks,
    same_sample: SameSample | None = None,
) -> Sums:
    """Return what `contrast` does for one rule that only has ranks and candidates that need no gradient.

    Raises:
        ValueError: as `contrast`.
    """
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    scaled = anchors.detach().to(torch.promote_types(anchors.dtype, torch.float32)) / temperature
    blocks = RowBlocks(scaled, candidates, anchor_ids, candidate_ids, same_sample)
    places = blocks.places(*checked(ranks, blocks))
    collected = Collected(anchors, blocks.candidates, 1, temperature)
    kept, total, peak = (blocks.anchors.new_zeros(len(anchors)) for _ in range(3))
    for rows, logits in blocks.blocks():
        weigh = _weigh_rows if logits.device.type == "cpu" else _weigh_block
        weigh(logits, places[rows], kept[rows], total[rows], peak[rows])
        collected.add(0, rows, logits, total[rows], peak[rows])
    log_sum = collected.log_sum().to(torch.promote_types(anchors.dtype, torch.float32))
    nothing = torch.zeros_like(log_sum)
    return Sums(log_sum, kept.long()[None], nothing, nothing.long())


def _weigh_rows(logits: Tensor, places: Tensor, kept: Tensor, total: Tensor, peak: Tensor) -> None:
    """Turn logits (b, C) into weights, one row at a time while it is in cache; count them and add them up."""
    counts, sums, peaks = kept.numpy(), total.numpy(), peak.numpy()
    block = logits.numpy()  # the same memory
    ranked = np.empty_like(block[0])
    weights = torch.empty_like(logits[0]).split(SERIAL)
    for number, (last, first) in enumerate(places.numpy().tolist()):
        if last == 0:
            block[number] = 0
            continue
        values = block[number]
        np.copyto(ranked, values)
        below = -math.inf
        if last < len(ranked):
            partition(ranked, len(ranked) - last)
            below = float(np.nextafter(ranked[-last], -np.inf))
        inside = ranked[-last:]
        if first:
            partition(inside, last - first - 1)
            highest = inside[last - first - 1]
        else:
            highest = inside.max()
        above = float(np.nextafter(highest, np.inf))
        counts[number] = np.count_nonzero((values > below) & (values < above))
        peaks[number] = highest
        for row, weight in zip(logits[number].split(SERIAL), weights, strict=True):
            torch.sub(row, float(highest), out=weight).exp_()
            zero_outside(weight, row, below, above, out=row)
        sums[number] = values.sum()


def zero_outside(weights: Tensor, values: Tensor, below: float, above: float, out: Tensor) -> Tensor:
    """Write the weights where below < value < above and zeros elsewhere, in one pass over both.

    This is the gradient of clamping values to [below, above], and torch has a vectorised kernel for that gradient;
    comparisons and `where` take three passes and five times as long.
    """
    return torch.ops.aten.hardtanh_backward.grad_input(weights, values, below, above, grad_input=out)  # type: ignore[no-any-return]


def _weigh_block(logits: Tensor, places: Tensor, kept: Tensor, total: Tensor, peak: Tensor) -> None:
    """Turn logits (b, C) into weights; count them and add them up."""
    inside = within(logits, places) & (logits > -torch.inf)  # own samples have no rank
    torch.sum(inside, 1, out=kept)
    logits.masked_fill_(~inside, -torch.inf)
    torch.amax(logits, 1, out=peak)
    peak.masked_fill_(peak == -torch.inf, 0.0)
    weights = logits.sub_(peak[:, None]).exp_()
    torch.sum(weights, 1, out=total)
