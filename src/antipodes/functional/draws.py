"""Draws: a few random negatives for every anchor, among all that its rule keeps.

1. The similarities of a block of anchors with all candidates are computed, and the rule says which of them count.
2. Each anchor draws from those, uniformly and with replacement, and takes the exponentials of what it drew alone.
3. Added up by column, they are weights whose product with the candidates is the gradient, taken along in the same pass.

So nothing is gathered, and beside the inputs only O(block x C) numbers are in memory. The candidates are constants: the
entries of a bank take no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.allowed import Allowed
from antipodes.functional.contrast import contrast
from antipodes.functional.ranks import checked
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

    Returns:
        `log_sum` over the draws, -inf where there was nothing to draw from. `kept`, `pulled` and `pulled_sum` are of
        all candidates, as in `contrast`.

    Raises:
        ValueError: if samples is below 1, or the inputs do not fit together or are not finite.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}: it is the number of draws per anchor")
    allowed = Allowed(anchors, candidates, anchor_ids, candidate_ids)
    columns = allowed.columns
    sets = rules if columns is None else [rule.of_candidates(columns) for rule in rules]
    shape = (len(rules), len(anchors))
    numbers = uniform_numbers(generator, (*shape, samples), rank, world_size, anchors.device)
    kept = torch.zeros(shape, dtype=torch.int64, device=anchors.device)
    places = [[allowed.places(*checked(ranks, allowed)) for ranks in rule.ranks] for rule in sets]
    collected = Collected(anchors, allowed.candidates, len(rules), temperature)
    for rows, similarities in allowed.blocks():
        for number, rule in enumerate(sets):
            inside = _inside(rule, rows, similarities, [each[rows] for each in places[number]])
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
        )
        return everything._replace(log_sum=log_sum)
    return Sums(log_sum, kept, torch.zeros_like(log_sum), torch.zeros_like(kept))


def expected_sums(sums: Sums, samples: int) -> Sums:
    """The sums with `log_sum` replaced by what `samples` draws from the kept candidates give on average.

    Scales the sum over all |kept| candidates by samples / |kept|; an anchor that keeps none stays at -inf.
    """
    return sums._replace(log_sum=sums.log_sum + (samples / sums.kept.clamp(min=1).to(sums.log_sum)).log())


def _inside(rule: Rule, rows: slice, similarities: Tensor, places: Sequence[Tensor]) -> Tensor:
    """Which candidates (b, C) of the anchors in these rows the rule keeps; excluded ones have similarity -inf."""
    inside = similarities > -torch.inf
    ceiling = rule.ceiling if rule.above == "drop" else None
    for bound in (rule.high, ceiling):
        if bound is not None:  # bounds beyond the range of cosines never bind, whatever the rounding
            inside &= similarities <= torch.where(bound < 1, bound, torch.inf)[rows, None].to(similarities)
    if rule.low is not None:
        inside &= similarities >= torch.where(rule.low > -1, rule.low, -torch.inf)[rows, None].to(similarities)
    for each in places:
        inside &= within(similarities, each)
    for group in rule.groups:
        if group.same != "pull":
            own = group.anchors[rows, None]
            same = (own == group.candidates) & (own >= 0)
            inside &= same if group.same == "only" else ~same
    for listed in rule.lists:
        if listed.act == "drop":
            here = (listed.anchors >= rows.start) & (listed.anchors < rows.stop)
            inside[listed.anchors[here] - rows.start, listed.candidates[here]] = False
    return inside
