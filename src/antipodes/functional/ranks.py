"""Ranks: rules that go by the order of similarities instead of their size.

A rank becomes a bound once all similarities of its anchor are known. `bounded` computes them block by block for that
purpose, after which every kernel can apply the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from antipodes.functional.row_blocks import RowBlocks
from antipodes.functional.rule import Bounds, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.select import band


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
        same_sample: which candidates are of the anchors' own samples, if that is known.

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
