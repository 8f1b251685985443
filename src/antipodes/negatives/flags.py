"""`Flags`: the false negatives of a step one by one, for those who want to see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.masks import flagged_block
from antipodes.pairs import Pairs, Rule

_BLOCK = 512  # anchors whose similarities are in memory at once


class Flags(NamedTuple):
    """The pairs that a policy calls false negatives, in the order of rules and anchors.

    Attributes:
        anchors: (L,) positions of anchors.
        candidates: (L,) positions of candidates.
        similarities: (L,) the cosines of these pairs.
        rules: (L,) which rule flags the pair; all 0 but for policies with several granularities.
        thresholds: (R, A) the similarity above which a candidate is flagged; inf where a rule has no such bound.
    """

    anchors: Tensor
    candidates: Tensor
    similarities: Tensor
    rules: Tensor
    thresholds: Tensor

    def of(self, anchor: int) -> Tensor:
        """The candidates that this anchor flags under any rule, each once."""
        found: Tensor = self.candidates[self.anchors == anchor].unique()
        return found


@torch.no_grad()
def find_flags(pairs: Pairs, rules: Sequence[Rule]) -> Flags:
    """List what the rules flag, a block of anchors at a time; what they only ignore is not flagged."""
    keys, key_ids = pairs.keys()
    anchors, keys = pairs.anchors.detach(), keys.detach()
    guide = None if pairs.guide is None else (pairs.guide.anchors, pairs.guide.keys())
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    thresholds = anchors.new_full((len(rules), len(anchors)), torch.inf)
    for number, rule in enumerate(rules):
        if rule.ceiling is not None:
            thresholds[number] = rule.ceiling
        for start in range(0, len(anchors), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(anchors)))
            similarities = anchors[block] @ keys.T
            looked = guide[0][block] @ guide[1].T if guide is not None and rule.needs_guide else None
            flagged = flagged_block(rule, similarities, block, guide_similarities=looked)
            flagged[pairs.same_sample.pairs(block)] = False
            flagged[:, key_ids < 0] = False
            row, column = flagged.nonzero(as_tuple=True)
            found.append((row + start, column, similarities[row, column], torch.full_like(row, number)))
    columns = [torch.cat(parts) for parts in zip(*found, strict=True)]
    return Flags(columns[0], columns[1], columns[2], columns[3], thresholds)
