"""`Guided`: a candidate that a guide finds as similar as the positive is a false negative."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antipodes.functional.select import top_share
from antipodes.negatives.policy import Needs, Policy, check_shares
from antipodes.negatives.positive_aware import below, check_margin, required
from antipodes.pairs import Bounds, Pairs, Rule

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
