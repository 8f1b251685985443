"""Draws: a few random negatives for every anchor, among all that its rule keeps.

1. The similarities of a block of anchors with all candidates are computed, and the rule says which of them count.
2. Each anchor draws from those, uniformly and with replacement, and takes the exponentials of what it drew alone.
3. Added up by column, they are weights whose product with the candidates is the gradient, taken along in the same pass.

So nothing is gathered, and apart from the inputs only O(block x C) numbers are in memory. The candidates are constants:
the entries of a bank take no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.checks import Guide, checked_guide
from antipodes.functional.contrast import Sums, contrast
from antipodes.functional.masks import judge_block
from antipodes.functional.rule import Rule
from antipodes.functional.select import RowBlocks, checked, within


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
        ValueError: if samples is below 1, or the inputs do not match or are not finite.
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
            columns, kept[number, rows] = draw_columns(inside, numbers[number, rows])
            collected.add(number, rows, *_weights(similarities, columns, temperature))
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


def _weights(similarities: Tensor, columns: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return e^{s / temperature - peak} (b, C), added up over the columns (b, m) drawn, their sums and peaks (b,)."""
    drawn, columns = columns >= 0, columns.clamp(min=0)
    logits = similarities.gather(1, columns).div_(temperature).masked_fill_(~drawn, -torch.inf)
    peak = logits.amax(1)
    peak.masked_fill_(peak == -torch.inf, 0.0)
    values = logits.sub_(peak[:, None]).exp_()
    return torch.zeros_like(similarities).scatter_add_(1, columns, values), values.sum(1), peak


def expected_sums(sums: Sums, samples: int) -> Sums:
    """The sums with `log_sum` replaced by what `samples` draws from the kept candidates give on average.

    Scales the sum over all |kept| candidates by samples / |kept|; an anchor that keeps none stays at -inf.
    """
    return sums._replace(log_sum=sums.log_sum + (samples / sums.kept.clamp(min=1).to(sums.log_sum)).log())


def uniform_numbers(
    generator: torch.Generator, shape: tuple[int, ...], rank: int, world_size: int, device: torch.device
) -> Tensor:
    """Numbers in [0, 1) for the anchors of all ranks, of which each rank takes its own.

    Two ranks of A anchors with equal generators get what one rank of 2A anchors gets.

    Args:
        generator: In the same state on all ranks.
        shape: (..., A, m) of this rank.
        rank: Whose numbers to take.
        world_size: How many ranks.
        device: Where to put them.

    Returns:
        float64, 53 random bits, so that floor(number * size) is uniform for a bank of any size.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}: it says whose random numbers to take")
    *outer, count, m = shape
    numbers = torch.rand(
        *outer, world_size * count, m, dtype=torch.float64, generator=generator, device=generator.device
    )
    return numbers[..., rank * count : (rank + 1) * count, :].to(device)


def draw_columns(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Choose by numbers (A, m) in [0, 1) among the columns inside (A, C).

    Returns:
        the columns (A, m), -1 where there are none, and the number that there were to choose from (A,).
    """
    return _draw_by_rows(inside, numbers) if inside.device.type == "cpu" else _draw_by_counts(inside, numbers)


class Collected:
    """Log sums with a gradient for the anchors, from rows of weights over all candidates, which are constants.

    Args:
        anchors: (A, D); they get the gradient.
        candidates: (C, D), in the dtype of the sums.
        rules: R, how many sums there are.
        temperature: by which similarities were divided before the weights were made of them.
    """

    def __init__(self, anchors: Tensor, candidates: Tensor, rules: int, temperature: float) -> None:
        self.anchors, self.candidates, self.temperature = anchors, candidates, temperature
        self._log_sum = candidates.new_full((rules, len(anchors)), -torch.inf)
        # the gradient of log_sum for its anchor: the weighted mean of the candidates / temperature
        self._direction = candidates.new_zeros(rules, *anchors.shape)

    def add(self, rule: int, rows: slice, weights: Tensor, total: Tensor, peak: Tensor | float = 0.0) -> None:
        """Take in weights e^{s / temperature - peak} (b, C), zero where nothing is kept, and their sums (b,)."""
        self._log_sum[rule, rows] = total.log() + peak
        scale = torch.where(total > 0, total * self.temperature, 1.0)
        self._direction[rule, rows] = torch.mm(weights, self.candidates).div_(scale[:, None])

    def log_sum(self) -> Tensor:
        """The log sums (R, A): -inf with zero gradient where nothing was kept."""
        # adds zero, and the gradient
        return self._log_sum + ((self.anchors - self.anchors.detach()) * self._direction).sum(2)


def _draw_by_rows(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    columns, sizes = torch.full(numbers.shape, -1), torch.zeros(len(numbers), dtype=torch.int64)
    rows = zip(inside.numpy(), numbers.numpy(), columns.numpy(), strict=True)
    for place, (row, number, chosen) in enumerate(rows):
        places = np.flatnonzero(row)
        sizes[place] = len(places)
        if len(places):
            chosen[:] = places[(number * len(places)).astype(np.int64)]
    return columns, sizes


def _draw_by_counts(inside: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    counts = inside.cumsum(1)
    size = counts[:, -1:].contiguous()
    return torch.searchsorted(counts, (numbers * size).long() + 1).masked_fill(size == 0, -1), size[:, 0]
