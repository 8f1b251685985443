"""`antipodes study` with a runner of its own: killed, gone on with, changed, failing, with and without matplotlib."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from research.ledger.reports import study_file
from research.runners.label_recovery import LabelRecovery
from tests.cli.command import COMMAND, ENVIRONMENT, here, refused

STUDY: dict[str, Any] = {
    "title": "Tiny",
    "question": "Does it run?",
    "runner": "research.runners.label_recovery.LabelRecovery",
    "common": {"samples": 6, "crops": 10, "dimensions": 6, "width": 20, "steps": 300},
    "variants": {"plain": {}, "refined": {"alpha": 0.75}},
    "seeds": [0, 1, 2, 3],
    "baseline": "plain",
    "paper": [
        {"source": "Table 1", "measured": "by hand", "scores": {"refined": {"network, test, 10 % flipped": 99.5}}}
    ],
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(STUDY | changes, sort_keys=False))
    return path


def kept(out: Path) -> dict[str, tuple[int, int]]:
    files = out.glob("*/*/study.json")
    return {str(file): (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, int]], str, str]:
    """A study that was killed after its first trials and called again: folder, what was left, and its words."""
    folder = tmp_path_factory.mktemp("study")
    slow = write(folder / "tiny.yaml", common=STUDY["common"] | {"steps": 1000})
    (folder / "out" / "notes").mkdir(parents=True)
    (folder / "out" / "notes" / "tiny.md").write_text("It does.\n")
    call = [*COMMAND, "study", str(slow), "--out", str(folder / "out")]
    process = subprocess.Popen(call, env=ENVIRONMENT, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    try:
        while not kept(folder / "out"):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = kept(folder / "out")
    code, out, errors = here("study", slow, "--out", folder / "out")
    assert code == 0, errors
    return folder, left, out, errors


def test_a_killed_study_goes_on_without_running_anything_twice(finished: Any) -> None:
    folder, left, _, errors = finished
    assert 1 <= len(left) < 8
    now = kept(folder / "out")
    assert len(now) == 8
    assert {path: now[path] for path in left} == left
    lines = errors.strip().splitlines()
    assert lines[0] == f"{len(left)} of 8 runs are finished already"
    assert [line.split()[0] for line in lines[1:]] == [f"{number}/8" for number in range(len(left) + 1, 9)]
    assert "refined labels, 10 % flipped 90" in errors


def test_the_report_has_tables_facts_notes_and_a_figure(finished: Any) -> None:
    pytest.importorskip("matplotlib")
    folder, _, out, _ = finished
    assert "99.5 (1)" in out
    assert "The report: " in out
    assert f"A figure of it: {folder / 'out' / 'tiny.png'}" in out
    page = (folder / "out" / "tiny.md").read_text()
    for part in (
        "## What it shows\n\nIt does.",
        "![Tiny](tiny.png)",
        "6 samples on the sphere",
        "| refined | alpha 0.75 |",
    ):
        assert part in page
    assert (folder / "out" / "tiny.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((folder / "out" / "tiny.json").read_text())
    assert report["common"]["steps"] == 1000
    for variant in ("plain", "refined"):
        for seed in range(4):
            saved = json.loads((folder / "out" / variant / f"seed-{seed}" / "study.json").read_text())
            assert report["results"][variant][str(seed)] == saved["scores"]
            assert saved["configuration"]["alpha"] == (0.75 if variant == "refined" else 0)


def test_a_changed_study_is_refused(finished: Any) -> None:
    folder, *_ = finished
    before = kept(folder / "out")
    sentence = refused("study", write(folder / "changed.yaml"), "--out", folder / "out")
    assert "was started with steps 1000, the study now says 300" in sentence
    assert kept(folder / "out") == before


def test_a_study_goes_on_from_its_report(tmp_path: Path) -> None:
    few = STUDY["common"] | {"steps": 3}
    first = here("study", write(tmp_path / "tiny.yaml", common=few, seeds=[0, 1]), "--out", tmp_path / "out")
    assert first[0] == 0, first[2]
    before = json.loads((tmp_path / "out" / "tiny.json").read_text())["results"]
    # on another machine, with one seed more and one variant changed
    more = write(tmp_path / "tiny.yaml", common=few, seeds=[0, 1, 2], variants={"plain": {}, "refined": {"alpha": 0.5}})
    call = ("study", more, "--out", tmp_path / "anew", "--evidence", tmp_path / "out", "--extend")
    code, _, errors = here(*call)
    assert code == 0, errors
    assert f"the scores of 2 runs are known from {tmp_path / 'out' / 'tiny.json'}" in errors
    assert [line.split(":")[0] for line in errors.splitlines()[2:]] == [
        "3/6  refined, seed 0", "4/6  refined, seed 1", "5/6  plain, seed 2", "6/6  refined, seed 2",
    ]  # fmt: skip
    report = json.loads((tmp_path / "out" / "tiny.json").read_text())
    assert {seed: report["results"]["plain"][seed] for seed in "01"} == before["plain"]
    assert report["results"]["refined"]["0"] != before["refined"]["0"]
    unknown = "the code that it was run with is not known"
    assert report["stale"] == {"plain, seed 0": unknown, "plain, seed 1": unknown}
    code, _, errors = here(*call)  # once more: nothing is left to do
    assert code == 0, errors
    assert "6 of 6 runs are finished already" in errors


def test_there_must_be_a_report_to_go_on_from(tmp_path: Path) -> None:
    call = ("study", write(tmp_path / "tiny.yaml"), "--out", tmp_path / "out", "--extend")
    assert "which does not exist: leave it out for the first report" in refused(*call)
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    study = write(tmp_path / "tiny.yaml", common=STUDY["common"] | {"steps": 3}, seeds=[0, 1])
    code, out, errors = here("study", study, "--out", tmp_path / "out")
    assert code == 0, errors
    assert "no figures: pictures need matplotlib: pip install '.[plots]'" in out
    assert "png" not in (tmp_path / "out" / "tiny.md").read_text()
    assert not list((tmp_path / "out").glob("*.png"))


def test_a_failed_trial_does_not_stop_the_others(tmp_path: Path) -> None:
    variants = {"plain": {}, "wild": {"step_size": 1e300}}
    study = write(tmp_path / "wild.yaml", variants=variants, seeds=[0], paper=[], common={"steps": 3})
    code, _, errors = here("study", study, "--out", tmp_path / "out")
    assert code == 1
    assert "wild, seed 0: failed: the network has diverged: lower step_size" in errors
    assert "- wild, seed 0: the network has diverged" in (tmp_path / "out" / "wild.md").read_text()
    assert len(kept(tmp_path / "out")) == 1


def test_a_trial_that_breaks_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LabelRecovery.run

    def breaks(self: LabelRecovery, seed: int) -> dict[str, float]:
        if self.alpha and seed == 0:
            raise RuntimeError("not enough memory:\nyou tried to allocate too much")
        return run(self, seed)

    monkeypatch.setattr(LabelRecovery, "run", breaks)
    study = write(tmp_path / "tiny.yaml", common=STUDY["common"] | {"steps": 3}, seeds=[0, 1], paper=[])
    code, _, errors = here("study", study, "--out", tmp_path / "out")
    assert code == 1
    assert "refined, seed 0: failed: RuntimeError: not enough memory: you tried" in errors
    assert "- refined, seed 0: RuntimeError: not enough memory" in (tmp_path / "out" / "tiny.md").read_text()
    assert "in breaks" in (tmp_path / "out" / "refined" / "seed-0.log").read_text()
    assert len(kept(tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"runner": "lottery"}, "unknown runner 'lottery': give the dotted path of a class"),
        ({"runner": "research.runners.lottery.Lottery"}, "cannot be imported"),
        ({"runner": "antipodes.InfoNCE"}, "it is not a subclass of antipodes.studies.runner.Runner"),
        ({"variants": {"plain": {"alfa": 1}}}, "variant plain cannot be run"),
        ({"protocols": ["knn"]}, "unknown key 'protocols'"),
    ],
)
def test_a_wrong_study_gets_one_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    study = write(tmp_path / "wrong.yaml", **({"paper": []} | changes))
    assert sentence in refused("study", study, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mutual-information", "label-recovery"])
def test_studies_run_quickly(name: str, tmp_path: Path) -> None:
    call = (
        "study",
        study_file(name),
        "--budget",
        "quick",
        "--out",
        tmp_path / "out",
        "--evidence",
        tmp_path,
        "--seeds",
        0,
    )
    code, out, errors = here(*call)
    assert code == 0, errors
    assert f"{name}-quick.md" in out
    page = (tmp_path / f"{name}-quick.md").read_text()
    assert "What it shows" not in page  # that is about the full study
    assert f"`antipodes study research/studies/{name}.yaml --budget quick`" in page
