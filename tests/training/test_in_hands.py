"""A run in people's hands: moved data, more epochs, other weights to start from, a full disk, Control-C."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file

from antipodes.cli.train import parse
from antipodes.runs.build import build_data, build_method
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.opening import open_method
from antipodes.training import loop
from antipodes.training.loop import run_training
from antipodes.training.starting import start_from
from tests.cli.command import COMMAND, ENVIRONMENT, here, refused

TINY = ["--encoder", "resnet8-slim", "--head.hidden", 8, "--head.dim", 8, "--batch_size", 8, "--data.size", 32]
SHAPES = ["--data", "shapes", "--data.count", 16, *TINY[:-2], "--epochs", 1]


def photos(folder: Path, count: int = 16) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (36, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def done(*arguments: object) -> str:
    code, _, errors = here(*arguments)
    assert code == 0, errors
    return errors


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run on photos that were named by a relative path, one of them damaged."""
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "bad.png").write_bytes(b"no picture")
    monkeypatch.chdir(tmp_path)
    said = done("train", "--data", "photos", *TINY, "--epochs", 2, "--out", "run")
    assert "16 images" in said
    return tmp_path / "run"


def test_a_run_finds_its_data_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bad.png" in (run / "skipped.csv").read_text()
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["name"] == str(tmp_path / "photos")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    open_method(Run.open(run))  # from another folder

    shutil.move(tmp_path / "photos", tmp_path / "moved")
    assert "does not exist" in refused("evaluate", run, "--protocol", "label-free")
    done("evaluate", run, "--protocol", "label-free", "--data", tmp_path / "moved")
    done("train", "--resume", run, "--data", "../moved", "--epochs", 3)  # longer, and where the photos are now
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["epochs"], config["data"]["name"]) == (3, str(tmp_path / "elsewhere" / ".." / "moved"))
    assert load_checkpoint(Run(run).last)["step"] == 6
    done("train", "--resume", run)  # what was said once is remembered
    assert "may be more, not fewer" in refused("train", "--resume", run, "--epochs", 2)


def test_photos_may_be_added_where_no_table_knows_them(run: Path, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "photos" / "1.png", tmp_path / "photos" / "new.png")
    _, data = open_method(Run.open(run))
    assert len(data) == 17
    assert "1 new ones start fresh" in done("train", "--resume", run, "--epochs", 3)


def test_two_processes_do_not_train_one_run(run: Path) -> None:
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True)"
    call = [sys.executable, "-c", f"{hold}; time.sleep(600)", str(run / ".lock")]
    with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert "is being trained by another process" in refused("train", "--resume", run)
        other.kill()
    done("train", "--resume", run)  # the lock has gone with its holder


@pytest.mark.parametrize("method", ["simclr", "moco"])
def test_a_run_starts_from_another(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done("train", *SHAPES, "--out", tmp_path / "first")
    given = load_file(tmp_path / "first" / "encoder.safetensors")
    queue = ["--method.queue_size", 16] if method == "moco" else []
    options = ["--method", method, *queue, "--init", tmp_path / "first", "--learning_rate", 0]
    said = done("train", *SHAPES, *options, "--out", tmp_path / "second")
    assert "tensors were loaded from" in said
    state = load_checkpoint(Run(tmp_path / "second").last)["model"]
    prefixes = ["network.towers.image.encoder."] + (["key_network.towers.image.encoder."] if method == "moco" else [])
    for prefix in prefixes:
        for name, tensor in given.items():
            if "running" not in name and "num_batches" not in name:
                assert torch.equal(state[prefix + name], tensor), prefix + name
    shutil.rmtree(tmp_path / "first")  # a run that goes on needs it no more
    done("train", "--resume", tmp_path / "second", "--epochs", 2)


MEMORIES = {
    "instance": (["--method.samples", 8], "bank", ["bank.table.rows", "bank.draws"]),
    "moco": (["--method.queue_size", 12], "key network and queue", ["queue.keys", "queue.ids", "queue.rows"]),
    "cmc": (["--method.samples", 8], "banks", ["banks.l.table.rows", "banks.ab.table.rows"]),
}


@pytest.mark.parametrize("method", MEMORIES)
def test_a_run_of_the_same_method_gives_its_head_and_memory(method: str, tmp_path: Path) -> None:
    options, memory, keys = MEMORIES[method]
    options = ["--method", method, *options]
    done("train", *SHAPES, *options, "--out", tmp_path / "first")
    first = load_checkpoint(Run(tmp_path / "first").last)["model"]

    def started(*more: object) -> tuple[dict[str, torch.Tensor], str]:
        """A method that was started from the first run, and what was said of that."""
        config, _ = parse(list(map(str, [*SHAPES, *options, *more])))
        torch.manual_seed(1)
        data = build_data(config["data"])
        said: list[str] = []
        other = build_method(config, data)
        start_from(other, str(tmp_path / "first"), data, said.append)
        return other.state_dict(), "; ".join(said)

    state, said = started()
    assert f"its {memory} too" in said
    assert all(torch.equal(state[key], first[key]) for key in first if not key.startswith("directions."))
    assert set(keys) <= set(state)

    state, said = started("--data.seed", 1)  # other pictures: nothing that goes by rows is of use
    assert "is of other data and keeps its initial values" in said
    assert not torch.equal(state[keys[0]], first[keys[0]])
    heads = [key for key in first if ".head." in key and key.startswith("network.")]
    assert heads
    assert all(torch.equal(state[key], first[key]) for key in heads)

    state, said = started("--head.dim", 4)
    assert "its head has another shape there and keeps its initial values" in said
    assert f"its {memory.split()[-1]} has another shape there" in said
    state, said = started("--head.centred", "true")  # of the same length, and yet another head
    assert f"its {memory.split()[-1]} belongs to the head that was not taken" in said
    assert not torch.equal(state[keys[0]], first[keys[0]])


def test_local_aggregation_goes_on_from_instance_discrimination(tmp_path: Path) -> None:
    centred = ["--head.centred", "true"]
    done("train", *SHAPES, "--method", "instance", *centred, "--out", tmp_path / "first")
    options = ["--method", "local-aggregation", "--loss.clusters", "[2]", "--loss.neighbours", 4]
    still = ["--init", tmp_path / "first", "--learning_rate", 0, "--method.bank_momentum", 0.999]
    said = done("train", *SHAPES, *options, *still, "--out", tmp_path / "second")
    assert "its head too" in said
    assert "its bank too" in said
    first, second = (load_checkpoint(Run(tmp_path / name).last)["model"] for name in ("first", "second"))
    torch.testing.assert_close(first["bank.table.rows"], second["bank.table.rows"], atol=0.01, rtol=0)
    said = done("train", *SHAPES, "--method", "simclr", "--init", tmp_path / "first", "--out", tmp_path / "third")
    assert "was trained by another method, instance: only its encoder is taken" in said


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (["--learning_rate", 1e30, "--warmup", 0], "diverged"),
        (["--encoder", f"{__name__}.Large"], "cannot take images of 32 x 32"),
    ],
)
def test_a_failed_run_makes_way(option: list[object], sentence: str, tmp_path: Path) -> None:
    out = tmp_path / "some" / "where"
    code, _, errors = here("train", *SHAPES, "--epochs", 3, *option, "--out", out)
    assert code in (1, 2)
    assert sentence in errors.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    here("train", *SHAPES, "--epochs", 3, *option, "--out", out)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


