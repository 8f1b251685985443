"""docs/papers.md: every table and figure of the papers, with the study that stands for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from antipodes.studies.definition import load_study
from research.ledger.papers import entries, page
from research.ledger.quick import quick_page
from research.ledger.reports import DOCS, PLACES, RESULTS, STUDIES, studies, study_file

KEYS = {"item", "what", "study", "command", "cannot", "seen in", "part", "note", "settings", "not run"}


def test_every_entry_of_the_papers_has_a_command_or_a_reason(tmp_path: Path) -> None:
    for entry in entries():
        assert len({"study", "command", "cannot"} & set(entry)) == 1, entry
        assert set(entry) <= KEYS, entry
    text = page(tmp_path)
    assert text.count("\n## ") == 5
    for row in [line for line in text.splitlines() if line.startswith("| ")]:
        assert row.count(" | ") == 4, row
    assert "`antipodes study research/studies/ifnd-table-4.yaml` | same settings | not run" in text


def test_every_study_of_a_paper_says_how_near_its_paper_budget_is() -> None:
    for entry in entries():
        if "study" in entry and "theorem" not in entry.get("note", ""):
            how = entry["settings"].partition(":")[0]
            assert how in ("same settings", "same training, other evaluation", "smaller"), entry


@pytest.mark.parametrize(
    ("variants", "table_7", "figure_3"),
    [
        (["hnssl"], "not run", "not run"),  # nothing to compare it with
        (
            ["hnssl", "momentum 1", "momentum 0", "all negatives"],
            "[partly run, smaller](../research/pages/hnssl.md); not yet: momentum 0.999",
            "[partly run, smaller](../research/pages/hnssl.md); not yet: target gradient",
        ),
        (
            ["hnssl", "momentum 1", "momentum 0.999", "momentum 0"],
            "[run, smaller](../research/pages/hnssl.md)",
            "not run",
        ),
    ],
)
def test_only_what_has_results_counts_as_measured(
    variants: list[str], table_7: str, figure_3: str, tmp_path: Path
) -> None:
    results = {variant: {"0": {"knn top-1": 40.0}} for variant in variants} | {"target gradient": {}}
    (tmp_path / "hnssl.json").write_text(json.dumps({"results": results}))
    text = page(tmp_path)
    for study, status in (("hnssl-table-7", table_7), ("hnssl-figure-3", figure_3)):
        (row,) = [line for line in text.splitlines() if f"/{study}.yaml`" in line]
        assert row.endswith(f" | {status} |")


def test_a_part_of_a_table_is_not_the_table(tmp_path: Path) -> None:
    results = {name: {"0": {"knn top-1": 40.0}} for name in ("vanilla mixup", "momentum mixup")}
    (tmp_path / "sane.json").write_text(json.dumps({"results": results}))
    assert "| [partly run, smaller](../research/pages/sane.md); weak views |" in page(tmp_path)
    own = {name: {"0": {"knn top-1": 40.0}} for name in load_study(study_file("sane-table-6")).variants}
    (tmp_path / "sane-table-6.json").write_text(json.dumps({"results": own}))
    assert "| [run, smaller](../research/pages/sane-table-6.md) |" in page(tmp_path)


def test_a_quick_run_is_told_from_one_that_was_measured(tmp_path: Path) -> None:
    (tmp_path / "quick").mkdir()
    scores = {"variant": {"0": {"linear top-1": 12.345}}}
    facts = {"data": "some", "epochs": "3", "made by": "this"}
    report = {"title": "SANE", "facts": facts, "results": {"vanilla": scores["variant"]}}
    (tmp_path / "quick" / "sane-table-6.json").write_text(json.dumps(report))
    assert "| [run for minutes, to show that it runs](../research/pages/quick.md#sane-table-6) |" in page(tmp_path)
    assert "| vanilla | 12.35 |" in quick_page(tmp_path / "quick")


def test_what_an_item_is_seen_in_has_such_variants() -> None:
    for entry in entries():
        for study, variants in entry.get("seen in", {}).items():
            assert set(variants) <= set(load_study(study_file(study)).variants), entry["item"]


def test_every_study_of_a_paper_is_in_the_list() -> None:
    named = {name for entry in entries() for name in (entry.get("study"), *entry.get("seen in", {}))}
    of_papers = [name for name in studies() if name.split("-")[0] in ("ifnd", "glofnd", "ring", "sane", "hnssl")]
    assert set(of_papers) - {"ring", "hnssl", "sane"} <= named


def test_the_committed_list_is_up_to_date() -> None:
    assert (DOCS / "papers.md").read_text() == page(RESULTS), "run python -m research.ledger papers"


def test_the_committed_page_of_quick_runs_is_up_to_date() -> None:
    assert (PLACES.pages / "quick.md").read_text() == quick_page(), "run python -m research.ledger quick"


def test_definitions_hold_no_findings() -> None:
    for file in STUDIES.glob("*.yaml"):
        assert "notes" not in yaml.safe_load(file.read_text())


def test_what_the_committed_pages_show_is_short() -> None:
    for note in sorted(PLACES.notes.glob("*.md")):
        if (page := PLACES.pages / note.name).is_file():
            text = page.read_text().partition("## What it shows\n\n")[2]
            assert text, page.name
            shown = text.partition("<details>")[0].partition("\n## ")[0].strip()
            assert shown.startswith(note.read_text().partition("<!-- more -->")[0].strip()), (
                f"{page.name}: render it again"
            )
            assert len(note.read_text().partition("<!-- more -->")[0].strip().splitlines()) <= 14, note.name
