"""Figures of gains: every point is where its numbers say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from antipodes.studies.definition import Study, load_study
from antipodes.studies.statistics import Line, summarise
from research.runners.gain_figures import gains_figure, surface_figure

pytest.importorskip("matplotlib", reason="figures need the plots extra")

RESULTS = {
    "simclr": {0: {"knn": 50.0}, 1: {"knn": 52.0}},
    "dropped": {0: {"knn": 51.0, "flags precision": 20.0}, 1: {"knn": 53.2, "flags precision": 20.0}},
    "dropped, right": {0: {"knn": 54.0}, 1: {"knn": 55.0}},
    "pulled, alike": {0: {"knn": 48.0}, 1: {"knn": 49.0}},
    "dropped, other recall": {0: {"knn": 90.0}, 1: {"knn": 90.0}},
    "fnc": {0: {"knn": 50.5, "flags precision": 30.0}, 1: {"knn": 52.1, "flags precision": 32.0}},
}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    def oracle(precision: float, recall: float = 0.5, errors: str = "chance") -> dict[str, object]:
        return {"name": "x.SetOracle", "precision": precision, "recall": recall, "errors": errors}

    variants = {
        "simclr": {},
        "dropped": {"negatives": oracle(0.2)},
        "dropped, right": {"negatives": oracle(1.0)},
        "pulled, alike": {"treatment": "attract", "negatives": oracle(0.2, errors="similar")},
        "dropped, other recall": {"negatives": oracle(0.2, 1.0)},
        "fnc": {"negatives": {"name": "fnc"}},
    }
    content = {
        "title": "T",
        "question": "Q",
        "runner": "research.runners.locked.LockedImages",
        "common": {},
        "variants": variants,
    }
    (tmp_path / "surface.yaml").write_text(yaml.safe_dump(content | {"seeds": [0, 1], "baseline": "simclr"}))
    return load_study(str(tmp_path / "surface.yaml"))


@pytest.fixture
def lines() -> list[Line]:
    return summarise(RESULTS, "simclr")


def test_the_surface_joins_one_recall_and_marks_detectors(study: Study, lines: list[Line]) -> None:
    chance, alike = surface_figure(study, lines).axes
    curves = {curve.get_label(): curve for axes in (chance, alike) for curve in axes.containers}
    (dropped,) = [one for one in chance.containers if one.get_label() == "oracle's flags dropped"]
    assert dropped[0].get_xdata().tolist() == [20, 100]
    assert dropped[0].get_ydata().tolist() == pytest.approx([1.1, 3.5])
    assert curves["oracle's flags pulled"][0].get_xdata().tolist() == [20]  # on the right panel alone
    (right,) = [one for one in alike.containers if one.get_label() == "oracle's flags dropped"]
    assert right[0].get_xdata().tolist() == [100]  # one that makes no errors has none of either kind
    for axes in (chance, alike):
        (star,) = axes.collections[-1].get_offsets().tolist()
        assert star == pytest.approx([31.0, 0.3])


def test_gains_have_two_standard_errors(study: Study, lines: list[Line]) -> None:
    (axes,) = gains_figure(study, lines).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == list(RESULTS)[1:]
    first = axes.containers[0]
    assert list(first[0].get_xdata()) == pytest.approx([1.1])
    (segment,) = first[2][0].get_segments()
    assert segment[:, 0].tolist() == pytest.approx([1.1 - 0.2, 1.1 + 0.2])
