"""Studies whose trials are submitted by submitit: real jobs on this machine, preempted, failing and refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.records import read_records
from antipodes.studies.run import study
from antipodes.studies.submitted import Commands, open_executor
from tests.cli.test_study import STUDY
from tests.training.test_ranks import members
from tests.training.test_resume import equal

SMALL = {"variants": {"plain": {}}, "seeds": [0], "protocols": ["knn"], "records": [], "paper": []}
TRAIN = ["train", "--resume", "auto", "--data", "shapes", "--data.count", "128", "--batch_size", "16", "--threads", "1"]
TRAIN += ["--encoder", "resnet8-slim-gn", "--knn_every", "0", "--log_every", "1", "--checkpoint_steps", "2"]


def test_a_local_job_trains_and_evaluates_every_trial(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(STUDY | SMALL))
    outcome = study(file, out=tmp_path / "out", executor="local")
    assert not outcome.failed
    assert outcome.lines
    assert (tmp_path / "out" / "plain" / "seed-0" / "study.json").is_file()
    assert "$ antipodes train --resume auto" in (tmp_path / "out" / "plain" / "seed-0.log").read_text()


@pytest.mark.parametrize("terminated", [False, True])
def test_a_preempted_job_goes_on_from_its_checkpoint(tmp_path: Path, terminated: bool) -> None:
    pytest.importorskip("submitit")
    executor = open_executor("local", tmp_path / "jobs", {"timeout_min": 5})
    out = tmp_path / "run"
    job = executor.submit(Commands([[*TRAIN, "--epochs", "3", "--out", str(out)]], tmp_path / "log"))
    while max((int(line["step"]) for line in read_records(out)), default=0) < 10:
        time.sleep(0.02)
        assert not job.done()
    if terminated:  # SLURM sends SIGTERM to all processes first, which the job itself does not heed
        child = next(member for member in members(job._process.pid) if "train" in command_of(member))
        os.kill(child, signal.SIGTERM)
        while child in members(job._process.pid):
            time.sleep(0.1)
        time.sleep(1)
        assert not job.done(), "a job that ended by itself is not queued again"
    job._interrupt()  # as a scheduler announces that it takes the node away
    while not job.done():
        time.sleep(0.1)
    before = load_checkpoint(Run(out).last)["step"]
    assert 0 < before < 24
    queued = next((tmp_path / "jobs").rglob("*_submitted.pkl")).parent  # what a scheduler would start once more
    again: dict[str, Any] = {"SUBMITIT_LOCAL_JOB_ID": job.job_id, "SUBMITIT_EXECUTOR": "local"}
    subprocess.run([sys.executable, "-m", "submitit.core._submit", str(queued)], env=environment(again), check=True)
    alone = tmp_path / "alone"
    subprocess.run(
        [sys.executable, "-m", "antipodes", *TRAIN, "--epochs", "3", "--out", str(alone)],
        check=True,
        env=environment({}),
    )
    assert equal(load_checkpoint(Run(out).last), load_checkpoint(Run(alone).last))


def command_of(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_text().split("\0")


def environment(more: dict[str, str]) -> dict[str, str]:
    return os.environ | {"SUBMITIT_LOCAL_NTASKS": "1", "SUBMITIT_LOCAL_GLOBALID": "0"} | more


@pytest.mark.parametrize(("kind", "sentence"), [("slurm", "executor slurm")])
def test_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Any, sentence: str) -> None:
    monkeypatch.setenv("PATH", "")  # no SLURM, also where there is one
    with pytest.raises(ValueError, match=sentence):
        open_executor(kind, tmp_path, {})
