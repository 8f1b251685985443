"""Means, spreads and paired differences over seeds, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, stdev

Results = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Variant -> seed -> score -> number."""
Histories = Mapping[str, Mapping[int, Sequence[Mapping[str, float | None]]]]
"""Variant -> seed -> the numbers of every epoch."""


@dataclass(frozen=True)
class Line:
    """One score of one variant.

    Args:
        variant: Whose score it is.
        score: Its name.
        seeds: The seeds it was measured with, sorted.
        mean: Over these seeds.
        deviation: Sample standard deviation over the seeds; None for a single one.
        against: The variant that it is compared with; None for the baseline.
        pairs: Number of seeds that the two have in common.
        difference: Mean difference over the common seeds; None without any.
        p: Two-sided, of the paired t-test; None where there is none (see `paired_p`).
        p_greater: One-sided, of the same test: that the variant is better, as papers often report it.
        error: Standard error of the difference over the common seeds; None with fewer than two.
    """

    variant: str
    score: str
    seeds: tuple[int, ...]
    mean: float
    deviation: float | None
    against: str | None = None
    pairs: int = 0
    difference: float | None = None
    p: float | None = None
    p_greater: float | None = None
    error: float | None = None


def summarise(results: Results, baseline: str, against: Mapping[str, str] | None = None) -> list[Line]:
    """A line per score and variant, score by score, the variants in their order.

    Args:
        results: The scores.
        baseline: The variant that the others are compared with.
        against: Variant -> the one that it is compared with instead.

    Raises:
        ValueError: if the baseline is not among the variants.
    """
    if baseline not in results:
        raise ValueError(f"the baseline {baseline!r} has no results: there are {', '.join(results) or 'none'}")
    names = dict.fromkeys(name for seeds in results.values() for scores in seeds.values() for name in scores)
    return [
        _line(results, variant, score, (against or {}).get(variant, baseline))
        for score in names
        for variant in results
        if _has(results[variant], score)
    ]


def paired_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Two-sided p of Student's paired t-test; None with fewer than two pairs or differences that do not vary.

    Raises:
        ValueError: if the two are not of the same length.

    Example:
        >>> round(paired_p([52.1, 52.8, 51.9], [50.9, 51.2, 51.0]), 4)
        0.026
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if len(differences) < 2:
        return None
    deviation = stdev(differences)
    # equal differences differ by rounding when they are taken between numbers of another size
    if deviation <= 1e-12 * max(map(abs, (*first, *second))):
        return None
    t = fmean(differences) / deviation * math.sqrt(len(differences))
    return student_p(t, len(differences) - 1)


def standard_error(differences: Sequence[float]) -> float | None:
    """The standard error of the mean of differences; None with fewer than two.

    Example:
        >>> standard_error([1.0, 3.0])
        1.0
    """
    return stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None


def one_sided(p: float, difference: float) -> float:
    """The p of "the difference is above 0", from the two-sided one and the difference that was seen.

    Example:
        >>> one_sided(0.04, 1.0), one_sided(0.04, -1.0)
        (0.02, 0.98)
    """
    return p / 2 if difference > 0 else 1 - p / 2


def student_p(t: float, degrees: int) -> float:
    """Probability that Student's t with so many degrees of freedom is at least |t| away from 0.

    Example:
        >>> round(student_p(12.706, 1), 4)
        0.05
    """
    return incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def critical_t(level: float, degrees: int) -> float:
    """The t that chance exceeds with this probability, with so many degrees of freedom, by bisection.

    Example:
        >>> round(critical_t(0.05, 2), 2)
        2.92
    """
    low, high = 0.0, 1.0
    while student_p(high, degrees) / 2 > level:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) / 2 > level else (low, middle)
    return (low + high) / 2


def detectable(differences: Sequence[float], power: float = 0.8, level: float = 0.05) -> float | None:
    """The true difference that a one-sided paired t-test on so many seeds would have found with this power.

    It takes the spread of the differences that were seen as the true one.

    Args:
        differences: One per seed.
        power: Probability of finding it.
        level: At which the test decides.

    Returns:
        None with fewer than two differences.

    Example:
        >>> round(detectable([0.5, 1.5, 1.0]), 2)
        1.15
    """
    count = len(differences)
    if count < 2:
        return None
    return _detectable_shift(count, power, level) * stdev(differences) / math.sqrt(count)


@cache
def _detectable_shift(count: int, power: float, level: float) -> float:
    """The same in standard errors."""
    critical = critical_t(level, count - 1)
    low, high = 0.0, 1.0
    while _power(high, critical, count - 1) < power:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _power(middle, critical, count - 1) < power else (low, middle)
    return high


def _power(shift: float, critical: float, degrees: int, steps: int = 2000) -> float:
    """P(T > critical) for a noncentral t: the mean over s = chi / sqrt(degrees) of P(normal > critical s - shift)."""
    log_scale = math.log(2) + degrees / 2 * math.log(degrees / 2) - math.lgamma(degrees / 2)
    end = 1 + 8 / math.sqrt(2 * degrees)
    total = 0.0
    for step in range(steps):  # by middles
        s = (step + 0.5) * end / steps
        density = math.exp(log_scale + (degrees - 1) * math.log(s) - degrees * s * s / 2)
        total += density * 0.5 * math.erfc((critical * s - shift) / math.sqrt(2))
    return total * end / steps


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22).

    Example:
        >>> incomplete_beta(0.25, 1.0, 1.0)
        0.25
    """
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only below; above, by symmetry
        return 1 - incomplete_beta(1 - x, b, a)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    # modified Lentz: `value` is 1 / (1 + d1 / (1 + d2 / (1 + ...))) to more and more terms
    tiny = 1e-300
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1) or tiny)
    value = denominator
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            denominator = 1 / (1 + term * denominator or tiny)
            numerator = 1 + term / numerator or tiny
            value *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-15:
            break
    return front * value


def _line(results: Results, variant: str, score: str, against: str) -> Line:
    values = _values(results[variant], score)
    line = Line(variant, score, tuple(sorted(values)), *_spread(list(values.values())))
    if variant == against:
        return line
    baseline = _values(results.get(against, {}), score)
    common = [seed for seed in line.seeds if seed in baseline]
    if not common:
        return replace(line, against=against)
    ours, theirs = [values[seed] for seed in common], [baseline[seed] for seed in common]
    difference = fmean(a - b for a, b in zip(ours, theirs, strict=True))
    p = paired_p(ours, theirs)
    greater = None if p is None else one_sided(p, difference)
    error = standard_error([a - b for a, b in zip(ours, theirs, strict=True)])
    return replace(line, against=against, pairs=len(common), difference=difference, p=p, p_greater=greater, error=error)


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return fmean(values), stdev(values) if len(values) > 1 else None


def _values(seeds: Mapping[int, Mapping[str, float]], score: str) -> dict[int, float]:
    return {seed: scores[score] for seed, scores in seeds.items() if score in scores}


def _has(seeds: Mapping[int, Mapping[str, float]], score: str) -> bool:
    return any(score in scores for scores in seeds.values())
