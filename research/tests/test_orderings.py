"""The claims of a paper in a study's page: what is read from the study, and the verdicts of its runs."""

from __future__ import annotations

import pytest

from research.ledger.orderings import Claims, judge_claims, read_claims

VARIANTS = ["plain", "fnc"]
RESULTS = {
    "plain": {0: {"a": 1.0, "b": 1.0}, 1: {"a": 2.0, "b": 1.0}, 2: {"a": 3.0}},
    "fnc": {0: {"a": 2.0, "b": 2.0}, 1: {"a": 3.1, "b": 2.2}, 2: {"a": 4.05}},
}


def test_claims_are_judged_over_seeds() -> None:
    claims = read_claims({"a": ["plain < fnc"], "b": ["fnc < plain", "plain < fnc"], "c": ["plain < fnc"]}, VARIANTS)
    held, against, other, untested = judge_claims(claims, RESULTS)
    assert (held.verdict, held.seeds) == ("held", 3)
    assert held.difference == pytest.approx(1.05)
    assert (against.verdict, str(against.claim)) == ("not held", "fnc < plain")
    assert against.p == pytest.approx(1 - (other.p or 0))
    assert untested.verdict == "not tested"
    (crossed,) = judge_claims(read_claims({"b < a": ["plain < fnc"]}, VARIANTS), RESULTS)
    assert (crossed.seeds, crossed.difference) == (2, pytest.approx(1.55))  # fnc's a over plain's b, of two seeds


def test_the_section_has_a_row_for_every_claim() -> None:
    section = Claims({"a": ["plain < fnc"], "c": ["plain < fnc"]}).section(RESULTS)
    assert section.startswith("## What the paper claims\n")
    assert "| plain < fnc | a | held | +1.05 | 3 | <0.001 |" in section
    assert "| plain < fnc | c | not tested | - | 0 | - |" in section


@pytest.mark.parametrize("claims", [{"a": ["plain > fnc"]}, {"a": ["plain < other"]}, {"a": "plain < fnc"}, ["a"]])
def test_what_is_no_claim_is_refused(claims: object) -> None:
    with pytest.raises(ValueError, match="claim"):
        Claims(claims).section(RESULTS)
