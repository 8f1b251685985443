"""`antipodes compare`: what it refuses, what it marks, and that nothing of it is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from antipodes.cli.train import parse
from antipodes.runs.folder import Run, fingerprint, save_checkpoint
from tests.cli.command import here, refused

SCORES = {f"score-{number}": 50.0 + number for number in range(8)}
TINY = "--data shapes --data.count 16 --data.test_count 8 --encoder resnet8-slim --head.hidden 8 --batch_size 8"


def scored(folder: Path, *options: str, scores: dict[str, float] = SCORES, **measured: Any) -> Path:
    """A folder as a run leaves it that was trained and scored."""
    config, _ = parse(["--data", "shapes", *options, "--out", str(folder)])
    run = Run(folder)
    run.create(config)
    weights = {"weight": torch.full((2,), float(config["seed"]))}
    save_checkpoint(run.last, {"model": weights})
    measured = {"checkpoint": "last", "weights": fingerprint(weights), "data": "16 training rows a"} | measured
    (folder / "evaluation.json").write_text(json.dumps({folder.name: scores, "measured with": measured}))
    return folder


def test_scores_of_other_data_are_refused_within_and_across_groups(tmp_path: Path) -> None:
    plain, seed = scored(tmp_path / "plain"), scored(tmp_path / "seed", "--seed", "1", data_path="/elsewhere")
    assert here("compare", plain, seed)[0] == 0
    other = scored(tmp_path / "other", "--seed", "2", data="9 training rows b")
    assert "differ in measured with data (16 training rows a, 9 training rows b)" in refused("compare", plain, other)
    other = scored(tmp_path / "policy", "--negatives", "fnc", data="9 training rows b")
    assert "differ in measured with data" in refused("compare", plain, other)
    shown = here("compare", plain, other, "--anyway")[1]
    assert shown.index("measured with data: simclr: 16 training rows a") < shown.index("variant")


def test_scores_of_earlier_weights_are_refused_or_marked(tmp_path: Path) -> None:
    plain, before = scored(tmp_path / "plain"), scored(tmp_path / "before", "--seed", "1", weights="0123456789abcdef")
    assert f"the scores of {before} are of earlier weights than the run has now" in refused("compare", plain, before)
    shown = here("compare", plain, before, "--anyway", "--json")[1]
    assert json.loads(shown)["different"] == {"scores of earlier weights": {"simclr": str(before)}}


def test_epochs_are_compared_but_for_the_best_checkpoint(tmp_path: Path) -> None:
    first, second = scored(tmp_path / "first", epochs=3), scored(tmp_path / "second", "--seed", "1", epochs=4)
    assert "measured with epochs (3, 4)" in refused("compare", first, second)
    for run in (first, second):
        file = run / "evaluation.json"
        file.write_text(file.read_text().replace('"last"', '"best"'))
    assert here("compare", first, second)[0] == 0


@pytest.mark.parametrize("width", [40, 80])
def test_nothing_is_cut_in_a_narrow_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    runs = [scored(tmp_path / "plain"), scored(tmp_path / "policy", "--negatives", "fnc")]
    monkeypatch.setenv("COLUMNS", str(width))
    shown = here("compare", *runs)[1]
    assert "† A single seed" in shown
    assert "Not shown: score-4," in shown
    assert all(score in shown for score in SCORES)
    shown = here("compare", *runs, "--scores", *SCORES)[1]
    assert all(f"{value:.2f} †" in shown for value in SCORES.values())
    assert "Not shown" not in shown
    assert "…" not in shown
    assert max(map(len, shown.splitlines()[:-2])) <= width


def test_evaluate_writes_down_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert here("train", *TINY.split(), "--epochs", 1, "--out", "run")[0] == 0
    assert here("evaluate", "run", "--protocol", "label-free")[0] == 0
    measured = json.loads(Path("run/evaluation.json").read_text())["measured with"]
    assert measured["epochs"] == 1
    assert measured["data_path"] == "shapes"
    assert measured["data"].startswith("16 training rows ")
    assert ", 8 test rows " in measured["data"]
    assert here("compare", "run")[0] == 0
    assert here("train", "--resume", "run", "--epochs", 2)[0] == 0
    assert "the scores of run are of earlier weights" in refused("compare", "run")
    assert here("evaluate", "run", "--protocol", "label-free")[0] == 0
    assert here("compare", "run")[0] == 0
