"""docs/papers.md: every table and figure of the papers, with the study that stands for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from antipodes.studies.definition import load
from research.ledger.papers import entries, page
from research.ledger.reports import DOCS, PLACES, RESULTS, STUDIES, studies, study_file


def test_every_entry_of_the_papers_has_a_command_or_a_reason(tmp_path: Path) -> None:
    for entry in entries():
        assert len({"study", "command", "cannot"} & set(entry)) == 1, entry
        assert set(entry) <= {"item", "what", "study", "command", "cannot", "seen in", "part", "note"}, entry
    text = page(tmp_path)
    assert text.count("\n## ") == 5
    for row in [line for line in text.splitlines() if line.startswith("| ")]:
        assert row.count(" | ") == 3, row
    assert "`antipodes study research/studies/ifnd-table-4.yaml` | defined, not run yet" in text


@pytest.mark.parametrize(
    ("variants", "table_7", "figure_3"),
    [
        (["hnssl"], "defined, not run yet", "defined, not run yet"),  # nothing to compare it with
        (
            ["hnssl", "momentum 1", "momentum 0", "all negatives"],
            "[partly measured, in a small setting](../research/pages/hnssl.md); not yet: momentum 0.999",
            "[partly measured, in a small setting](../research/pages/hnssl.md); not yet: target gradient",
        ),
        (
            ["hnssl", "momentum 1", "momentum 0.999", "momentum 0"],
            "[measured, in a small setting](../research/pages/hnssl.md)",
            "defined, not run yet",
        ),
    ],
)
def test_only_what_has_results_counts_as_measured(
    variants: list[str], table_7: str, figure_3: str, tmp_path: Path
) -> None:
    results = {variant: {"0": {"knn top-1": 40.0}} for variant in variants} | {"target gradient": {}}
    (tmp_path / "hnssl.json").write_text(json.dumps({"results": results}))
    text = page(tmp_path)
    assert f"`antipodes study research/studies/hnssl-table-7.yaml` | {table_7} |" in text
    assert f"`antipodes study research/studies/hnssl-figure-3.yaml` | {figure_3} |" in text


def test_a_part_of_a_table_is_not_the_table(tmp_path: Path) -> None:
    results = {name: {"0": {"knn top-1": 40.0}} for name in ("vanilla mixup", "momentum mixup")}
    (tmp_path / "sane.json").write_text(json.dumps({"results": results}))
    row = "`antipodes study research/studies/sane-table-6.yaml` | [partly measured, in a small setting]"
    row += "(../research/pages/sane.md); weak views |"
    assert row in page(tmp_path)
    own = {name: {"0": {"knn top-1": 40.0}} for name in load(study_file("sane-table-6")).variants}
    (tmp_path / "sane-table-6.json").write_text(json.dumps({"results": own}))
    row = "`antipodes study research/studies/sane-table-6.yaml` | [measured, in a small setting]"
    row += "(../research/pages/sane-table-6.md) |"
    assert row in page(tmp_path)


def test_what_an_item_is_seen_in_has_such_variants() -> None:
    for entry in entries():
        for study, variants in entry.get("seen in", {}).items():
            assert set(variants) <= set(load(study_file(study)).variants), entry["item"]


def test_every_study_of_a_paper_is_in_the_list() -> None:
    named = {name for entry in entries() for name in (entry.get("study"), *entry.get("seen in", {}))}
    of_papers = [name for name in studies() if name.split("-")[0] in ("ifnd", "glofnd", "ring", "sane", "hnssl")]
    assert set(of_papers) - {"ring", "hnssl", "sane"} <= named


def test_the_committed_list_is_up_to_date() -> None:
    assert (DOCS / "papers.md").read_text() == page(RESULTS), "run python -m research.ledger papers"


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
