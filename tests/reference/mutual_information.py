"""NCE and CNCE by loops, and their exact expectations and variances on finite distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

Numbers = Sequence[float]


def estimate(positive: float, negatives: Numbers) -> float:
    """Z of Theorem 3.2: log( e^f1 / mean of e^f over the positive and the negatives )."""
    values = [positive, *negatives]
    return positive - math.log(sum(math.exp(value) for value in values) / len(values))


def moments(
    positive: float, critic: Numbers, weights: Numbers, draws: int, keep: Callable[[tuple[int, ...]], bool]
) -> tuple[float, float]:
    """Mean and variance of Z over all tuples of negatives that `keep` keeps, drawn with the given weights."""
    outcomes = []
    for drawn in itertools.product(range(len(critic)), repeat=draws):
        if keep(drawn):
            outcomes.append((math.prod(weights[v] for v in drawn), estimate(positive, [critic[v] for v in drawn])))
    total = sum(weight for weight, _ in outcomes)
    mean = sum(weight * z for weight, z in outcomes) / total
    return mean, sum(weight * (z - mean) ** 2 for weight, z in outcomes) / total


def expected(
    joint: Sequence[Numbers], critic: Sequence[Numbers], draws: int, kept: Sequence[set[int]] | None = None
) -> float:
    """NCE of a joint distribution p(u, v) with so many negatives; CNCE where `kept` names each u's candidates."""
    marginal = [sum(row[v] for row in joint) for v in range(len(joint[0]))]
    total = 0.0
    for u, row in enumerate(joint):
        inside = set(range(len(row))) if kept is None else kept[u]
        for v, weight in enumerate(row):
            total += weight * moments(critic[u][v], critic[u], marginal, draws, inside.issuperset)[0]
    return total


def mutual_information(joint: Sequence[Numbers]) -> float:
    """I(U; V) by its definition."""
    columns = [sum(row[v] for row in joint) for v in range(len(joint[0]))]
    rows = [sum(row) for row in joint]
    return sum(
        p * math.log(p / (rows[u] * columns[v])) for u, row in enumerate(joint) for v, p in enumerate(row) if p > 0
    )
