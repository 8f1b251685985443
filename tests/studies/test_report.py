"""Tables and pages, cell by cell."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import yaml
from rich.console import Console

from antipodes.studies.definition import Paper, Study, load_study
from antipodes.studies.report import differences, markdown, shown, study_report, tables
from antipodes.studies.reports import Places, render_page
from antipodes.studies.resolving import described
from antipodes.studies.statistics import summarise
from tests.studies.test_definition import content

RESULTS = {
    "plain": {0: {"knn top-1": 50.0, "rate": 0.1}, 1: {"knn top-1": 51.0, "rate": 0.1}},
    "fnc": {0: {"knn top-1": 52.0, "rate": 0.25}, 1: {"knn top-1": 53.5, "rate": 0.25}},
}
PAPER = [
    Paper("Table 1", "CIFAR-100", {"fnc": {"knn top-1": 77.12}}),
    Paper("Table 9", "photos", {"plain": {"x": 1.0}}),
]


def study(tmp_path: Path) -> Study:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content()))
    return load_study(str(tmp_path / "mine.yaml"))


def test_the_page_shows_every_number_beside_the_papers(tmp_path: Path) -> None:
    lines = summarise(RESULTS, "plain")
    configurations = {
        "plain": {"negatives": {"name": "none"}, "epochs": 3},
        "fnc": {"negatives": {"name": "fnc"}, "epochs": 3},
    }
    report = study_report(
        study(tmp_path), configurations, {"epochs": "3"}, RESULTS, lines, {"fnc, seed 2": "the run has diverged"}
    )
    page = markdown(report, lines, PAPER).splitlines()
    assert page[0] == "# A study"
    assert "- **epochs**: 3" in page
    assert "| plain | 50.50 | 0.71 | 2 | baseline | - | - |  |" in page
    # differences 2 and 2.5: t = 2.25 / 0.25 = 9, p = 1 - 2 atan(9) / pi
    assert "| fnc | 52.75 | 1.06 | 2 | +2.25 | 0.070 | 0.035 | 77.12 (1) |" in page
    assert "| fnc | 0.2500 | 0.0000 | 2 | +0.1500 | - | - |" in page
    assert "- (1) Table 1: CIFAR-100" in page
    assert "| fnc | negatives.name fnc |" in page
    assert "- fnc, seed 2: the run has diverged" in page
    assert report["common"] == {"epochs": 3}
    assert report["summary"][1]["difference"] == 2.25


def test_the_page_begins_with_an_overview_that_marks_single_seeds(tmp_path: Path) -> None:
    records = {"f1": 0.5, "precision": 0.25, "recall": 0.9}
    results = {
        "plain": {0: {"a": 50.0, "b": 1.0, "c": 2.0, "d": 3.0, "e": 4.0}, 1: {"a": 51.0}},
        "fnc": {0: {"a": 52.0, "b": 1.5, **records}, 1: {"a": 53.5, "b": 2.5, **records}},
        "once": {1: {"a": 50.5, **records}},
    }
    of = replace(study(tmp_path), records=["precision", "recall", "f1"])
    lines = shown(summarise(results, "plain"), of, lambda score: False)
    report = study_report(of, {variant: {} for variant in results}, {}, results, lines, {})
    page = markdown(report, lines, [], {"A caption": "mine.png"})
    table = page[page.index("| variant") : page.index("## a\n")].splitlines()
    assert table[0] == "| variant | a | difference | p | b | c | d | f1 | precision |"
    assert table[2:5] == [
        "| plain | 50.50 ± 0.71 | baseline | - | 1.00 † | 2.00 † | 3.00 † | - | - |",
        "| fnc | 52.75 ± 1.06 | +2.25 | 0.070 | 2.00 ± 0.71 | - | - | 0.5000 ± 0.0000 | 0.2500 ± 0.0000 |",
        "| once | 50.50 † | -0.50 † | - | - | - | - | 0.5000 † | 0.2500 † |",
    ]
    assert "![A caption](mine.png)" in table
    assert "## recall" in page  # the others are below


def test_tables_name_what_a_variant_is_compared_with_where_it_is_not_the_same(tmp_path: Path) -> None:
    results = RESULTS | {"fnc late": {0: {"knn top-1": 54.0}, 1: {"knn top-1": 54.5}}}
    lines = summarise(results, "plain", {"fnc late": "fnc"})
    report = study_report(study(tmp_path), {variant: {} for variant in results}, {}, results, lines, {})
    page = markdown(report, lines, []).splitlines()
    assert "| variant | knn top-1 | difference | p | against | rate |" in page
    assert "| plain | 50.50 ± 0.71 | baseline | - | - | 0.1000 ± 0.0000 |" in page
    assert "| fnc late | 54.25 ± 0.35 | +1.50 | 0.205 | fnc | - |" in page
    assert "| fnc late | 54.25 | 0.35 | 2 | +1.50 | 0.205 | 0.102 | fnc |" in page
    assert "| fnc | 0.2500 | 0.0000 | 2 | +0.1500 | - | - |" in page  # all alike here
    assert any("to plain, or to the variant under *against*, with *p*" in line for line in page)


def test_the_terminal_shows_the_same_and_names_with_brackets() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    renamed = {"plain": RESULTS["plain"], "fnc [red]": RESULTS["fnc"]}
    for table in tables(summarise(renamed, "plain")):
        console.print(table)
    text = console.export_text()
    assert "fnc [red]" in text
    assert "+2.25" in text
    assert "paper" not in text


def test_a_study_may_choose_its_scores_and_their_order(tmp_path: Path) -> None:
    every, lines = study(tmp_path), summarise(RESULTS, "plain")
    assert [(line.variant, line.score) for line in shown(lines, every, lambda score: score == "rate")] == [
        ("plain", "knn top-1"),
        ("fnc", "knn top-1"),
    ]
    asked = shown(lines, replace(every, scores=["rate"]), lambda score: score == "rate")
    assert [line.score for line in asked] == ["rate", "rate"]
    both = shown(lines, replace(every, scores=["rate", "knn top-1"]), lambda score: False)
    assert [line.score for line in both] == ["rate", "rate", "knn top-1", "knn top-1"]
    assert shown(lines, replace(every, scores=["knn top-1"], records=["rate"]), lambda score: False) == lines


def test_small_rates_keep_their_digits_beside_a_large_one() -> None:
    found = {
        "a": {0: {"nats": 0.0155}},
        "b": {0: {"nats": 7.3e-05}},
        "c": {0: {"nats": -2e-6}},
        "d": {0: {"nats": 1.9}},
    }
    console = Console(width=100, record=True, file=io.StringIO())
    for table in tables(summarise(found, "a")):
        console.print(table)
    text = console.export_text()
    for cell in (" 0.0155 ", " 0.0001 ", " -2.0e-06 ", " 1.9000 ", " -0.0154 "):
        assert cell in text


def test_options_that_only_one_has_tell_it_apart() -> None:
    common, apart = differences({"a": {"x": {"y": 1}, "z": [1]}, "b": {"x": {"y": 1, "w": 2}, "z": [2]}})
    assert common == {"x.y": 1}
    assert apart == {"a": {"z": [1]}, "b": {"x.w": 2, "z": [2]}}


def test_a_page_opens_with_one_table_one_figure_and_what_it_shows(tmp_path: Path) -> None:
    lines = summarise(RESULTS, "plain")
    stale = {"plain, seed 0": "methods changed since", "plain, seed 1": "methods changed since"}
    of = study(tmp_path)
    report = study_report(of, {variant: {} for variant in RESULTS}, {}, RESULTS, lines, {}, "It pays.", stale)
    first, _, rest = markdown(report, lines, PAPER, {"Scores": "a.png", "Flags": "b.png"}).partition("<details>")
    assert first.count("| --- |") == 1
    assert first.count("![") == 1
    assert "## What it shows\n\nIt pays." in first
    assert "2 of the runs were made by older code than the others" in first
    assert "- plain, seed 1: methods changed since" in rest
    assert "![Flags](b.png)" in rest


def test_what_follows_the_break_of_a_note_is_folded_away(tmp_path: Path) -> None:
    lines = summarise(RESULTS, "plain")
    notes = "It pays.\n\n<!-- more -->\n\nBut not always."
    report = study_report(study(tmp_path), {variant: {} for variant in RESULTS}, {}, RESULTS, lines, {}, notes)
    first, _, rest = markdown(report, lines, PAPER).partition("<details>")
    assert first.rstrip().endswith("## What it shows\n\nIt pays.")
    assert "</summary>\n\n## More of what it shows\n\nBut not always.\n\n" in rest
    assert "<!-- more -->" not in first + rest


def test_a_page_is_written_anew_as_it_was(tmp_path: Path) -> None:
    """Groups with baselines of their own stay what they were compared with."""
    results = RESULTS | {"other": RESULTS["plain"], "mine": RESULTS["plain"]}
    lines = summarise(results, "plain", {"mine": "other", "other": "other"})
    report = study_report(study(tmp_path), {variant: {} for variant in results}, {}, results, lines, {}, "It pays.")
    (tmp_path / "mine.json").write_text(json.dumps(report))
    written = render_page(Places.of(tmp_path), study(tmp_path)).read_text()
    assert written == markdown(report, lines, [Paper(**entry) for entry in report["paper"]])


def test_a_report_does_not_tell_where_data_lies() -> None:
    kept = described({"data": {"name": "/home/me/photos.zip", "size": 64}, "seed": 3, "out": "x", "epochs": 2})
    assert kept == {"data": {"name": "photos.zip", "size": 64}, "epochs": 2}