class Large(torch.nn.Module):
    """An encoder that takes images of one size only."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 64 * 64, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(images.flatten(1))
        return out


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: what a full disk looks like to a program."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_at_a_checkpoint(tmp_path: Path) -> None:
    with largest_file(20_000):
        code, _, errors = here("train", *SHAPES, "--out", tmp_path / "run")
    assert code == 1
    assert "cannot be written" in errors.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    done("train", *SHAPES, "--out", tmp_path / "run")
    before = Run(tmp_path / "run").last.read_bytes()
    with largest_file(20_000):
        code, _, errors = here("train", "--resume", tmp_path / "run", "--epochs", 2)
    assert code == 1
    assert "the one before it is whole" in errors.splitlines()[-1]
    assert Run(tmp_path / "run").last.read_bytes() == before
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    done("train", "--resume", tmp_path / "run", "--epochs", 2)


def test_stopped_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, count = loop._step, 0

    def interrupted(*arguments: object) -> dict[str, float]:
        nonlocal count
        count += 1
        if count % 4 == 0:
            raise KeyboardInterrupt
        return step(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "_step", interrupted)
    code, _, errors = here("train", *SHAPES, "--epochs", 3, "--out", tmp_path / "late")
    assert code == 130
    assert errors.splitlines()[-1].endswith("goes on from the last checkpoint")
    count = 3
    code, _, errors = here("train", *SHAPES, "--epochs", 3, "--out", tmp_path / "early")
    assert (code, errors.splitlines()[-1]) == (130, "antipodes: stopped; nothing kept")
    assert not (tmp_path / "early").exists()


@pytest.mark.parametrize("after", [0.3, 1.0])
def test_stopped_by_hand_while_it_starts(after: float, tmp_path: Path) -> None:
    call = [*COMMAND, "train", *SHAPES, "--epochs", 10_000, "--out", tmp_path / "run"]
    process = subprocess.Popen(list(map(str, call)), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (1, 130, -signal.SIGINT)  # the last: Python itself was still starting
    assert "Traceback" not in errors or "antipodes" not in errors.splitlines()[0]


def test_a_caller_keeps_its_generator(tmp_path: Path) -> None:
    config, _ = parse([*map(str, SHAPES), "--out", str(tmp_path / "run")])
    before = torch.get_rng_state()
    run_training(config)
    assert torch.equal(before, torch.get_rng_state())


def test_lower_layers_learn_more_slowly(tmp_path: Path) -> None:
    done("train", *SHAPES, "--out", tmp_path / "first")
    options = ["--init", tmp_path / "first", "--layer_decay", 0.5]
    done("train", *SHAPES, *options, "--out", tmp_path / "second")
    groups = load_checkpoint(Run(tmp_path / "second").last)["optimizer"]["param_groups"]
    head = max(group["lr"] for group in groups)
    assert {round(group["lr"] / head, 6) for group in groups} == {1, 0.5, 0.25, 0.125, 0.0625}
    done("train", "--resume", tmp_path / "second", "--epochs", 2)
    assert "layer_decay must be in" in refused("train", *SHAPES, "--layer_decay", 0, "--out", tmp_path / "third")
