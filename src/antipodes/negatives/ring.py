"""`Ring`: negatives from a ring of useful difficulty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from antipodes import schedules
from antipodes.functional.select import ring
from antipodes.negatives.policy import Policy
from antipodes.pairs import Pairs, Rule

Anneal = Literal["linear", "step", "none"]


class Ring(Policy):
    """Conditional negative sampling (Wu et al. 2021): not the easy candidates, and not the very closest.

    Of an anchor's N allowed candidates, sorted from the most similar on, ranks [inner * outer * N, outer * N) count.
    `outer` is the share of the candidates in the outer ball, `inner` the share of that ball which is too close: with
    the defaults the ring goes from the paper's percentiles [0, 90] to [90, 99].

    Where there are few classes the final ring sits on the false negatives; join it with a detector:
    `Ring() & GloFND(n, alpha=0.1)` is hard but not false.

    Args:
        outer: Share in the outer ball, at the start of training and when annealing is over.
        inner: Share of the outer ball that is left out; 0 is the paper's ball.
        until: Share of training that annealing takes.
        anneal: How the ball shrinks: linear, at once (step), or none, which has the final ring from the start.

    Example:
        >>> Ring(outer=(1.0, 0.1), inner=0.1).share(0.0)
        1.0
    """

    def __init__(
        self,
        outer: tuple[float, float] = (1.0, 0.1),
        inner: float = 0.1,
        until: float = 1 / 3,
        anneal: Anneal = "linear",
    ) -> None:
        super().__init__()
        if not all(0 < share <= 1 for share in outer):
            raise ValueError(f"outer must be two shares in (0, 1], got {tuple(outer)}: of the candidates, in the ball")
        if not 0 <= inner < 1:
            raise ValueError(f"inner must be in [0, 1), got {inner}: it is the share of the ball that is left out")
        if not 0 < until <= 1:
            raise ValueError(f"until must be in (0, 1], got {until}: it is a share of training")
        if anneal not in get_args(Anneal):
            raise ValueError(f"anneal must be one of {', '.join(get_args(Anneal))}, got {anneal!r}")
        self.inner = inner
        self.share = {
            "linear": schedules.linear(outer[0], outer[1], until),
            "step": schedules.step((0.0, outer[0]), (until, outer[1])),
            "none": schedules.constant(outer[1]),
        }[anneal]

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Ignore what lies outside of every anchor's ring."""
        keys, ids = pairs.keys()
        low, high = ring(pairs.anchors, keys, pairs.anchor_ids, ids, self.inner, self.share(progress))
        return [Rule(low=low, high=high)]
