"""The ledger of claims: verdicts against scipy's test, rows from reports made by hand, and the committed page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import stdev

import pytest

from antipodes.studies.definition import load_study
from antipodes.studies.statistics import critical_t, detectable
from research.ledger import __main__ as command
from research.ledger.claims import CANNOT, NOT_RUN, UNKNOWN, Tested, correct, ledger_page, ledger_rows, read_catalogue
from research.ledger.orderings import decide
from research.ledger.reports import DOCS, RESULTS, study_file


def report(folder: Path, study: str, scores: dict[str, list[float]], score: str = "linear") -> None:
    results = {
        variant: {str(seed): {score: value} for seed, value in enumerate(values)} for variant, values in scores.items()
    }
    (folder / f"{study}.json").write_text(json.dumps({"results": results}))


def row(folder: Path, **claim: object):  # type: ignore[no-untyped-def]
    (found,) = ledger_rows([{"claim": "b is better", "where": "Table 1", **claim}], folder)
    return found


TEST = {"study": "mine", "score": "linear", "order": "a < b"}


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([50.0, 51.0, 52.0], [52.0, 53.1, 53.9], "held"),
        ([52.0, 53.1, 53.9], [50.0, 51.0, 52.0], "not held"),
        ([50.0, 51.0, 52.0], [50.5, 50.2, 53.0], "undecided"),
        ([50.0], [60.0], "undecided"),
    ],
)
def test_verdicts_are_those_of_scipys_paired_test(a: list[float], b: list[float], verdict: str, tmp_path: Path) -> None:
    stats = pytest.importorskip("scipy.stats")
    report(tmp_path, "mine", {"a": a, "b": b})
    found = row(tmp_path, tests=[TEST])
    assert found.verdict == verdict
    assert found.seeds == len(a)
    assert found.difference == pytest.approx(sum(b) / len(b) - sum(a) / len(a))
    if len(a) > 1:
        p = stats.ttest_rel(b, a, alternative="greater").pvalue
        assert found.p == pytest.approx(p)
        assert decide(p) == verdict
    assert found.why == (UNKNOWN if verdict == "not held" else "")


@pytest.mark.parametrize("differences", [[0.2, 1.4], [0.5, 1.5, 1.0], [0.1, -0.4, 0.9, 2.0, 0.3], list(range(10))])
def test_the_power_is_that_of_the_noncentral_t(differences: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")
    count = len(differences)
    assert critical_t(0.05, count - 1) == pytest.approx(stats.t.isf(0.05, count - 1))
    found = detectable(differences)
    assert found is not None
    shift = found / (stdev(differences) / math.sqrt(count))
    assert stats.nct.sf(stats.t.isf(0.05, count - 1), count - 1, shift) == pytest.approx(0.8, abs=1e-5)
    assert detectable(differences[:1]) is None


def test_differences_of_differences_and_two_scores(tmp_path: Path) -> None:
    report(tmp_path, "mine", {"a": [1.0, 1.1], "b": [3.0, 3.1], "c": [1.0, 1.2], "d": [9.0, 9.3]})
    gap = row(tmp_path, tests=[TEST | {"order": "b - a < d - c"}])
    assert gap.difference == pytest.approx(((8.0 - 2.0) + (8.1 - 2.0)) / 2)
    content = {"results": {"a": {"0": {"learned": 0.1}}, "b": {"0": {"batch": 0.3}}}}
    (tmp_path / "mine.json").write_text(json.dumps(content))
    errors = row(tmp_path, tests=[TEST | {"score": ["learned", "batch"]}])
    assert errors.difference == pytest.approx(0.2)


def test_two_studies_that_trained_alike_are_compared_and_others_refused(tmp_path: Path) -> None:
    for name, variant, values, epochs in (("mine", "a", [1.0, 2.0, 3.0], 40), ("yours", "b", [2.0, 3.1, 3.9], 40)):
        report(tmp_path, name, {variant: values})
        content = json.loads((tmp_path / f"{name}.json").read_text())
        settings = {"test_limit": 4000, "common": {"epochs": epochs}, "variants": {variant: {"data.limit": 100}}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content | settings))
    test = {"study": ["mine", "yours"], "score": "linear", "order": "a < b"}
    found = row(tmp_path, tests=[test])
    assert (found.verdict, found.seeds, found.difference) == ("held", 3, pytest.approx(1.0))
    assert found.test == "[mine](../research/pages/mine.md) and [yours](../research/pages/yours.md): linear, a < b"
    content |= {"test_limit": 4000, "common": {"epochs": 20}, "variants": {"b": {"data.limit": 100}}}
    (tmp_path / "yours.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="mine and yours cannot be compared: epochs is 40 and 20"):
        row(tmp_path, tests=[test])
    assert row(tmp_path, tests=[{**test, "study": ["mine", "not-there"]}]).verdict == NOT_RUN


def test_a_claim_without_runs_says_what_to_run_or_why_not(tmp_path: Path) -> None:
    assert row(tmp_path, cannot="no ImageNet").verdict == CANNOT
    missing = row(tmp_path, tests=[TEST | {"study": "ring"}])
    assert (missing.verdict, missing.test) == (NOT_RUN, "`antipodes study research/studies/ring.yaml`")
    report(tmp_path, "mine", {"a": [1.0]})
    assert row(tmp_path, tests=[TEST]).verdict == NOT_RUN  # b was not run


def test_a_reason_is_given_only_where_it_was_not_held(tmp_path: Path) -> None:
    report(tmp_path, "mine", {"a": [52.0, 53.1, 53.9], "b": [50.0, 51.0, 52.0]})
    assert row(tmp_path, tests=[TEST], reason="a cone").why == "a cone"
    report(tmp_path, "mine", {"b": [52.0, 53.1, 53.9], "a": [50.0, 51.0, 52.0]})
    assert row(tmp_path, tests=[TEST], reason="a cone").why == ""


def test_two_seeds_decide_nothing(tmp_path: Path) -> None:
    report(tmp_path, "mine", {"a": [50.0, 51.0], "b": [60.0, 61.1]})
    assert (row(tmp_path, tests=[TEST]).verdict, row(tmp_path, tests=[TEST]).seeds) == ("undecided", 2)


def test_three_seeds_that_agree_by_chance_have_the_spread_of_their_study(tmp_path: Path) -> None:
    agreeing = {"a": [50.0, 51.0, 52.0], "b": [50.5, 51.6, 52.5]}
    report(tmp_path, "mine", agreeing)
    assert row(tmp_path, tests=[TEST]).verdict == "held"
    report(tmp_path, "mine", {**agreeing, "c": [55.0, 51.0, 58.0], "d": [49.0, 57.0, 52.0]})
    careful = row(tmp_path, tests=[TEST])
    stats = pytest.importorskip("scipy.stats")
    spread = stdev([5.0, 0.0, 6.0])  # of b, c and d minus a: the median of .06, 3.2 and 3.6
    t = careful.difference / spread * math.sqrt(3)
    assert careful.p == pytest.approx(stats.t.sf(t, 2))
    assert careful.verdict == "undecided"
    report(
        tmp_path,
        "mine",
        {"a": [50.0, 51.0, 52.0, 50.0, 50.0], "b": [50.5, 51.6, 52.5, 50.6, 50.4], "c": [1.0, 9.0] * 2 + [5.0]},
    )
    assert row(tmp_path, tests=[TEST]).verdict == "held"  # five seeds speak for themselves


def test_holm_corrects_for_all_tests_in_the_direction_of_the_verdict() -> None:
    rows = [
        Tested("x", "y", "z", verdict, p=p) for verdict, p in (("held", 0.01), ("not held", 0.97), ("undecided", 0.5))
    ]
    found = correct([*rows, Tested("x", "y", "", NOT_RUN)])
    assert [each.corrected for each in found] == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.5), None]
    assert [each.stands for each in found] == [True, False, False, False]


def test_a_page_has_a_row_for_every_test(tmp_path: Path) -> None:
    catalogue = tmp_path / "ledger.yaml"
    catalogue.write_text(
        "one:\n  title: One et al.\n  claims:\n"
        "    - {claim: b is better, where: Table 1, tests: [{study: mine, score: linear, order: a < b}]}\n"
        "    - {claim: others are worse, where: Table 2, cannot: nothing here}\n"
    )
    report(tmp_path, "mine", {"a": [50.0, 51.0, 52.0], "b": [52.0, 53.1, 53.9]})
    page = ledger_page(tmp_path, catalogue)
    assert "**2 claims. Of 1 tests 1 held, 0 did not, and 0 are undecided" in page
    (line,) = [line for line in page.splitlines() if line.startswith("| b is better")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:5] == ["b is better", "Table 1", "[mine](../research/pages/mine.md): linear, a < b", "3", "+2.00"]
    assert cells[-1] == "**held**"
    assert "cannot be tested here: nothing here" in page


def test_a_claim_needs_tests_or_a_reason(tmp_path: Path) -> None:
    catalogue = tmp_path / "ledger.yaml"
    catalogue.write_text("one: {title: One, claims: [{claim: b is better, where: Table 1}]}\n")
    with pytest.raises(ValueError, match="either tests or cannot"):
        read_catalogue(catalogue)
    catalogue.write_text(
        "one: {title: One, claims: [{claim: x, where: y, tests: [{study: s, score: z, order: a > b}]}]}\n"
    )
    with pytest.raises(ValueError, match="LESS < MORE"):
        read_catalogue(catalogue)


def test_every_test_names_variants_that_its_study_has() -> None:
    for paper in read_catalogue().values():
        for claim in paper["claims"]:
            for test in claim.get("tests", []):
                studies = [test["study"]] * 2 if isinstance(test["study"], str) else test["study"]
                for study, side in zip(studies, test["order"].split(" < "), strict=True):
                    if (file := study_file(study)).is_file():
                        assert set(side.split(" - ")) <= set(load_study(file).variants), test


def test_the_committed_page_is_up_to_date() -> None:
    assert (DOCS / "claims.md").read_text() == ledger_page(RESULTS), "run python -m research.ledger claims"


def test_the_command_writes_pages_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr("sys.argv", ["research.ledger", "claims", "papers"])
    command.main()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["claims.md", "papers.md"]
    assert (tmp_path / "claims.md").read_text() == ledger_page(RESULTS)
    monkeypatch.setattr("sys.argv", ["research.ledger", "poems"])
    with pytest.raises(SystemExit):
        command.main()
