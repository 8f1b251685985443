"""Draws: a few random negatives for every anchor, among all that its rule keeps.

1. The similarities of a block of anchors with all candidates are computed, and the rule says which of them count.
2. Each anchor draws from those, uniformly and with replacement, and takes the exponentials of what it drew alone.
3. Added up by column, they are weights whose product with the candidates is the gradient, taken along in the same pass.

So nothing is gathered, and beside the inputs only O(block x C) numbers are in memory. The candidates are constants: the
entries of a bank take no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from antipodes.functional._arguments import Guide, checked_guide
from antipodes.functional.contrast import contrast
from antipodes.functional.judge import judge_block
from antipodes.functional.ranks import checked
from antipodes.functional.row_blocks import RowBlocks
from antipodes.functional.rule import Rule
from antipodes.functional.select import draw, uniform_numbers, within
from antipodes.functional.sums import Collected, Sums


def drawn_sums(
    anchors: Tensor,
    candidates: Tensor,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    temperature: float,
    rules: Sequence[Rule],
    samples: int,
    generator: torch.Generator,
    rank: int = 0,
    world_size: int = 1,
    guide: Guide | None = None,
) -> Sums:
    """Sum over draws of every anchor's own, from what each rule keeps; every rule has draws of its own.

    Args:
        anchors: (A, D), L2-normalised; the gradient of `log_sum` reaches them.
        candidates: (C, D), L2-normalised, without gradient.
        anchor_ids: (A,) dataset ids.
        candidate_ids: (C,) dataset ids; the anchor's own and negative ones are never drawn.
        temperature: divides the similarities.
        rules: what may be drawn: W of a rule is the set, Y its pulled pairs.
        samples: draws per anchor, with replacement.
        generator: in the same state on every rank.
        rank: this rank's number; the random numbers are those of its anchors among the anchors of all ranks.
        world_size: the number of ranks.
        guide: as in `contrast`.

    Returns:
        `log_sum` over the draws, -inf where there was nothing to draw from. `kept`, `pulled` and `pulled_sum` are of
        all candidates, as in `contrast`.

    Raises:
        ValueError: if samples is below 1, or the inputs do not fit together or are not finite.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}: it is the number of draws per anchor")
    blocks = RowBlocks(anchors, candidates, anchor_ids, candidate_ids)
    needed = any(rule.needs_guide for rule in rules)
    guides = checked_guide(guide, needed, len(anchors), len(candidates), False, blocks.anchors.dtype)
    columns = blocks.columns
    sets = rules if columns is None else [rule.of_candidates(columns) for rule in rules]
    if guides is not None and columns is not None:
        guides = (guides[0], guides[1][columns])
    shape = (len(rules), len(anchors))
    numbers = uniform_numbers(generator, (*shape, samples), rank, world_size, anchors.device)
    kept = torch.zeros(shape, dtype=torch.int64, device=anchors.device)
    places = [[(ranks.space, blocks.places(*checked(ranks, blocks))) for ranks in rule.ranks] for rule in sets]
    sets = [replace(rule, ranks=()) for rule in sets]
    collected = Collected(anchors, blocks.candidates, len(rules), temperature)
    for rows, similarities in blocks.blocks():
        by_guide = None
        if guides is not None:
            by_guide = (guides[0][rows] @ guides[1].T).masked_fill_(similarities == -torch.inf, -torch.inf)
        for number, rule in enumerate(sets):
            inside = judge_block(rule, similarities, rows, guide_similarities=by_guide).kept
            inside &= similarities > -torch.inf
            for space, place in places[number]:
                ranked = similarities if space == "own" else by_guide
                assert ranked is not None
                inside &= within(ranked, place[rows])
            columns, kept[number, rows] = draw(inside, numbers[number, rows])
            drawn, columns = columns >= 0, columns.clamp_(min=0)
            logits = similarities.gather(1, columns).div_(temperature).masked_fill_(~drawn, -torch.inf)
            peak = logits.amax(1)
            peak.masked_fill_(peak == -torch.inf, 0.0)
            values = logits.sub_(peak[:, None]).exp_()
            weights = torch.zeros_like(similarities).scatter_add_(1, columns, values)
            collected.add(number, rows, weights, values.sum(1), peak)
    log_sum = collected.log_sum()
    if any(rule.pulls for rule in rules):
        everything = contrast(
            anchors,
            candidates.detach(),
            anchor_ids=anchor_ids,
            candidate_ids=candidate_ids,
            temperature=temperature,
            rules=rules,
            guide=guide,
        )
        return everything._replace(log_sum=log_sum)
    return Sums(log_sum, kept, torch.zeros_like(log_sum), torch.zeros_like(kept))


def expected_sums(sums: Sums, samples: int) -> Sums:
    """The sums with `log_sum` replaced by what `samples` draws from the kept candidates give on average.

    Scales the sum over all |kept| candidates by samples / |kept|; an anchor that keeps none stays at -inf.
    """
    return sums._replace(log_sum=sums.log_sum + (samples / sums.kept.clamp(min=1).to(sums.log_sum)).log())
