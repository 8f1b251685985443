"""Lesions of policies, and details in which the authors' code differs from their papers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes import FNC, IFND, GloFND, Oracle, Ring, schedules
from antipodes.functional.select import band_by_rank, whole_above
from antipodes.negatives.controls import random_group
from antipodes.negatives.glofnd import _Visits
from antipodes.negatives.policy import Alpha
from antipodes.pairs import Pairs, Rule
from antipodes.seeding import generator


class SharedGloFND(GloFND):
    """GloFND with one threshold for all samples (Figure 4 of its paper); one `alpha` for all, too."""

    @property
    def threshold(self) -> Tensor:
        """The threshold, once for every sample, (n,)."""
        return self._table.rows[:, 0].expand(self.num_samples)

    def _entries(self, num_samples: int) -> int:
        if isinstance(self.alpha, Tensor):
            raise ValueError(f"alpha by sample has the shape {tuple(self.alpha.shape)}: one threshold has one alpha")
        return 1

    def _places(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows)

    def _visits(self, pairs: Pairs, places: Tensor) -> _Visits:
        return _Visits(places)


class QuantileFNC(FNC):
    """FNC as in the code of GloFND's authors: candidates above the interpolated quantile 1 - alpha of the batch.

    Of N candidates these are ceil(alpha (N - 1)), where `FNC` flags max(1, round(alpha N)).

    Args:
        alpha: Share of the candidates treated as false.
        start: Share of training before the first flag.
    """

    def __init__(self, alpha: Alpha = 0.01, start: float = 0.0) -> None:
        super().__init__(alpha, start)

    def _ceiling(self, pairs: Pairs, alpha: Alpha) -> Tensor:
        keys, ids = pairs.keys()
        last = whole_above(alpha, pairs.available() - 1).clamp(min=0)
        low, _ = band_by_rank(pairs.anchors, keys, pairs.anchor_ids, ids, 0, last, pairs.same_sample)
        # an empty range has low = inf; s > the number just below low is s >= low
        return torch.where(low < torch.inf, low.nextafter(low - 1), low)


class HeldIFND(IFND):
    """IFND that holds the accepted share from one fit to the next (Algorithm 1) instead of moving it at every step."""

    @property
    def uses_progress(self) -> bool:
        """It follows its fits, not the training."""
        return False

    def _rate(self, progress: float) -> float:
        return self.rate(max(0.0, self.fitted_at.item()))


class PerClusterIFND(IFND):
    """IFND that accepts the most confident share of every cluster instead of all samples."""

    def _ranked_within(self, labels: Tensor) -> Tensor:
        return labels.long()


class NoisyOracle(Oracle):
    """An oracle that knows some of the labels, and errs: what a detector of this quality would be worth.

    Args:
        labels: (n,) whole numbers, one per row of the dataset; a negative label is unknown and matches nothing.
        known: Share of the samples whose label is used, drawn at random: known² of the false negatives are found.
        seed: Of that draw, and of the wrong flags.
        wrong: Probability with which a pair of different labels is flagged too, always the same pairs. With T pairs of
            the same label and N others the precision is about known² T / (known² T + wrong N).
    """

    def __init__(self, labels: Tensor | Any, known: float = 1.0, seed: int = 0, wrong: float = 0.0) -> None:
        super().__init__(labels)
        if not 0 <= known <= 1:
            raise ValueError(f"known must be in [0, 1], got {known}: it is the share of labels that are used")
        if not 0 <= wrong < 1:
            raise ValueError(f"wrong must be in [0, 1), got {wrong}: it is the share of other pairs flagged by mistake")
        self.seed, self.wrong = seed, wrong
        count = len(self.labels)
        order = torch.randperm(count, generator=generator("known labels", seed))
        self.labels[order[round(known * count) :].to(self.labels.device)] = -1

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's label, and some pairs by mistake."""
        (rule,) = super().judge(pairs, progress, learn)
        return [rule & Rule(groups=(random_group(pairs, self.wrong, self.seed),)) if self.wrong > 0 else rule]


STAIR = 0.1
"""By how much the staircase of Ring's authors shrinks the ball at a time."""
WINDOWS = {"validation": (5, 0.05), "loss": (10, 0.01)}
"""Of their adaptive anneals: with the mean of how many numbers the next one is compared, and how far the ball moves."""


class StaircaseRing(Ring):
    """Ring whose ball shrinks by tenths that last equally long, as in the authors' code."""

    def _moving(self, first: tuple[float, float], last: tuple[float, float]) -> schedules.Schedule:
        """Steps of `STAIR`; every share lasts equally long.

        So from 1 to 0.1 there are ten shares, and the last begins at nine tenths of the way.
        """
        (since, start), (until, end) = first, last
        steps = max(1, math.ceil(abs(start - end) / STAIR - 1e-9))
        signed = math.copysign(STAIR, end - start)
        values = [start + signed * number for number in range(steps)] + [end]
        span = (until - since) / len(values)
        return schedules.step(*((since + span * number, value) for number, value in enumerate(values)))


class WindowRing(Ring):
    """Ring with the adaptive anneals of the authors' code.

    A validation score is compared with the mean of the last 5 and moves the ball by 0.05, a training loss with the mean
    of the last 10 and moves it by 0.01, whatever time has passed; an equal number moves nothing.

    Args:
        outer: Share in the outer ball, at the start of training and when annealing is over.
        inner: Share of the outer ball that is left out.
        until: Share of training; only the order of `start` and `until` matters here.
        anneal: By the validation score, or by the training loss.
        start: Share of training before the ring begins to shrink.
    """

    past: Tensor

    def __init__(
        self,
        outer: tuple[float, float] = (1.0, 0.1),
        inner: float = 0.1,
        until: float = 1 / 3,
        anneal: Literal["validation", "loss"] = "validation",
        start: float = 0.0,
    ) -> None:
        if anneal not in WINDOWS:
            raise ValueError(f"anneal must be one of {', '.join(WINDOWS)}, got {anneal!r}")
        super().__init__(outer, inner, until, anneal, start=start)
        window, self.step = WINDOWS[anneal]
        self.register_buffer("past", torch.full((window,), math.nan, dtype=torch.float64))  # the newest comes last

    def _compare(self, value: float, progress: float) -> None:
        """Move the ball by one step if a number differs from the mean of those in the window."""
        known = self.past[~self.past.isnan()]
        if len(known) and progress >= self.start:
            change = value - known.mean().item()
            better = -change if self.needs.receives == "loss" else change
            self.ball -= math.copysign(self.step, better) if better else 0.0
        self.past.copy_(torch.cat((self.past[1:], self.past.new_tensor([value]))))
        self._remember(value, progress)
