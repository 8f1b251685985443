"""A run that is killed and resumed ends with the very weights of a run that was not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from antipodes.runs.folder import Run, load_checkpoint, save_checkpoint
from antipodes.runs.records import read_records
from antipodes.runs.snapshots import load_snapshots
from tests.cli.command import ENVIRONMENT, antipodes, here, refused, start
from tests.data.test_stream import shards_of

STEPS = 8  # per epoch
OPTIONS = ["--batch_size", 64, "--epochs", 3, "--encoder", "resnet8-slim", "--log_every", 1, "--snapshot_every", 1]
SHAPES = ["--data", "shapes", "--data.count", 512]
ACCUMULATING_IFND = ["--accumulate", 2, "--negatives", "ifnd", "--negatives.clusters", "[4, 8]"]
ACCUMULATING_IFND += ["--negatives.space", "seen"]
RING = ["--negatives", "ring", "--negatives.anneal"]
NEIGHBOURS = ["--negatives", "guided+dataset-neighbours", "--negatives.guided.alpha", 0.05]
NEIGHBOURS += ["--negatives.dataset_neighbours.space", "guide", "--negatives.dataset_neighbours.mutual", "true"]
METHODS = {
    "simclr": ["--head.hidden", 32, "--knn_every", 1, "--negatives", "glofnd", "--negatives.alpha", 0.1],
    "moco": ["--method", "moco", "--method.queue_size", 200, "--head.hidden", 32, "--epochs", 6, *ACCUMULATING_IFND],
    "cmc": ["--method", "cmc", "--method.samples", 100, "--negatives", "ifnd", "--negatives.clusters", "[4, 8]"],
    "sogclr": ["--method", "sogclr", "--head.hidden", 32, "--negatives", "oracle", "--treatment", "attract"],
    "hnssl": ["--method", "hnssl", "--loss.top_k", 2],
    "ring by loss": ["--method", "instance", "--method.samples", 50, *RING, "loss"],
    "ring by score": ["--head.hidden", 32, "--knn_every", 1, *RING, "validation"],
    "sane": ["--method", "sane", "--method.queue_size", 200, "--head.hidden", 32],
    "history": ["--head.hidden", 32, "--guide", "history", *NEIGHBOURS],
}


def train(out: Path, *options: object) -> None:
    code, _, errors = here("train", *OPTIONS, *options, "--checkpoint_steps", 3, "--out", out)
    assert code == 0, errors


def final_state(folder: Path) -> dict[str, Any]:
    return load_checkpoint(Run.open(folder).last)


def final_epoch(folder: Path) -> int:
    return max(int(line["epoch"]) for line in read_records(folder) if line["kind"] == "epoch")


def equal(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


def kill_in_mid_epoch(out: Path, *options: object) -> int:
    """Start a run, kill -9 it between two checkpoints in its second epoch; returns the step it had reached."""
    process = start("train", *OPTIONS, *options, "--checkpoint_steps", 3, "--out", out)
    deadline = time.monotonic() + 120
    while not any(line["step"] >= STEPS + 5 for line in read_records(out)):
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run did not get far enough"
        time.sleep(0.002)
    process.kill()
    process.join()
    return max(int(line["step"]) for line in read_records(out))


@pytest.mark.parametrize("method", METHODS)
def test_killed_and_resumed_is_bit_equal(method: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", *SHAPES, *METHODS[method])
    reached = kill_in_mid_epoch(tmp_path / "killed", *SHAPES, *METHODS[method])
    checkpoint = final_state(tmp_path / "killed")["step"]
    assert 0 < checkpoint <= reached
    assert checkpoint < final_state(tmp_path / "whole")["step"]

    later = tmp_path / "killed" / "snapshots" / "epoch-099.pt"
    later.touch()  # as if left behind by what came after the checkpoint
    result = antipodes("train", "--resume", tmp_path / "killed")
    assert result.returncode == 0, result.stderr
    assert not later.exists()

    assert equal(final_state(tmp_path / "whole"), final_state(tmp_path / "killed"))
    whole, killed = (
        [{key: value for key, value in line.items() if key != "images_per_second"} for line in read_records(folder)]
        for folder in (tmp_path / "whole", tmp_path / "killed")
    )
    assert whole == killed  # every step is logged once, with the same numbers
    snapshots, again = ([vars(one) for one in load_snapshots(Run(tmp_path / name))] for name in ("whole", "killed"))
    assert [snapshot["epoch"] for snapshot in snapshots] == list(range(final_epoch(tmp_path / "whole") + 1))
    assert equal(snapshots, again)  # none is lost, none is another
    exported = sorted(path.name for path in (tmp_path / "killed").glob("*.safetensors"))
    assert exported
    for name in exported:
        assert equal(load_file(tmp_path / "whole" / name), load_file(tmp_path / "killed" / name))


def test_a_stream_of_shards_goes_on_in_mid_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "ANTIPODES_DATA", str(tmp_path / "cache"))
    data = ["--data", f"stream:{shards_of(tmp_path / 'shards', 512, 100)}", "--data.size", 32, *METHODS["simclr"]]
    train(tmp_path / "whole", *data)
    assert kill_in_mid_epoch(tmp_path / "killed", *data) % STEPS
    result = antipodes("train", "--resume", tmp_path / "killed")
    assert result.returncode == 0, result.stderr
    assert equal(final_state(tmp_path / "whole"), final_state(tmp_path / "killed"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on an .npz file."""
    folder = tmp_path_factory.mktemp("finished")
    write_npz(folder / "images.npz", seed=0)
    train(folder / "run", "--data", folder / "images.npz", "--epochs", 1, *METHODS["simclr"])
    return folder


