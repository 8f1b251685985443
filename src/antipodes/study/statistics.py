"""Means, spreads and paired differences over seeds, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    beside = _values(results.get(against, {}), score)
    common = [seed for seed in line.seeds if seed in beside]
    if not common:
        return replace(line, against=against)
    ours, theirs = [values[seed] for seed in common], [beside[seed] for seed in common]
    difference = fmean(a - b for a, b in zip(ours, theirs, strict=True))
    p = paired_p(ours, theirs)
    greater = None if p is None else one_sided(p, difference)
    return replace(line, against=against, pairs=len(common), difference=difference, p=p, p_greater=greater)


def _spread(values: Sequence[float]) -> tuple[float, float | None]:
    return fmean(values), stdev(values) if len(values) > 1 else None


def _values(seeds: Mapping[int, Mapping[str, float]], score: str) -> dict[int, float]:
    return {seed: scores[score] for seed, scores in seeds.items() if score in scores}


def _has(seeds: Mapping[int, Mapping[str, float]], score: str) -> bool:
    return any(score in scores for scores in seeds.values())
