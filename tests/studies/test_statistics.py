"""Spreads and paired differences, by hand and against scipy."""

from __future__ import annotations

import math
import random

import pytest
from scipy import special, stats

from antipodes.studies.statistics import incomplete_beta, paired_p, student_p, summarise
from tests.cases import every


def test_a_t_test_by_hand() -> None:
    # differences 1, 2, 3: mean 2, deviation 1, t = 2 sqrt(3); with two degrees p = 1 - t / sqrt(2 + t^2)
    t = 2 * math.sqrt(3)
    assert paired_p([11, 22, 33], [10, 20, 30]) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)
    assert paired_p([10, 20, 30], [11, 22, 33]) == paired_p([11, 22, 33], [10, 20, 30])
    # with one degree it is the Cauchy distribution: differences 1 and 3, t = 2
    assert paired_p([1, 3], [0, 0]) == pytest.approx(1 - 2 * math.atan(2) / math.pi, rel=1e-12)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 100])
def test_p_agrees_with_scipy(count: int) -> None:
    numbers = random.Random(count)
    for shift in (0.0, 0.3, 3.0, 50.0):
        first = [numbers.gauss(50 + shift, 1) for _ in range(count)]
        second = [numbers.gauss(50, 1) for _ in range(count)]
        assert paired_p(first, second) == pytest.approx(stats.ttest_rel(first, second).pvalue, rel=1e-9)


@every("degrees", [1, 2, 3, 7, 50, 1000])
def test_student_agrees_with_scipy_in_the_middle_and_in_the_tails(degrees: int) -> None:
    for t in (0.0, 1e-9, 1e-3, 0.5, 1.0, 4.0, 40.0, 1e4):
        assert student_p(-t, degrees) == student_p(t, degrees)
        assert student_p(t, degrees) == pytest.approx(2 * stats.t.sf(t, degrees), rel=1e-9, abs=1e-290)


def test_incomplete_beta_agrees_with_scipy() -> None:
    for x in (0.0, 1e-6, 0.1, 0.5, 0.9, 1 - 1e-6, 1.0):
        for a, b in ((0.5, 0.5), (1.0, 3.0), (25.0, 0.5), (0.5, 25.0), (400.0, 300.0)):
            assert incomplete_beta(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-300)


def test_there_is_no_p_where_there_is_no_test() -> None:
    assert paired_p([], []) is None
    assert paired_p([51.0], [50.0]) is None
    assert paired_p([50.0, 60.0], [50.0, 60.0]) is None
    assert paired_p([50.3, 60.3], [50.1, 60.1]) is None  # equal differences, up to rounding
    with pytest.raises(ValueError):
        paired_p([1.0, 2.0], [1.0])


def test_lines_pair_the_seeds_that_both_have() -> None:
    results = {
        "base": {0: {"a": 10.0, "b": 1.0}, 1: {"a": 20.0}, 2: {"a": 30.0}},
        "other": {2: {"a": 33.0}, 1: {"a": 22.0}, 7: {"a": 95.0}},
        "single": {0: {"a": 11.0}},
        "apart": {9: {"a": 1.0}},
    }
    lines = {(line.variant, line.score): line for line in summarise(results, "base")}
    assert list(lines) == [("base", "a"), ("other", "a"), ("single", "a"), ("apart", "a"), ("base", "b")]
    base, other, single = lines["base", "a"], lines["other", "a"], lines["single", "a"]
    assert (base.mean, base.deviation, base.seeds) == (20.0, 10.0, (0, 1, 2))
    assert (base.difference, base.p) == (None, None)
    assert (other.mean, other.seeds, other.pairs, other.difference) == (50.0, (1, 2, 7), 2, 2.5)
    assert other.p == pytest.approx(stats.ttest_rel([22, 33], [20, 30]).pvalue)
    assert (single.deviation, single.pairs, single.difference, single.p) == (None, 1, 1.0, None)
    assert (lines["apart", "a"].pairs, lines["apart", "a"].difference) == (0, None)
    with pytest.raises(ValueError, match="'bass' has no results: there are base, other"):
        summarise(results, "bass")


def test_a_variant_may_be_compared_with_another_than_the_baseline() -> None:
    results = {
        "base": {0: {"a": 10.0}, 1: {"a": 20.0}},
        "better": {0: {"a": 12.0}, 1: {"a": 23.0}},
        "best": {0: {"a": 13.0}, 1: {"a": 26.0}},
        "lost": {0: {"a": 5.0}},
    }
    base, better, best, lost = summarise(results, "base", {"best": "better", "lost": "never run"})
    assert [line.against for line in (base, better, best, lost)] == [None, "base", "better", "never run"]
    assert (better.difference, best.difference, best.pairs, lost.difference) == (2.5, 2.0, 2, None)
    assert best.p == pytest.approx(stats.ttest_rel([13, 26], [12, 23]).pvalue)
