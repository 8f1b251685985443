"""Judge: what a rule says about a block of similarities, as a mask, for those who look at pairs one by one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional._masks import Block, compile_rule, keep_mask, pull_mask
from antipodes.functional._tiles import Buffers, whole
from antipodes.functional.rule import Rule


class Judged(NamedTuple):
    """What a rule does with a block of pairs, (b, C) of booleans each.

    Attributes:
        kept: pairs that stay in the denominator: neither ignored nor dropped.
        pulled: kept pairs that are positives as well.
    """

    kept: Tensor
    pulled: Tensor


def judge_block(
    rule: Rule, similarities: Tensor, rows: slice | None = None, *, guide_similarities: Tensor | None = None
) -> Judged:
    """Say which pairs of a block a rule keeps and pulls, exactly as the kernel does it, tile by tile.

    The rule knows nothing of samples: whoever asks takes out the anchors' own and empty slots. Its ranks must have
    become bounds (`bounded`), since a block need not show all candidates.

    Args:
        rule: of A anchors and C candidates.
        similarities: (b, C) of some anchors with all candidates.
        rows: which anchors, a slice of b of them with a start and a stop. None: all.
        guide_similarities: (b, C) in the guide's space, for a rule that looks at it.

    Raises:
        ValueError: if the rule has ranks, or looks at a guide that is not given.

    Example:
        >>> rule = Rule(ceiling=torch.tensor([0.5, 0.9]))
        >>> judge_block(rule, torch.tensor([[0.1, 0.8], [0.1, 0.8]])).kept
        tensor([[ True, False],
                [ True,  True]])
    """
    if rule.ranks:
        raise ValueError("ranks mean nothing in a block: turn them into bounds first, with `bounded`")
    if rule.needs_guide and guide_similarities is None:
        raise ValueError("the rule looks at the guide's space: give guide_similarities")
    rule = rule if rows is None else rule.of_anchors(rows)
    height, width = similarities.shape
    tile = whole(height, width)
    mask = compile_rule(rule, lambda bound: bound, (tile,), similarities.dtype)
    buffers = Buffers(height * width, similarities)
    block = Block(tile, similarities.detach(), None if guide_similarities is None else guide_similarities.detach())
    keep = keep_mask(mask, block, False, buffers)
    if not mask.pulls:
        return Judged(keep > 0, torch.zeros_like(keep, dtype=torch.bool))
    return Judged(keep > 0, pull_mask(mask, block, False, keep, buffers) > 0)


def flagged_block(
    rule: Rule, similarities: Tensor, rows: slice | None = None, *, guide_similarities: Tensor | None = None
) -> Tensor:
    """Say which pairs of a block a rule calls false negatives, whether it drops or pulls them, (b, C) of booleans.

    The arguments are those of `judge_block`; what the rule ignores makes no difference.

    Example:
        >>> flagged_block(Rule(ceiling=torch.tensor([0.5])), torch.tensor([[0.1, 0.8]]))
        tensor([[False,  True]])
    """
    return judge_block(rule.flags().attract(), similarities, rows, guide_similarities=guide_similarities).pulled
