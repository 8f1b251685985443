"""A run's folder: nothing of the user's is lost, two starts do not meet, damage is noticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from antipodes import FNC, Pairs, Rule
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, load_checkpoint, save_checkpoint
from antipodes.runs.records import read_epochs
from tests.cases import every
from tests.cli.command import here, refused, start

TINY = ["--data", "shapes", "--data.count", 128, "--batch_size", 64, "--encoder", "resnet8-slim", "--head.hidden", 16]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert here("train", *TINY, "--epochs", 2, "--out", folder)[0] == 0
    return folder


@every(
    "name",
    [
        "checkpoints/mine.txt",
        "snapshots/a/b.txt",
        "wandb/x",
        "wandb-id",
        "metrics.csv",
        "skipped.csv",
        "encoder.safetensors",
        "encoder-text.md",
        "head.safetensors",
        "evaluation.json",
        ".lock",
    ],
)
def test_a_folder_with_files_of_the_user_is_refused_and_stays(tmp_path: Path, name: str) -> None:
    file = tmp_path / "project" / name
    file.parent.mkdir(parents=True)
    file.write_text("years of work")
    before = contents(tmp_path)
    assert name.split("/")[0] in refused("train", *TINY, "--out", tmp_path / "project")
    assert contents(tmp_path) == before


def test_a_run_that_fails_takes_only_its_own_files_away(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    failing = ["--learning_rate", 1e30, "--warmup", 0, "--optimizer", "sgd"]
    code, _, errors = here("train", *TINY, *failing, "--epochs", 5, "--out", tmp_path / "project")
    assert code in (1, 2), errors
    assert contents(tmp_path) == before


def test_two_starts_with_one_folder_leave_one_whole_run(tmp_path: Path) -> None:
    call = ["train", *TINY, "--epochs", 2, "--out", tmp_path / "run"]
    written = [tmp_path / f"errors-{number}" for number in range(3)]
    started = [start(*call, errors=errors) for errors in written]
    for process in started:
        process.join(240)
    ended = [(errors.read_text(), process.exitcode) for errors, process in zip(written, started, strict=True)]
    assert sorted(code for _, code in ended) == [0, 2, 2], ended
    for errors, code in ended:
        assert code == 0 or str(tmp_path / "run") in errors.splitlines()[-1]
    assert len(read_epochs(tmp_path / "run")) == 2
    assert load_checkpoint(Run(tmp_path / "run").last, CHECKPOINT_KEYS)["step"] == 4


class Interrupting(FNC):
    """A policy that stops the run by Control-C once it has a checkpoint, and takes that away first."""

    last = Path()

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        if self.last.is_file():
            self.last.unlink()
            raise KeyboardInterrupt
        return super().judge(pairs, progress, learn)


def test_a_run_whose_last_checkpoint_was_taken_away_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    monkeypatch.setattr(Interrupting, "last", run.last)
    policy = f"{__name__}.{Interrupting.__name__}"
    code, _, errors = here("train", *TINY, "--negatives", policy, "--epochs", 3, "--out", run.folder)
    assert code == 130, errors
    assert "last.pt" in errors.splitlines()[-1]
    assert run.config_file.is_file()
    assert len(read_epochs(run.folder)) == 1


@pytest.mark.parametrize("epochs", [2, 3])
def test_a_finished_run_without_its_checkpoints_is_not_trained_again(
    finished: Path, tmp_path: Path, epochs: int
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    before = contents(tmp_path)
    assert "last.pt" in refused("train", "--resume", tmp_path / "run", "--epochs", epochs)
    after = contents(tmp_path)
    assert {name for name in after if name not in before} <= {"run/.lock"}
    assert {name: after[name] for name in before} == before


def test_a_resumed_run_removes_what_a_killed_one_left(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    left = tmp_path / "run" / "checkpoints" / ".last.pt.0123456789abcdef.tmp"
    left.write_bytes(b"half")
    assert here("train", "--resume", tmp_path / "run")[0] == 0
    assert not left.exists()


@pytest.mark.parametrize(
    "name", ["checkpoints/last.pt", "checkpoints/best.pt", "encoder.safetensors", "head.safetensors"]
)
def test_flipped_bits_are_noticed_by_whatever_reads_the_file(finished: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(finished, tmp_path / "run")
    file, run = tmp_path / "run" / name, tmp_path / "run"
    content, drawn = bytearray(file.read_bytes()), random.Random(0)
    place = drawn.randrange(len(content) // 2, len(content) - 200)  # among the weights
    content[place] ^= 1 << drawn.randrange(8)
    file.write_bytes(content)
    readers: dict[str, list[list[object]]] = {
        "checkpoints/last.pt": [
            ["train", "--resume", run, "--epochs", 4],
            ["evaluate", run, "--protocol", "knn", "--checkpoint", "last"],
            ["train", *TINY, "--init", file, "--out", tmp_path / "new"],
        ],
        "checkpoints/best.pt": [["evaluate", run, "--protocol", "knn", "--checkpoint", "best"]],
        "encoder.safetensors": [
            ["export", run, "--safetensors", tmp_path / "copy.safetensors"],
            ["train", *TINY, "--init", run, "--out", tmp_path / "new"],
        ],
        "head.safetensors": [["export", run, "--embeddings", "--onnx", tmp_path / "a.onnx"]],
    }
    for call in readers[name]:
        assert file.name in refused(*call), call
        assert not (tmp_path / "new").exists()


def test_a_checkpoint_that_lacks_something_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    file = Run(tmp_path / "run").last
    state = load_checkpoint(file)
    for key in CHECKPOINT_KEYS:
        save_checkpoint(file, {name: value for name, value in state.items() if name != key})
        sentence = refused("train", "--resume", tmp_path / "run", "--epochs", 4)
        assert "last.pt" in sentence
        assert key in sentence
