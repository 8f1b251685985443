"""Boards get every number; a stand-in plays Weights & Biases, which the tests do not install."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from antipodes.runs.records import Records, require_boards
from tests.cli.command import here, refused

RUN = [
    "--data",
    "shapes",
    "--encoder",
    "resnet8-slim",
    "--head.hidden",
    16,
    "--data.count",
    32,
    "--batch_size",
    16,
    "--epochs",
    1,
]

STAND_IN = """
import json, pathlib

class Run:
    def __init__(self, arguments): self.file = pathlib.Path(arguments["dir"]) / "heard.jsonl"; self.tell(arguments)
    def tell(self, what): self.file.open("a").write(json.dumps(what) + "\\n")
    def log(self, numbers, step): self.tell([step, numbers])
    def finish(self): self.tell("finished")

def init(**arguments): return Run(arguments)
"""


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)


def heard(folder: Path) -> list[object]:
    return [json.loads(line) for line in (folder / "heard.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("wandb")
def test_wandb_hears_what_is_recorded_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("---\nepochs: 3\n...\n")
    records = Records(tmp_path, boards=["wandb"])
    records.write("step", 1, {"loss": 0.5})
    Records(tmp_path, 1, ["wandb"]).write("epoch", 2, {"loss": 0.25})
    records.close()
    start, step, again, epoch, end = heard(tmp_path)
    assert isinstance(start, dict)
    assert start == again  # the same id
    assert start["config"] == {"epochs": 3}
    assert (start["name"], start["resume"], len(start["id"])) == (tmp_path.name, "allow", 16)
    assert [step, epoch, end] == [[1, {"step/loss": 0.5}], [2, {"epoch/loss": 0.25}], "finished"]


@pytest.mark.usefixtures("wandb")
def test_wandb_from_the_command_line(tmp_path: Path) -> None:
    code, _, errors = here("train", *RUN, "--wandb", "true", "--out", tmp_path / "run")
    assert code == 0, errors
    said = heard(tmp_path / "run")
    assert said[0]["config"]["data"]["count"] == 32
    assert "epoch/loss" in said[-2][1]
    assert said[-1] == "finished"


def test_a_missing_package_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert refused("train", *RUN, "--wandb", "true", "--out", tmp_path / "run").endswith(
        "wandb is not installed: pip install '.[wandb]'"
    )
    assert not (tmp_path / "run").exists()
    monkeypatch.delitem(sys.modules, "wandb")
    (tmp_path / "wandb").mkdir()  # such as Weights & Biases leaves behind: importable, and empty
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="wandb is not installed"):
        require_boards(["wandb"])