def write_npz(path: Path, seed: int) -> None:
    import numpy as np

    images = np.random.default_rng(seed).integers(0, 256, (128, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(128) % 4)


def test_resuming_a_finished_run_changes_nothing(finished: Path) -> None:
    before = final_state(finished / "run")
    assert antipodes("train", "--resume", finished / "run").returncode == 0
    assert equal(before, final_state(finished / "run"))


def test_a_run_from_before_some_options_existed_is_resumed(finished: Path) -> None:
    file = finished / "run" / "config.yaml"
    config = yaml.safe_load(file.read_text())
    del config["snapshot_every"], config["refine_mu"], config["negatives"]["start"]
    file.write_text(yaml.safe_dump(config))
    assert here("train", "--resume", finished / "run")[0] == 0


def test_changed_data_is_refused(finished: Path) -> None:
    before = (finished / "images.npz").read_bytes()
    write_npz(finished / "images.npz", seed=1)
    assert "the dataset has changed" in refused("train", "--resume", finished / "run")
    (finished / "images.npz").write_bytes(before)


def test_changed_method_is_refused(finished: Path) -> None:
    assert "method.name simclr" in refused("train", "--resume", finished / "run", "--method", "moco")


def test_changed_method_in_the_file_is_refused(finished: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((finished / "run" / "config.yaml").read_text())
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    config["method"] |= {"name": "moco", "momentum": 0.9, "queue_size": 8}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "run" / "checkpoints" / "last.pt").write_bytes(Run(finished / "run").last.read_bytes())
    assert "trained with method simclr" in refused("train", "--resume", tmp_path / "run")


def test_checkpoint_that_would_run_code_is_refused(finished: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (tmp_path / "touched",))  # type: ignore[return-value]

    path = tmp_path / "evil.pt"
    save_checkpoint(path, {"model": Evil()})
    with pytest.raises(ValueError, match="cannot be read as a checkpoint"):
        load_checkpoint(path)
    assert not (tmp_path / "touched").exists()


def test_truncated_checkpoint_is_refused(finished: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.pt"
    path.write_bytes(Run(finished / "run").last.read_bytes()[:1000])
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint(path)


def test_a_run_stopped_before_its_first_checkpoint_starts_again(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text((finished / "run" / "config.yaml").read_text())
    assert here("train", "--resume", tmp_path / "run")[0] == 0
    assert final_state(tmp_path / "run")["step"] == final_state(finished / "run")["step"]


def test_a_checkpoint_that_does_not_fit_is_refused(finished: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((finished / "run" / "config.yaml").read_text())
    config["head"]["dim"] = 17
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "run" / "checkpoints" / "last.pt").write_bytes(Run(finished / "run").last.read_bytes())
    assert "does not fit its config.yaml" in refused("train", "--resume", tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("a: [")
    assert "is not YAML" in refused("train", "--resume", tmp_path / "run")


def test_a_folder_that_holds_a_run_is_not_overwritten(finished: Path) -> None:
    assert "holds a run already" in refused("train", *OPTIONS, *SHAPES, "--out", finished / "run")
