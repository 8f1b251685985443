"""`Hardest`: only the most similar candidates are negatives."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.negatives.policy import Needs, Policy
from antipodes.pairs import Pairs, Ranks, Rule


class Hardest(Policy):
    """Hard negative mining: the k most similar candidates of every anchor count, the others are ignored.

    Args:
        k: How many; HNSSL takes the single most similar.

    Example:
        >>> Hardest(k=5)
        Hardest()
    """

    needs = Needs(rows=False, order=True)

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}: it is the number of negatives that count")
        self.k = k

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Ignore what is less similar than the k-th."""
        return [Rule(ranks=(Ranks(0, self.k),))]
