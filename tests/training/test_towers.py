"""Two towers through the whole loop: data and encoders of one's own, ranks, kills, judging, frozen towers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from antipodes.cli.train import parse
from antipodes.methods import CLIP
from antipodes.runs import views
from antipodes.runs.build import build_data
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_records
from antipodes.training import prepare
from antipodes.training.loop import run_training
from tests.cli.command import ENVIRONMENT, antipodes, on_ranks, start
from tests.training.paired import Paired
from tests.training.test_resume import equal

PAIRED = ["--method", "clip", "--data", "tests.training.paired.Paired", "--encoder", "tests.training.paired.Pixels"]
PAIRED += ["--encoders.vector", "tests.training.paired.Dense", "--head.hidden", 8, "--head.dim", 6]
PAIRED += ["--batch_size", 16, "--epochs", 3, "--log_every", 1, "--knn_every", 0]
GLOFND = ["--negatives", "glofnd", "--negatives.alpha", 0.2]
HISTORY: list[object] = ["--guide", "history", "--negatives", "guided", "--negatives.alpha", 0.2]
FROZEN = ["--freeze", "image", "--augmentation", "plain"]
DIRECTIONS = ["image_to_vector", "vector_to_image"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of frozen towers go to a folder of the test, in this process and in those it starts."""
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(ENVIRONMENT, "ANTIPODES_DATA", str(tmp_path / "cache"))


def run(out: Path, *options: object) -> Run:
    config, _ = parse(list(map(str, [*PAIRED, "--out", out, *options])))
    return run_training(config)


def weights(folder: Run) -> dict[str, Tensor]:
    model: dict[str, Tensor] = load_checkpoint(folder.last)["model"]
    return model


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_records(folder) if line["kind"] == "step"]


def lines(folder: Path) -> list[dict[str, Any]]:
    """What was written down, but for how long it took."""
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in read_records(folder)]


