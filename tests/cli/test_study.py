"""`antipodes study` and `antipodes compare`, with real runs: killed, resumed, changed, failing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from antipodes.runs.folder import Run
from antipodes.studies import grid
from tests.cases import every
from tests.cli.command import COMMAND, ENVIRONMENT, Forked, here, refused

STUDY: dict[str, Any] = {
    "title": "Tiny",
    "question": "Does it run?",
    "common": {
        "data": {"name": "shapes", "count": 128, "test_count": 64},
        "encoder": "resnet8-slim",
        "method": "simclr",
        "head": {"hidden": 16},
        "batch_size": 32,
        "epochs": 1,
    },
    "variants": {"plain": {}, "fnc": {"negatives": {"name": "fnc", "alpha": 0.1}}},
    "seeds": [0, 1],
    "baseline": "plain",
    "protocols": ["knn", "false-negatives"],
    "records": ["flagged_share"],
    "paper": [{"source": "Table 1", "measured": "photos", "scores": {"fnc": {"knn top-1": 61.5}}}],
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


def identity(out: Path) -> dict[str, tuple[int, int]]:
    """Which file every checkpoint is, and when it was written."""
    files = [*out.glob("*/*/checkpoints/last.pt"), *out.glob("*/*/study.json")]
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


FORKED = SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study's trainings and evaluations are forked, which saves their start."""
    monkeypatch.setattr(grid, "subprocess", FORKED)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, int]], str, str]:
    """A study that was killed with its runs and called again: its folder, what the killed one left, its words."""
    folder = tmp_path_factory.mktemp("study")
    call = [*COMMAND, "study", str(write(folder / "tiny.yaml")), "--out", str(folder / "out")]
    process = subprocess.Popen(call, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200

    def wait_for(pattern: str, count: int) -> None:
        while len(list((folder / "out").glob(pattern))) < count:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    try:
        wait_for("*/*/study.json", 1)
        assert "is in use" in refused("study", folder / "tiny.yaml", "--out", folder / "out")
        wait_for("*/*/config.yaml", 3)  # a third run is at work
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    latest = max((folder / "out").glob("*/*/config.yaml"), key=lambda file: file.stat().st_mtime_ns).parent
    (latest / "checkpoints" / "last.pt").unlink(missing_ok=True)  # this one was killed before its first checkpoint
    left = identity(folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "subprocess", FORKED)
        code, printed, errors = here("study", folder / "tiny.yaml", "--out", folder / "out")
    assert code == 0, errors
    said = latest.with_name(f"{latest.name}.log").read_text()
    assert (said.count("$ antipodes train --config"), said.count("$ antipodes train --resume")) == (1, 1)
    return folder, left, printed, errors


def test_a_killed_study_goes_on_without_running_anything_twice(finished: Any) -> None:
    folder, left, _, errors = finished
    done = sum(path.endswith("study.json") for path in left)
    assert 1 <= done < 4
    now = identity(folder / "out")
    assert len(now) == 8
    for path, file in left.items():
        assert now[path] == file  # neither a finished run nor a finished training was run again
    lines = errors.strip().splitlines()
    assert lines[0] == f"{done} of 4 runs are finished already"
    assert [line.split()[0] for line in lines[1:]] == [f"{number}/4" for number in range(done + 1, 5)]
    assert "knn top-1" in lines[1]


def test_the_table_is_complete(finished: Any) -> None:
    folder, _, out, _ = finished
    assert "61.5 (1)" in out
    assert "(1) Table 1: photos" in out
    report = json.loads((folder / "out" / "tiny.json").read_text())
    results = report["results"]
    for variant in ("plain", "fnc"):
        for seed in ("0", "1"):
            run = folder / "out" / variant / f"seed-{seed}"
            assert Run.open(run).config["seed"] == int(seed)
            scores = json.loads((run / "evaluation.json").read_text())[run.name]
            assert results[variant][seed] == {**scores, "flagged_share": results[variant][seed]["flagged_share"]}
    assert "flags pooled precision" in results["fnc"]["0"]
    assert "flags pooled precision" not in results["plain"]["0"]  # which has no policy
    assert results["fnc"]["0"]["flagged_share"] == pytest.approx(6 / 62)
    line = next(line for line in report["summary"] if (line["variant"], line["score"]) == ("fnc", "knn top-1"))
    differences = [results["fnc"][seed]["knn top-1"] - results["plain"][seed]["knn top-1"] for seed in ("0", "1")]
    assert line["difference"] == pytest.approx(sum(differences) / 2)
    assert line["seeds"] == [0, 1]
    assert report["facts"]["data"] == "shapes, 128 training images, 64 test images"
    assert report["variants"]["fnc"]["negatives.alpha"] == 0.1
    page = (folder / "out" / "tiny.md").read_text()
    for fact in ("resnet8-slim", "**epochs**: 1", "**batch**: 32", "<details>", "antipodes 0", "| fnc |", "61.5 (1)"):
        assert fact in page


def test_the_page_shows_the_figures(finished: Any) -> None:
    folder, _, out, _ = finished
    page = (folder / "out" / "tiny.md").read_text()
    for name in ("tiny.png", "tiny-detection.png"):
        assert f"]({name})" in page
        assert (folder / "out" / name).stat().st_size > 10_000
        assert f"A figure of it: {folder / 'out' / name}" in out
    short, _, rest = page.partition("<details>")
    assert "| fnc |" in short
    assert "tiny.png" in short
    assert "tiny-detection.png" in rest


def test_without_matplotlib_one_line_says_so(finished: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, *_ = finished
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, out, _ = here("study", folder / "tiny.yaml", "--out", folder / "out", "--evidence", tmp_path)
    assert code == 0
    assert "no figures: pictures need matplotlib: pip install '.[plots]'" in out.splitlines()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.json", "tiny.md"]
    assert "![" not in (tmp_path / "tiny.md").read_text()


@pytest.mark.usefixtures("forked")
def test_other_scores_need_no_other_training(finished: Any, tmp_path: Path) -> None:
    folder, *_ = finished
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    run = out / "plain" / "seed-0"
    before = identity(out)
    other = tmp_path / "other.npz"
    images, labels = np.zeros((20, 32, 32, 3), dtype=np.uint8), np.arange(20) % 2
    np.savez(other, images=images, labels=labels, test_images=images[:9], test_labels=labels[:9])
    changes = {"variants": {"plain": {}}, "paper": [], "test_limit": 32, "transfer": [str(other)], "transfer_limit": 12}
    study = write(tmp_path / "less.yaml", **changes)
    code, _, errors = here("study", study, "--out", out, "--evidence", tmp_path, "--seeds", 0)
    assert code == 0, errors
    assert "already" not in errors
    assert f"$ antipodes train --resume {run}\n" in run.with_name("seed-0.log").read_text()
    checkpoint, scores = str(run / "checkpoints" / "last.pt"), str(run / "study.json")
    after = identity(out)
    assert after[checkpoint] == before[checkpoint]
    assert after[scores] != before[scores]
    report = json.loads((tmp_path / "less.json").read_text())
    assert report["facts"]["data"].endswith("32 test images")
    assert report["facts"]["transfer"] == "other, 12 training images, 9 test images"
    assert {"knn top-1", "transfer other top-1", "transfer other mean per class"} <= set(
        report["results"]["plain"]["0"]
    )
    assert {line["deviation"] for line in report["summary"]} == {None}


def test_a_changed_study_is_refused(finished: Any) -> None:
    folder, *_ = finished
    before = identity(folder / "out")
    changed = write(folder / "changed.yaml", common=STUDY["common"] | {"learning_rate": 0.5})
    sentence = refused("study", changed, "--out", folder / "out")
    assert "seed-0 was started with learning_rate 0.12, the study now says 0.5" in sentence
    assert identity(folder / "out") == before


@pytest.mark.usefixtures("forked")
def test_a_failed_run_does_not_stop_the_others(finished: Any) -> None:
    folder, *_ = finished
    variants = {"wild": {"learning_rate": 1e30, "seeds": [1]}, "fnc": STUDY["variants"]["fnc"]}
    study = write(folder / "wild.yaml", variants=variants, baseline="fnc")
    code, out, errors = here("study", study, "--out", folder / "out")
    assert code == 1
    assert errors.startswith("2 of 3 runs are finished already")
    assert "3/3  wild, seed 1: failed: the run has diverged" in errors
    assert "1 of 3 runs failed" in errors.splitlines()[-1]
    assert "61.5 (1)" in out
    assert "- wild, seed 1: the run has diverged" in (folder / "out" / "wild.md").read_text()


@every(
    ("changes", "sentence"),
    [
        ({"baseline": "simclr"}, "the baseline 'simclr' is not a variant: there are plain, fnc"),
        ({"variants": {"plain": {"negatives": {"name": "fnc", "alfa": 1}}}}, "variant plain cannot be trained"),
        ({"variants": {"plain": {"negativs": "fnc"}}}, "negativs"),
        ({"variants": {"plain": {"method": "simclear"}}}, "Choose one of simclr"),
        ({"protocols": ["lineal"]}, "no evaluation protocol 'lineal'"),
        ({"common": {"data": "/nonexistent"}}, "does not exist"),
        ({"transfer": ["/nonexistent"]}, "data '/nonexistent' is not one of"),
    ],
)
def test_a_wrong_study_gets_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    study = write(tmp_path / "wrong.yaml", **({"paper": []} | changes))
    assert sentence in refused("study", study, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_call_gets_one_sentence(tmp_path: Path) -> None:
    study = write(tmp_path / "tiny.yaml", budgets={"quick": {"seeds": [0]}})
    assert "choose one of full, quick" in refused("study", study, "--budget", "slow")
    assert "--parallel" in refused("study", study, "--parallel", 0)
    assert "--data_size belongs to --data" in refused("study", study, "--data_size", 32)


def test_compare_groups_runs_that_differ_only_in_their_seed(finished: Any) -> None:
    folder, *_ = finished
    runs = [folder / "out" / variant / f"seed-{seed}" for variant in ("fnc", "plain") for seed in (0, 1)]
    baseline = folder / "out" / "plain" / "seed-1"
    compared = json.loads(here("compare", *runs, "--baseline", baseline, "--json")[1])
    assert compared["baseline"] == "simclr"
    assert set(compared["groups"]) == {"simclr", "simclr + fnc (eliminate)"}
    assert set(compared["groups"]["simclr"]) == {"0", "1"}
    line = next(line for line in compared["summary"] if line["variant"] != "simclr" and line["score"] == "knn top-1")
    scores = {run: json.loads((run / "evaluation.json").read_text())[run.name]["knn top-1"] for run in runs}
    fnc_0, fnc_1, plain_0, plain_1 = scores.values()
    assert line["mean"] == pytest.approx((fnc_0 + fnc_1) / 2)
    assert line["difference"] == pytest.approx((fnc_0 + fnc_1 - plain_0 - plain_1) / 2)
    assert "baseline" in here("compare", *runs)[1]


def test_compare_refuses_what_it_cannot_compare(finished: Any, tmp_path: Path) -> None:
    folder, *_ = finished
    run = folder / "out" / "plain" / "seed-0"
    config = Run.open(run).config
    copy = Run(tmp_path / "copy")
    copy.create(config)
    assert "same settings and the same seed 0" in refused("compare", run, copy.folder)
    other = Run(tmp_path / "other")
    other.create(config | {"epochs": 7})
    assert f"run antipodes evaluate {other.folder}" in refused("compare", run, other.folder)
    assert "is not a run" in refused("compare", run, "--baseline", tmp_path)
    (other.folder / "evaluation.json").write_text((run / "evaluation.json").read_text())
    sentence = refused("compare", run, other.folder)
    assert "they differ in epochs (1, 7): --anyway" in sentence
    compared = json.loads(here("compare", run, other.folder, "--anyway", "--json")[1])
    assert list(compared["groups"]) == ["simclr, epochs 1", "simclr, epochs 7"]
    assert compared["different"] == {"epochs": {"simclr, epochs 1": 1, "simclr, epochs 7": 7}}
    shown = here("compare", run, other.folder, "--anyway", "--scores", "knn top-1")[1]
    assert shown.index("epochs: simclr, epochs 1: 1; simclr, epochs 7: 7") < shown.index("knn")
    assert "no run has the score 'knn'" in refused("compare", run, other.folder, "--anyway", "--scores", "knn")
    measured = json.loads((other.folder / "evaluation.json").read_text())
    measured["measured with"]["test_limit"] = 5
    (other.folder / "evaluation.json").write_text(json.dumps(measured))
    assert "measured with test_limit (None, 5)" in refused("compare", run, other.folder)
    (other.folder / "evaluation.json").write_text("{")
    assert "evaluation.json is damaged" in refused("compare", run, other.folder, "--anyway")


def test_compare_draws_every_seed(finished: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder, *_ = finished
    runs = [folder / "out" / variant / f"seed-{seed}" for variant in ("plain", "fnc") for seed in (0, 1)]
    code, out, errors = here("compare", *runs, "--scores", "knn top-1", "--picture", tmp_path / "all.png")
    assert code == 0, errors
    assert out.count("seed-0") == 2  # the runs of every group are named
    assert (tmp_path / "all.png").stat().st_size > 10_000


def test_the_status_of_a_finished_study(finished: Any) -> None:
    folder, *_ = finished
    before = identity(folder / "out")
    code, out, errors = here("study", folder / "tiny.yaml", "--out", folder / "out", "--status")
    assert code == 0, errors
    assert "4 of 4 runs are finished, not running" in out
    assert "knn top-1" in out
    assert identity(folder / "out") == before


@pytest.mark.usefixtures("forked")
def test_another_study_takes_over_what_was_trained_alike(finished: Any, tmp_path: Path) -> None:
    folder, *_ = finished
    study = write(tmp_path / "twin.yaml", variants={"same": {}}, baseline="same", paper=[], seeds=[1])
    code, _, errors = here("study", study, "--out", folder / "twin")
    assert code == 0, errors
    source = folder / "out" / "plain" / "seed-1"
    assert f"same, seed 1: trained already, in {source}" in errors
    mine = folder / "twin" / "same" / "seed-1"
    assert (mine / "encoder.safetensors").read_bytes() == (source / "encoder.safetensors").read_bytes()
    scores = [json.loads((run / "study.json").read_text())["scores"]["knn top-1"] for run in (mine, source)]
    assert scores[0] == scores[1]


def test_the_report_of_a_projects_own_grid_goes_to_the_project(tmp_path: Path) -> None:
    from antipodes.studies.definition import load_study
    from antipodes.studies.reports import Places
    from antipodes.studies.run import places_of

    for name in ("studies", "results", "pages"):
        (tmp_path / name).mkdir()
    file, out = write(tmp_path / "studies" / "tiny.yaml", budgets={"quick": {"seeds": [0]}}), tmp_path / "out"
    places = places_of(load_study(file), out)
    assert (places.results, places.notes) == (tmp_path / "results", tmp_path / "notes")
    assert places.link("tiny.png") == "../figures/tiny.png"
    for part in (load_study(file, seeds=[0]), load_study(file, "quick"), load_study(file, data={"name": "shapes"})):
        assert places_of(part, out) == Places.of(out)
    assert places_of(load_study(file, "quick"), out, tmp_path) == places
    assert places_of(load_study(write(tmp_path / "tiny.yaml")), out) == Places.of(out)


@pytest.mark.usefixtures("forked")
def test_a_projects_grid_with_failed_runs_stays_out_of_its_pages(tmp_path: Path) -> None:
    for name in ("studies", "results", "pages"):
        (tmp_path / name).mkdir()
    variants = {"plain": {}, "wild": {"learning_rate": 1e30, "seeds": [1]}}
    study = write(tmp_path / "studies" / "tiny.yaml", variants=variants, protocols=["knn"], paper=[], seeds=[1])
    code, out, _ = here("study", study, "--out", tmp_path / "out")
    assert code == 1
    assert "not all runs were finished" in " ".join(out.split())
    assert (tmp_path / "out" / "tiny.md").is_file()
    assert not list((tmp_path / "pages").iterdir())


def test_names_of_earlier_versions_say_what_replaced_them() -> None:
    assert "python -m research.ledger claims" in refused("study", "claims")
    for name in ("list", "false-negatives"):
        assert "give a path that ends in .yaml" in refused("study", name)
