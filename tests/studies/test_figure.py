"""The figures of a study: every number is where it should be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from antipodes.evaluation import figures
from antipodes.studies.figure import (
    FAINT,
    OVER_EPOCHS,
    curves_figure,
    detection_curves,
    detection_figure,
    draw_figures,
    mean_curves,
    scores_figure,
)

pytest.importorskip("matplotlib", reason="figures need the plots extra")
from matplotlib.colors import to_rgba

REPORT: dict[str, Any] = {
    "title": "Tiny",
    "baseline": "plain",
    "records": ["f1"],
    "results": {
        "plain": {0: {"linear": 50.0, "knn": 40.0}, 1: {"linear": 52.0, "knn": 41.0}},
        "fnc": {0: {"linear": 53.0, "f1": 0.2}, 1: {"linear": 54.0, "f1": 0.2}},
        "once": {0: {"linear": 55.0}},
    },
    "summary": [
        *({"variant": variant, "score": "linear"} for variant in ("plain", "fnc", "once")),
        {"variant": "plain", "score": "knn"},
        {"variant": "fnc", "score": "f1"},
    ],
}


def line(epoch: int, value: float, flagged: float = 0.1) -> dict[str, float | None]:
    return {"epoch": epoch, "flagged_share": flagged, **dict.fromkeys(("precision", "recall", "f1"), value)}


HISTORIES: dict[str, dict[int, list[dict[str, float | None]]]] = {
    "plain": {0: [{"epoch": 1, "flagged_share": 0.0}]},
    "fnc": {0: [line(1, 0.0, 0.0), line(2, 0.2)], 1: [line(1, 0.0, 0.0), line(2, 0.3)]},
    "once": {0: [line(1, 0.1), line(2, 0.15)]},
    "oracle": {0: [line(1, 1.0), line(2, 1.0)], 1: [line(1, 1.0), line(2, 1.0)]},
}


def test_every_seed_every_mean_and_the_baseline_are_drawn() -> None:
    linear, knn = scores_figure(REPORT).axes  # f1 is a record, not a score
    assert (linear.get_title(), knn.get_title()) == ("linear", "knn")
    points = [[tuple(point) for point in group.get_offsets().tolist()] for group in linear.collections]
    plain, plain_mean, fnc, fnc_mean, once = points
    assert plain == [(50, 0), (52, 0)]
    assert plain_mean == [(51, 0)]
    assert fnc == [(53, 1), (54, 1)]
    assert fnc_mean == [(53.5, 1)]
    assert once == [(55, 2)]
    assert len(linear.collections[-1].get_facecolor()) == 0  # hollow
    (baseline,) = linear.lines
    assert list(baseline.get_xdata()) == [51, 51]
    names = {text.get_text(): to_rgba(text.get_color()) for text in linear.get_yticklabels()}
    assert names == {"plain": to_rgba("black"), "fnc": to_rgba("black"), "once": to_rgba(FAINT)}
    assert linear.yaxis_inverted()


def test_curves_are_means_over_seeds_without_precisions_of_nothing() -> None:
    curves = detection_curves(HISTORIES["fnc"])
    assert curves["precision"] == ([1, 2], pytest.approx([math.nan, 25], nan_ok=True))  # of no flags there is none
    assert curves["f1"] == ([1, 2], [0, pytest.approx(25)])
    assert detection_curves(HISTORIES["plain"]) == {}
    ring = [{"epoch": epoch, "precision": value, "recall": value} for epoch, value in ((1, 0.0), (2, 0.4))]
    found = detection_curves({0: ring})["precision"]  # beside a ring no share of flags is known
    assert found == ([1, 2], pytest.approx([math.nan, 40], nan_ok=True))
    late = {"flagged_share": 0.01, "precision": 0.0, "recall": 0.0, "anchor_precision": 1.0}  # not in judged steps
    wrong = {"flagged_share": 0.01, "precision": 0.0, "recall": 0.0, "anchor_precision": 0.5}
    right = {"flagged_share": 0.01, "precision": 0.2, "recall": 0.1, "anchor_precision": 0.5}
    lines = [{"epoch": epoch, **line} for epoch, line in enumerate((late, wrong, right))]
    assert detection_curves({0: lines})["precision"][1] == pytest.approx([math.nan, 0, 20], nan_ok=True)
    assert detection_curves({0: ring[:1]}) == {}  # a ring alone


def test_both_figures_are_written_and_the_oracle_leaves_room_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[Any] = []
    save = figures.save
    monkeypatch.setattr(figures, "save", lambda figure, *rest: (saved.append(figure), save(figure, *rest)))
    assert list(draw_figures(REPORT, HISTORIES, tmp_path, "tiny").values()) == ["tiny.png", "tiny-detection.png"]
    for name in ("tiny.png", "tiny-detection.png"):
        with Image.open(tmp_path / name) as image:
            assert image.width == 900
    detection = saved[1]
    assert "100 % throughout: oracle" in detection.get_suptitle()
    f1 = detection.axes[2]
    assert [line.get_label() for line in f1.lines] == ["fnc", "once, a single seed"]
    assert [line.get_linestyle() for line in f1.lines] == ["-", ":"]
    assert list(f1.lines[1].get_ydata()) == pytest.approx([10, 15])


def test_too_many_curves_leave_the_single_seeds_out() -> None:
    curves = {f"try {number}": detection_curves(HISTORIES["once"]) for number in range(8)}
    single = set(curves)
    *_, f1 = detection_figure(curves | {"fnc": detection_curves(HISTORIES["fnc"])}, single).axes
    assert [line.get_label() for line in f1.lines] == ["fnc"]
    *_, f1 = detection_figure(curves, single).axes
    assert len(f1.lines) == 8


def test_a_study_without_flags_has_one_figure(tmp_path: Path) -> None:
    assert list(draw_figures(REPORT, {"plain": HISTORIES["plain"]}, tmp_path, "tiny").values()) == ["tiny.png"]


def test_logged_numbers_are_drawn_over_epochs(tmp_path: Path) -> None:
    """Means over the seeds that have a number; epochs without it, such as those between two scores, are left out."""
    histories: dict[str, dict[int, list[dict[str, float | None]]]] = {
        "plain": {
            0: [{"epoch": 1, "knn": 10.0}, {"epoch": 2}, {"epoch": 3, "knn": 14.0}],
            1: [{"epoch": 1, "knn": 20.0}],
        },
        "fnc": {0: [{"epoch": 1, "knn": None, "loss": 3.0}]},
    }
    assert mean_curves(histories, "knn") == {"plain": ([1, 3], [15.0, 14.0])}
    assert mean_curves(histories, "nothing") == {}
    logged = {name: mean_curves(histories, name) for name in ("knn", "loss")}
    knn, loss = curves_figure("Tiny", logged).axes
    assert (knn.get_title(), loss.get_title()) == ("knn", "loss")
    assert [list(line.get_ydata()) for line in knn.lines] == [[15.0, 14.0]]
    assert knn.lines[0].get_color() != loss.lines[0].get_color()  # a variant has one colour in all panels
    written = draw_figures(REPORT, histories, tmp_path, "tiny", ["knn", "nothing"])
    assert written[OVER_EPOCHS] == "tiny-curves.png"
    assert (tmp_path / "tiny-curves.png").is_file()