def test_it_learns_judges_each_direction_and_writes_both_encoders(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", *GLOFND, "--epochs", 8, "--learning_rate", 2, "--knn_every", 4, "--snapshot_every", 8)
    epochs = [line for line in read_records(folder.folder) if line["kind"] == "epoch"]
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.2
    last = epochs[-1]
    for name in ("kept_per_anchor", "flagged_share"):
        parts = [last[f"{direction}/{name}"] for direction in DIRECTIONS]
        assert last[name] == pytest.approx(sum(parts) / 2)
    assert 0 < last["flagged_share"] < 1
    assert {"precision", "recall", "f1", "mtpr", "mtnr"} <= last.keys()
    assert last["knn"] > 25  # four classes
    method, data = open_method(folder)
    assert isinstance(method, CLIP)
    assert list(data.modalities) == ["image", "vector"]
    for name in ("image", "vector"):
        exported = load_file(folder.folder / f"encoder-{name}.safetensors")
        trained = method.backbone(name).state_dict()
        assert exported.keys() == trained.keys()
        assert all(torch.equal(exported[key], trained[key]) for key in exported)
    assert (folder.folder / "snapshots" / "epoch-008.pt").is_file()


def test_rows_of_the_same_sample_are_no_negatives_of_each_other(tmp_path: Path) -> None:
    """With all rows in one batch, an anchor keeps every row but those of its own sample."""
    folder = run(tmp_path / "a", "--data.records", 4, "--data.count", 32, "--batch_size", 32, "--epochs", 1)
    assert read_records(folder.folder)[0]["kept_per_anchor"] == 28


def test_data_without_labels_is_trained_and_not_judged(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", *GLOFND, "--data.labelled", "false", "--epochs", 1, "--knn_every", 1)
    row = read_records(folder.folder)[-1]
    assert "precision" not in row
    assert "knn" not in row
    with pytest.raises(ValueError, match="oracle learns from labels, and this dataset has none"):
        run(tmp_path / "b", "--data.labelled", "false", "--negatives", "oracle")
    assert not (tmp_path / "b").exists()


def test_a_method_of_one_input_takes_the_image(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "--method", "simclr", "--head.batch_norm", "false", "--epochs", 1)
    method, _ = open_method(folder)
    assert method.network.names() == ["image"]
    assert (folder.folder / "encoder.safetensors").is_file()


def test_clusters_are_fitted_on_the_tower_of_each_direction(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "--negatives", "ifnd", "--negatives.clusters", "[3, 4]")
    state = weights(folder)
    labels = [state[f"directions.{direction}.negatives.labels"] for direction in DIRECTIONS]
    assert not torch.equal(*labels)
    rows = [line for line in read_records(folder.folder) if line["kind"] == "epoch"]
    assert rows[0]["flagged_share"] == 0
    assert all(rows[2][f"{direction}/flagged_share"] > 0 for direction in DIRECTIONS)


def kill(out: Path, *options: object) -> None:
    """Start a run of three epochs of four steps, and kill -9 it in its second."""
    process = start("train", *PAIRED, *options, "--checkpoint_steps", 3, "--out", out)
    deadline = time.monotonic() + 200
    while not (len(losses(out)) >= 6 and Run(out).last.exists()):
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run did not get far enough"
        time.sleep(0.001)
    process.kill()
    process.join()


MANY = ["--epochs", 40]  # small steps are fast: a kill has to find it at work
CASES: dict[str, list[object]] = {
    "both towers": [*MANY, *GLOFND],
    "global": [*MANY, "--loss", "global-contrastive"],
    "a frozen tower": [*MANY, *FROZEN],
    "histories": [*MANY, *HISTORY],
}


@pytest.mark.parametrize("name", CASES)
def test_killed_and_resumed_is_bit_equal(name: str, tmp_path: Path) -> None:
    options = [*CASES[name], "--checkpoint_steps", 3]
    run(tmp_path / "whole", *options)
    kill(tmp_path / "killed", *CASES[name])
    before = load_checkpoint(Run(tmp_path / "killed").last)
    assert 0 < before["step"] < 160
    result = antipodes("train", "--resume", tmp_path / "killed")
    assert result.returncode == 0, result.stderr
    assert equal(*(load_checkpoint(Run(tmp_path / each).last) for each in ("whole", "killed")))
    assert lines(tmp_path / "whole") == lines(tmp_path / "killed")
    for tower in ("image", "vector"):
        file = f"encoder-{tower}.safetensors"
        assert equal(load_file(tmp_path / "whole" / file), load_file(tmp_path / "killed" / file))


@pytest.mark.parametrize("options", [GLOFND, FROZEN, HISTORY], ids=["glofnd", "a frozen tower", "histories"])
def test_two_processes_train_one_run(options: list[object], tmp_path: Path) -> None:
    for devices in (1, 2):
        result = on_ranks(devices, "train", *PAIRED, *options, "--out", tmp_path / str(devices))
        assert result.returncode == 0, result.stderr
    one, two = weights(Run(tmp_path / "1")), weights(Run(tmp_path / "2"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)
    rows = [[line for line in read_records(tmp_path / name) if line["kind"] == "epoch"] for name in ("1", "2")]
    for single, double in zip(*rows, strict=True):
        assert single["loss"] == pytest.approx(double["loss"], rel=1e-5)
        assert single["kept_per_anchor"] == pytest.approx(double["kept_per_anchor"], rel=1e-5)


def test_a_frozen_tower_is_looked_up_and_does_not_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    original = views.FrozenFeatures.__call__
    monkeypatch.setattr(
        views.FrozenFeatures, "__call__", lambda self, rows, raw: looked.append(len(rows)) or original(self, rows, raw)
    )
    with_look_up = run(tmp_path / "a", *FROZEN)
    assert looked == [16] * 12
    monkeypatch.setattr(prepare, "use_cached_features", lambda *_: None)
    without = run(tmp_path / "b", *FROZEN)
    assert looked == [16] * 12
    assert losses(with_look_up.folder) == pytest.approx(losses(without.folder), rel=1e-5)
    first, second = weights(with_look_up), weights(without)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-6)
    config = with_look_up.config
    with torch.random.fork_rng():
        torch.manual_seed(config["seed"])
        start = prepare.build_method(config, build_data(config["data"])).state_dict()
    moved = {".".join(name.split(".")[1:4]) for name in start if not torch.equal(start[name], first[name])}
    learned = {f"{direction}.temperature.parameter" for direction in ("image_to_vector", "vector_to_image")}
    assert moved == {"towers.image.head", "towers.vector.encoder", "towers.vector.head"} | learned


def test_what_is_frozen_is_written_once(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", *FROZEN)
    every = weights(folder)
    written = torch.load(folder.last, weights_only=True)["model"]
    once = load_checkpoint(folder.last.with_name("frozen.pt"))["model"]
    assert {name for name in every if name.startswith("network.towers.image.encoder.")} == set(once)
    assert set(every) - set(written) == set(once)
    method = open_method(folder)[0]
    assert list(method.state_dict()) == list(every)
    assert all(torch.equal(weight, every[name]) for name, weight in method.state_dict().items())
    folder.last.with_name("frozen.pt").unlink()
    with pytest.raises(ValueError, match=r"frozen.pt does not hold them"):
        load_checkpoint(folder.last)


def test_images_whose_features_are_known_are_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[frozenset[str]] = []
    original = Paired.inputs_without
    monkeypatch.setattr(
        Paired,
        "inputs_without",
        lambda self, names, *rest: asked.append(names) or original(self, names, *rest),
    )
    run(tmp_path / "a", *FROZEN)
    assert [names for names in asked if names] == [frozenset({"image"})] * 12


def test_a_frozen_tower_with_random_views_is_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("views of the image are random")

    monkeypatch.setattr(views.FrozenFeatures, "__call__", refuse)
    folder = run(tmp_path / "a", "--freeze", "image", "--epochs", 1)
    assert len(losses(folder.folder)) == 4


def test_a_queue_of_keys_from_a_frozen_encoder(tmp_path: Path) -> None:
    """The momentum copy looks the same features up, and is frozen like its model."""
    options = ["--method", "moco", "--method.queue_size", 32, "--epochs", 2, "--head.batch_norm", "false"]
    state = weights(run(tmp_path / "a", *options, *FROZEN))
    for name, tensor in state.items():
        if name.startswith("network.towers.image.encoder"):
            assert torch.equal(tensor, state[name.replace("network", "key_network", 1)]), name


def test_towers_that_there_are_not_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no tower 'text' to freeze: the method has image, vector"):
        run(tmp_path / "a", "--freeze", "text")
    assert not (tmp_path / "a").exists()
