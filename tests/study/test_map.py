"""The map of where policies pay: gains from reports made by hand, and the committed page."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from antipodes.study.definition import load, shipped
from antipodes.study.map import CATALOGUE, map_page, read_gains, write_map

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"
REGIMES = {
    "policies": ["FNC", "GloFND", "oracle"],
    "regimes": [
        {
            "regime": "Small",
            "studies": ["mine"],
            "score": "knn",
            "quality": "knn",
            "baseline": "plain",
            "policies": {"FNC": ["other fnc", "fnc"], "GloFND": ["glofnd"], "oracle": ["oracle"]},
        },
        {
            "regime": "Large",
            "studies": ["large"],
            "score": "knn",
            "quality": "knn",
            "baseline": "plain",
            "policies": {"FNC": ["fnc"]},
        },
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "map.yaml").write_text(yaml.safe_dump(REGIMES))
    results = {
        "plain": {"0": {"knn": 50.0}, "1": {"knn": 52.0}, "2": {"knn": 51.0}},
        "fnc": {"0": {"knn": 51.0, "precision": 0.2}, "1": {"knn": 53.2, "precision": 0.4}, "2": {"knn": 52.1}},
        "glofnd": {"0": {"knn": 49.0, "flags precision": 22.0}},
    }
    (tmp_path / "mine.json").write_text(json.dumps({"results": results}))
    return tmp_path


def test_gains_are_paired_with_their_standard_error(folder: Path) -> None:
    first, second = read_gains(folder, folder / "map.yaml")
    assert (first.policy, first.seeds) == ("FNC", 3)
    assert first.difference == pytest.approx(1.1)
    assert first.error == pytest.approx(0.1 / math.sqrt(3))
    assert first.clear
    assert first.precision == pytest.approx(30.0)
    assert first.quality == pytest.approx(51.0)
    assert (second.error, second.clear, second.precision) == (None, False, 22.0)


@pytest.mark.parametrize(
    ("score", "value", "percent"),
    [("flags precision", 0.5, 0.5), ("flags pooled precision", 1.0, 1.0), ("precision", 1.0, 100.0)],
)
def test_the_name_of_a_score_says_whether_it_is_in_percent(
    folder: Path, score: str, value: float, percent: float
) -> None:
    results = {"plain": {"0": {"knn": 50.0}}, "fnc": {"0": {"knn": 51.0, score: value}}}
    (folder / "mine.json").write_text(json.dumps({"results": results}))
    (gain,) = read_gains(folder, folder / "map.yaml")
    assert gain.precision == percent


def test_the_page_has_a_row_a_regime_and_says_what_is_missing(folder: Path) -> None:
    page = map_page(read_gains(folder, folder / "map.yaml"), folder / "map.yaml", "It pays.")
    assert "| [Small](mine.md), knn | 1-3 | **+1.10 ± 0.06** (30 %) | -1.00 † (22 %) |" in page
    assert "oracle" not in page  # no column for what nobody has run
    assert "## What it shows\n\nIt pays." in page
    assert "Not run yet: Large." in page


def test_the_map_is_written_with_its_figure_and_notes(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    (folder / "notes").mkdir()
    (folder / "notes" / "map.md").write_text("It pays.\n")
    assert write_map(folder, folder / "map.yaml") == [folder / "map.md", folder / "map.png"]
    assert (folder / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "It pays." in (folder / "map.md").read_text()


def test_the_catalogue_names_variants_that_its_studies_have() -> None:
    content = yaml.safe_load(CATALOGUE.read_text())
    for regime in content["regimes"]:
        assert set(regime["policies"]) <= set(content["policies"])
        for study in regime["studies"]:
            if study in shipped():
                wanted = {regime["baseline"], *(name for names in regime["policies"].values() for name in names)}
                assert wanted <= set(load(study).variants), regime["regime"]


def test_the_committed_page_is_up_to_date() -> None:
    notes = EVIDENCE / "notes" / "map.md"
    text = notes.read_text().strip() if notes.is_file() else ""
    page = map_page(read_gains(EVIDENCE), notes=text, has_figure=(EVIDENCE / "map.png").is_file())
    assert (EVIDENCE / "map.md").read_text() == page, "run antipodes study map"
