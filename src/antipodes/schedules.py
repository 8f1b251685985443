"""Schedules: numbers that change during training, as functions of progress alone, so no state is saved.

A `Schedule` maps the share of training that is done, in [0, 1], to a value. `constant`, `linear`, `cosine`, `step` and
`interpolate` build one; `learning_rate` is the usual warm-up followed by a decay, counted in steps.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """A value for every progress: `points` are (progress, value) pairs, `shape` is the curve between two points.

    The value is constant before the first point and after the last. "step" keeps a point's value until the next point.

    Raises:
        ValueError: the points are not in increasing order within [0, 1]; calling it raises for a progress outside.

    Example:
        >>> Schedule(((0.0, 1.0), (0.5, 3.0)), "linear")(0.25)
        2.0
    """

    points: tuple[tuple[float, float], ...]
    shape: Literal["linear", "cosine", "step"]

    def __post_init__(self) -> None:
        places = [place for place, _ in self.points]
        in_order = all(early < late for early, late in pairwise(places))
        if not places or not in_order or not all(0 <= place <= 1 for place in places):
            raise ValueError(f"a schedule's points must have increasing progress within [0, 1], got {places}")
        if not all(math.isfinite(value) for _, value in self.points):
            raise ValueError(f"a schedule's values must be finite, got {[value for _, value in self.points]}")

    def __call__(self, progress: float) -> float:
        """Return the value after this share of training."""
        if not isinstance(progress, Real) or not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}: it is the share of training that is done")
        after = bisect_right(self.points, progress, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        start, low = self.points[after - 1]
        if after == len(self.points) or self.shape == "step":
            return low
        end, high = self.points[after]
        share = (progress - start) / (end - start)
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return low + share * (high - low)


def constant(value: float) -> Schedule:
    """Return the same value throughout."""
    return Schedule(((0.0, value),), "step")


def linear(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return a straight line from `start` to `end` at progress `until`, constant afterwards.

    Example:
        >>> linear(1.0, 0.0, until=0.5)(0.25)
        0.5
    """
    return Schedule(((0.0, start), (until, end)), "linear")


def cosine(start: float, end: float, until: float = 1.0) -> Schedule:
    """Return half a cosine from `start` to `end` at progress `until`, slow at both ends and constant afterwards."""
    return Schedule(((0.0, start), (until, end)), "cosine")


def step(*points: tuple[float, float]) -> Schedule:
    """Return a schedule that jumps to a value at each (progress, value) point.

    Example:
        >>> step((0.0, 1.0), (0.6, 0.1))(0.6)
        0.1
    """
    return Schedule(points, "step")


def interpolate(*points: tuple[float, float]) -> Schedule:
    """Return a schedule of straight lines between (progress, value) points."""
    return Schedule(points, "linear")


def learning_rate(
    step: int,
    total_steps: int,
    warmup_steps: int,
    base: float,
    kind: Literal["cosine", "step", "constant"] = "cosine",
    milestones: Sequence[float] = (0.6, 0.8),
    gamma: float = 0.1,
) -> float:
    """Return the learning rate of a step: a linear warm-up to `base`, then a decay.

    Args:
        step: number of optimiser steps taken before, from 0.
        total_steps: number of steps of the whole training.
        warmup_steps: the first step has base / (warmup_steps + 1), the step after the warm-up has `base`.
        base: the highest learning rate.
        kind: "cosine" falls to 0 at `total_steps`; "step" multiplies by `gamma` at each milestone; "constant" is flat.
        milestones: shares of the whole training, in (0, 1) and after the warm-up; the default is MoCo's 120 and 160 of
            200 epochs.
        gamma: factor of each milestone.

    Raises:
        ValueError: the schedule is impossible, for example with a warm-up as long as the training.

    Example:
        >>> [learning_rate(step, total_steps=4, warmup_steps=1, base=1.0) for step in range(5)]
        [0.5, 1.0, 0.75, 0.2500000000000001, 0.0]
    """
    if not 0 <= step <= total_steps:
        raise ValueError(f"step must be in [0, {total_steps}], got {step}: training has {total_steps} steps")
    if not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"the warm-up must be shorter than training, got {warmup_steps} warm-up steps of {total_steps}: "
            "train longer or warm up less"
        )
    if not 0 <= base < math.inf:
        raise ValueError(f"the learning rate must be a finite number of at least 0, got {base}")
    if kind not in ("cosine", "step", "constant"):
        raise ValueError(f"unknown learning rate schedule {kind!r}: choose one of cosine, step, constant")
    if kind == "step" and not all(warmup_steps / total_steps < milestone < 1 for milestone in milestones):
        raise ValueError(
            f"milestones must lie after the warm-up and before the end, between {warmup_steps / total_steps:g} and 1, "
            f"got {tuple(milestones)}: they are shares of the training"
        )
    if step < warmup_steps:
        return base * (step + 1) / (warmup_steps + 1)
    if kind == "cosine":
        return base * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps))) / 2
    if kind == "step":
        return base * gamma ** sum(step / total_steps >= milestone for milestone in milestones)
    return base
