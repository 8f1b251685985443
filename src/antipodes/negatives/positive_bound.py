"""`PositiveAware` and `Guided`: what is nearly as similar as the anchor's own positive is a false negative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from antipodes.functional.select import top_share
from antipodes.negatives.policy import Needs, Policy, check_shares
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


ROUNDING = 16  # so many units of the last place may two products of the same vectors differ


class Guided(Policy):
    """Guided in-batch selection (GISTEmbed, Solatorio 2024): a guide model finds the false negatives.

    In the space of a guide (a table of vectors, a frozen network, the sample's own history; see `antipodes.guides`) a
    candidate that is more similar to the anchor than the anchor's own positive, minus the margin, is a false negative.
    The similarities of the encoder that is being trained play no part. `Ring() & Guided()` is "hard, but not false".

    Args:
        margin: How much less similar than the guide's positive a negative must be; GISTEmbed takes 0. A guide that
            knows one vector of a sample (a table, say) has a positive of similarity 1: 0.3 flags what exceeds 0.7 then.
        relative: Whether the margin is a share of the similarity of the guide's positive.
        start: Share of training before the first flag.
        alpha: In the place of the margin: flag this share of the candidates, those that the guide finds nearest, as
            far as their similarity there is above 0.

    Example:
        >>> from antipodes import InfoNCE
        >>> loss_fn = InfoNCE(negatives=Guided(margin=0.1))  # loss_fn(z1, z2, ids, guide=(g1, g2))
    """

    needs = Needs(rows=False, guide=True, positive=True)

    def __init__(
        self, margin: float = 0.0, relative: bool = False, start: float = 0.0, alpha: float | None = None
    ) -> None:
        super().__init__()
        check_margin(margin, start)
        if alpha is not None:
            check_shares(alpha, start)
            if margin or relative:
                raise ValueError("alpha takes the place of the margin: leave margin and relative out")
        self.margin, self.relative, self.start, self.alpha = margin, relative, start, alpha

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Flag what the guide finds more similar than its positive allows, or the share that it finds nearest."""
        if progress < self.start:
            return [Rule()]
        guide = required(pairs, self)
        if self.alpha is not None:
            ids = pairs.anchor_ids, pairs.keys()[1]
            ceiling = top_share(guide.anchors, guide.keys(), *ids, self.alpha, pairs.same_sample)
            # the kernel's product of the same vectors may round the last of the share below its own similarity
            ceiling = ceiling - ROUNDING * torch.finfo(ceiling.dtype).eps
            # a sample that the guide does not know has the zero vector: similar to nothing, though it may be nearest
            return [Rule(guide=Bounds(ceiling=ceiling.clamp(min=0.0)))]
        return [Rule(guide=Bounds(ceiling=below(guide.positives, self.margin, self.relative)))]
