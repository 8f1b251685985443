"""Ranks: rules that go by the order of similarities instead of their size.

A rank becomes a bound once all similarities of its anchor are known. `bounded` computes them for that purpose, after
which every kernel can apply the rule. Where a band of ranks is all that a rule says and the candidates are constants (a
queue, a bank), `ranked_sums` needs no second look at them:

1. The logits of a block of anchors with all candidates are computed.
2. While it is in the processor's cache, each row becomes exponentials, which have the order of the logits. A copy of it
   is partitioned for the bounds, and what is not between them becomes zero in its place: the row of weights.
3. The block of weights gives the sums and, in a product with the candidates, the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.allowed import Allowed
from antipodes.functional.rule import Ranks, Rule
from antipodes.functional.select import band, within
from antipodes.functional.sums import Collected, Sums, sum_dtype
from antipodes.threads import one_thread


def checked(ranks: Ranks, allowed: Allowed) -> tuple[Tensor, Tensor]:
    """The first and last ranks of every anchor, (A,) each.

    Raises:
        ValueError: if they are something else.
    """
    return allowed.per_anchor(ranks.first, "Ranks.first"), allowed.per_anchor(ranks.last, "Ranks.last")


def bounded(
    rules: Sequence[Rule], anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor
) -> tuple[Rule, ...]:
    """The same rules with their ranks as bounds of similarities.

    Raises:
        ValueError: for ranks that are neither numbers nor one integer per anchor, or inputs that are not finite.
    """
    if not any(rule.ranks for rule in rules):
        return tuple(rules)
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    result = []
    for rule in rules:
        for ranks in rule.ranks:
            low, high = band(allowed, *checked(ranks, allowed))
            rule = rule & Rule(low=low, high=high)
        result.append(replace(rule, ranks=()))
    return tuple(result)


def ranked_sums(
    anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, temperature: float, ranks: Ranks
) -> Sums:
    """What `contrast` returns for one rule that only has ranks and candidates that need no gradient.

    Raises:
        ValueError: as `contrast`.
    """
    dtype = sum_dtype(anchors, candidates, torch.tensor(temperature, dtype=torch.float64))
    allowed = Allowed(anchors.detach().to(dtype) / temperature, candidates, anchor_ids, candidate_ids)
    places = allowed.places(*checked(ranks, allowed))
    collected = Collected(anchors, allowed.candidates, 1, temperature)
    kept, total = (allowed.anchors.new_zeros(len(anchors)) for _ in range(2))
    for rows, logits in allowed.blocks():
        if logits.device.type == "cpu":
            with one_thread():  # to wake others for every row takes up to ten times as long as the work
                _weigh_rows(logits, places[rows], kept[rows], total[rows])
        else:
            _weigh_block(logits, places[rows], kept[rows], total[rows])
        collected.add(0, rows, logits, total[rows])
    log_sum = collected.log_sum().to(torch.promote_types(anchors.dtype, torch.float32))
    nothing = torch.zeros_like(log_sum)
    return Sums(log_sum, kept.long()[None], nothing, nothing.long())


def _weigh_rows(logits: Tensor, places: Tensor, kept: Tensor, total: Tensor) -> None:
    """Turn logits (b, C) into weights, one row at a time while it is in cache; count them and add them up."""
    counts, sums = kept.numpy(), total.numpy()
    block = logits.numpy()  # the same memory
    ranked = np.empty_like(block[0])
    bits = ranked.view(f"i{ranked.itemsize}")  # of positive floats: in the same order, and faster to partition
    for number, (row, (last, first)) in enumerate(zip(logits, places.tolist(), strict=True)):
        if last == 0:
            row.zero_()
            continue
        row.exp_()
        np.copyto(ranked, block[number])
        below, above = -math.inf, math.inf
        if last < len(bits):
            bits.partition(len(bits) - last)
            below = float(np.nextafter(ranked[-last], -np.inf))
        if first:
            bits[-last:].partition(last - first - 1)
            above = float(np.nextafter(ranked[-first - 1], np.inf))
        # in one pass: zero unless below < weight < above
        torch.ops.aten.hardtanh_backward.grad_input(row, row, below, above, grad_input=row)
        counts[number] = np.count_nonzero(block[number] > 0)
        sums[number] = row.sum().item()


def _weigh_block(logits: Tensor, places: Tensor, kept: Tensor, total: Tensor) -> None:
    """Turn logits (b, C) into weights; count them and add them up."""
    weights = logits.exp_()
    weights *= within(weights, places)
    torch.sum(weights > 0, 1, out=kept)
    torch.sum(weights, 1, out=total)
