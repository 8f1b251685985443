"""`Guided`: a guide that finds a candidate as close as the positive says that it is a false negative."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.negatives.policy import Policy
from antipodes.negatives.positive_aware import below, check_margin, required
from antipodes.pairs import Bounds, Pairs, Rule


class Guided(Policy):
    """Guided in-batch selection (GISTEmbed, Solatorio 2024): another pair of eyes finds the false negatives.

    In the space of a guide (a table of vectors, a frozen network, the sample's own history; see `antipodes.guides`) a
    candidate that is more similar to the anchor than the anchor's own positive, minus the margin, is a false negative.
    What the young encoder itself thinks of the pair does not matter. `Ring() & Guided()` is "hard, but not false".

    Args:
        margin: How much less similar than the guide's positive a negative must be; GISTEmbed takes 0.
        relative: Whether the margin is a share of the similarity of the guide's positive.
        start: Share of training before the first flag.

    Example:
        >>> from antipodes import InfoNCE
        >>> loss_fn = InfoNCE(negatives=Guided(margin=0.1))  # loss_fn(z1, z2, ids, guide=(g1, g2))
    """

    by_row = False
    uses_guide = True

    def __init__(self, margin: float = 0.0, relative: bool = False, start: float = 0.0) -> None:
        super().__init__()
        check_margin(margin, start)
        self.margin, self.relative, self.start = margin, relative, start

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Flag what the guide finds more similar than its positive allows."""
        if progress < self.start:
            return [Rule()]
        guide = required(pairs, self)
        return [Rule(guide=Bounds(ceiling=below(guide.positives, self.margin, self.relative)))]
