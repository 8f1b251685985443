"""Pages of reports, written anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.studies.definition import Study, load_study
from antipodes.studies.report import study_report
from antipodes.studies.reports import Places, render_page
from antipodes.studies.statistics import summarise
from tests.studies.test_definition import Counted

RESULTS = {"plain": {0: {"a": 1.0}, 1: {"a": 2.0}}, "fnc": {0: {"a": 3.0}, 1: {"a": 4.5}}, "own": {0: {"a": 9.0}}}
PUBLISHED = {"source": "Table 7", "measured": "photos", "scores": {"fnc": {"a": 81.25}}}


def study(folder: Path, **changes: Any) -> Study:
    content = {
        "title": "Tiny",
        "question": "Which?",
        "common": {},
        "variants": {"plain": {}, "fnc": {}, "own": {"against": "own"}},
        "seeds": [0, 1],
        "baseline": "plain",
        "protocols": ["knn"],
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(content | changes, sort_keys=False))
    return load_study(str(folder / "tiny.yaml"))


def written(folder: Path, of: Study) -> str:
    """The report of a study, and its page as it is rendered."""
    lines = summarise(RESULTS, of.baseline, of.against)
    configurations: dict[str, Any] = {name: {"negatives": name} for name in of.variants}
    report = study_report(of, configurations, {"data": "none"}, RESULTS, lines, {})
    (folder / "tiny.json").write_text(json.dumps(report))
    return render_page(Places.of(folder), of).read_text()


def test_what_papers_say_is_that_of_the_definition_today(tmp_path: Path) -> None:
    page = written(tmp_path, study(tmp_path, paper=[PUBLISHED]))
    assert "81.25 (1)" in page
    assert "(1) Table 7: photos" in page
    today = study(tmp_path, appendix={"by": f"{Counted.__module__}.Counted", "word": "runs"})
    page = render_page(Places.of(tmp_path), today).read_text()
    assert "81.25" not in page
    assert "Table 7" not in page
    assert "\n\nplain 2, fnc 2, own 1 runs\n\n" in page
    report = json.loads((tmp_path / "tiny.json").read_text())
    assert (report["paper"], report["appendix"]) == ([], "plain 2, fnc 2, own 1 runs")
    assert report["results"]["fnc"]["1"] == {"a": 4.5}  # what was measured stays


def test_the_figure_of_scores_is_drawn_anew_where_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert ".png" not in written(tmp_path, study(tmp_path))
    (tmp_path / "tiny.png").write_bytes(b"of an older version")
    assert "(tiny.png)" in written(tmp_path, study(tmp_path))
    assert (tmp_path / "tiny.png").read_bytes().startswith(b"\x89PNG")


def test_a_variant_that_is_compared_with_itself_is_a_baseline(tmp_path: Path) -> None:
    page = written(tmp_path, study(tmp_path))
    assert "| own | 9.00 | - | 1 | baseline | - | - |" in page


def test_there_must_be_a_report(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist: run the study"):
        render_page(Places.of(tmp_path), study(tmp_path))
