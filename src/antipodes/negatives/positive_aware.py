"""`PositiveAware`: what is nearly as similar as the anchor's own positive is a false negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from antipodes.negatives.policy import Needs, Policy
from antipodes.pairs import Bounds, Guide, Pairs, Rule


class PositiveAware(Policy):
    """Positive-aware mining (NV-Retriever, Moreira et al. 2024): the positive says how similar a negative may be.

    With s+ the similarity of an anchor to its positive, candidates are false negatives above

        s+ - margin |s+|   (relative: the paper's TopK-PercPos of 95 % is a margin of 0.05)
        s+ - margin        (otherwise: its TopK-MarginPos)

    The absolute value keeps the bound below s+ where that is negative. There is nothing to learn or to store.
    Published: NV-Retriever-v1, whose hard negatives were mined so, scores 60.9 on MTEB's retrieval tasks (BEIR).

    Args:
        margin: How much less similar than the positive a negative must be.
        relative: Whether the margin is a share of the positive's similarity.
        guide: Compare in the space of a guide instead of that of the embeddings.
        start: Share of training before the first flag.

    Example:
        >>> import torch
        >>> pairs = Pairs(torch.eye(2), torch.arange(2), torch.tensor([0.8, -0.4]))
        >>> PositiveAware(margin=0.05, relative=True).judge(pairs, 1.0)[0].ceiling
        tensor([ 0.7600, -0.4200])
    """

    needs = Needs(rows=False, positive=True)

    def __init__(self, margin: float = 0.05, relative: bool = True, guide: bool = False, start: float = 0.0) -> None:
        super().__init__()
        check_margin(margin, start)
        self.margin, self.relative, self.start = margin, relative, start
        self.needs = replace(self.needs, guide=guide)

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Flag what exceeds the bound that every anchor's positive sets."""
        if progress < self.start:
            return [Rule()]
        if self.needs.guide:
            return [Rule(guide=Bounds(ceiling=below(required(pairs, self).positives, self.margin, self.relative)))]
        return [Rule(ceiling=below(pairs.positives.detach(), self.margin, self.relative))]


def below(positives: Tensor, margin: float, relative: bool) -> Tensor:
    """The bound that a positive of this similarity sets, (A,)."""
    return positives - margin * positives.abs() if relative else positives - margin


def check_margin(margin: float, start: float) -> None:
    """Refuse a margin or a start that is none."""
    if not math.isfinite(margin):
        raise ValueError(f"margin must be finite, got {margin}: it is how far below the positive a negative must be")
    if not 0 <= start <= 1:
        raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training before the first flag")


def required(pairs: Pairs, policy: Policy) -> Guide:
    """The guide of these pairs, or one sentence that there is none."""
    if pairs.guide is None:
        raise ValueError(
            f"{type(policy).__name__} compares in the space of a guide, and there is none: "
            "give the loss guide=(vectors of the first views, vectors of the second)"
        )
    return pairs.guide
