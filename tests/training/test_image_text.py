"""Image-text runs through the whole loop: fine-tuning with a late start, shared clusters, floors, shards, captions."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_records
from tests.cli.command import antipodes, here, start
from tests.training.test_resume import equal
from tests.training.test_towers import DIRECTIONS, cache, run, weights  # noqa: F401

COLOURS = ("red", "green", "blue", "white")
CLIP = ["--method", "clip", "--encoder", "resnet8-slim", "--encoders.text", "bag-of-words", "--data.size", 16]
CLIP += ["--head.hidden", 8, "--head.dim", 6, "--batch_size", 8, "--log_every", 1, "--knn_every", 0, "--workers", 0]


def test_a_trained_model_is_fine_tuned_with_a_late_start(tmp_path: Path) -> None:
    """As in GloFND's Table 8: all towers and heads go on from a run, and nothing is flagged in the first part."""
    first = run(tmp_path / "first", "--learning_rate", 1)
    late = ["--negatives", "fnc", "--negatives.alpha", 0.2, "--negatives.start", 0.5]
    second = run(tmp_path / "second", "--init", tmp_path / "first", "--learning_rate", 0, "--epochs", 2, *late)
    before, after = weights(first), weights(second)
    parts = [name for name in after if name.startswith("network.towers.")]
    assert {name.split(".")[2] for name in parts} == {"image", "vector"}
    assert {name.split(".")[3] for name in parts} == {"encoder", "head"}
    assert all(torch.equal(before[name], after[name]) for name in parts)
    steps = [line for line in read_records(second.folder) if line["kind"] == "step"]
    assert [line["flagged_share"] > 0 for line in steps] == [False] * 4 + [True] * 4
    third = run(tmp_path / "third", "--init", tmp_path / "first", "--learning_rate", 1, "--epochs", 1)
    assert not all(torch.equal(before[name], weights(third)[name]) for name in parts)  # it goes on learning


def test_a_head_of_another_shape_stays_as_it_was(tmp_path: Path) -> None:
    run(tmp_path / "first")
    second = run(tmp_path / "second", "--init", tmp_path / "first", "--head.dim", 5, "--learning_rate", 0)
    given = load_file(tmp_path / "first" / "encoder-vector.safetensors")
    assert all(torch.equal(weights(second)[f"network.towers.vector.encoder.{name}"], given[name]) for name in given)


@pytest.mark.parametrize(("towers", "alike"), [("image", True), ("vector", True), ("image+vector", True)])
def test_clusters_of_one_modality_or_of_both_serve_both_directions(towers: str, alike: bool, tmp_path: Path) -> None:
    options = ["--negatives", "ifnd", "--negatives.clusters", "[4]", "--negatives.towers", towers, "--epochs", 2]
    state = weights(run(tmp_path / "a", *options))
    labels, centroids = (
        [state[f"directions.{direction}.negatives.{name}"] for direction in DIRECTIONS]
        for name in ("labels", "centroids")
    )
    assert torch.equal(*labels) == alike
    assert int(labels[0].min()) >= 0
    widths = {"image": 12, "vector": 10}
    assert centroids[0].shape[1] == sum(widths[tower] for tower in towers.split("+"))


def test_a_tower_to_cluster_that_there_is_not_is_one_sentence(tmp_path: Path) -> None:
    options = ["--negatives", "ifnd", "--negatives.clusters", "[4]", "--negatives.towers", "sound", "--epochs", 2]
    with pytest.raises(ValueError, match="there is no tower 'sound' to cluster the features of: the method has image"):
        run(tmp_path / "a", *options)
    with pytest.raises(ValueError, match="towers must be anchor, or names joined by"):
        run(tmp_path / "b", *options[:-3], "image+", "--epochs", 1)


def test_a_learned_temperature_reaches_its_floor_and_stays(tmp_path: Path) -> None:
    """Clean pairs ask for ever colder softmaxes; the floor is where that ends, and training goes on there."""
    learned = ["--loss.temperature", 0.2, "--temperature.floor", 0.1, "--temperature.rate", 1.0]
    folder = run(tmp_path / "a", *learned, "--epochs", 30, "--learning_rate", 2, "--batch_size", 8)
    steps = [line for line in read_records(folder.folder) if line["kind"] == "step"]
    found = [line["temperature"] for line in steps]
    assert found[0] == pytest.approx(0.2, rel=0.2)
    assert min(found) == pytest.approx(0.1, rel=1e-5)
    assert found[-1] == pytest.approx(0.1, rel=1e-5)
    assert all(np.isfinite(line["loss"]) for line in steps)
    method, _ = open_method(folder)
    for loss_fn in method.pair_losses().values():
        assert loss_fn.temperature.current() == pytest.approx(0.1, rel=1e-5)  # type: ignore[union-attr]


def picture(colour: str, number: int) -> bytes:
    """A small picture of a colour, with noise of its own."""
    shade = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200), "white": (220, 220, 220)}[colour]
    noise = np.random.default_rng(number).integers(0, 30, (16, 16, 3))
    file = io.BytesIO()
    Image.fromarray((np.array(shade) + noise).clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of twelve pictures each, every one with a caption."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for part in range(2):
        with tarfile.open(folder / f"{part:05d}.tar", "w") as file:
            for number in range(12 * part, 12 * part + 12):
                colour = COLOURS[number % 4]
                for ending, content in (
                    ("png", picture(colour, number)),
                    ("txt", f"number {number}, {colour}".encode()),
                ):
                    member = tarfile.TarInfo(f"{number:06d}.{ending}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    return folder


def photos(tmp_path: Path, count: int) -> Path:
    """A folder of so many pictures with three captions each."""
    folder = tmp_path / "photos"
    folder.mkdir()
    lines = ["image,caption"]
    for number in range(count):
        (folder / f"{number}.png").write_bytes(picture(COLOURS[number % 4], number))
        lines += [f"{number}.png,{word} {COLOURS[number % 4]} picture {number}" for word in ("a", "the", "one")]
    (folder / "captions.csv").write_text("\n".join(lines))
    return folder


def test_an_oracle_of_sibling_captions_knows_what_the_data_knows(tmp_path: Path) -> None:
    """Captions of one image as strangers are more negatives; `known` gives the losses of captions of one sample."""
    folder = photos(tmp_path, 8)
    losses = {}
    for name, options in {
        "one": ["caption"],
        "apart": ["separate"],
        "known": ["separate", "--negatives", "known"],
    }.items():
        call = [*CLIP, "--data", folder, "--epochs", 2, "--data.rows", *options, "--out", tmp_path / name]
        code, _, errors = here("train", *call)
        assert code == 0, errors
        losses[name] = step_losses(tmp_path / name)
    assert losses["known"] == pytest.approx(losses["one"], rel=1e-5)
    assert losses["apart"][0] > losses["one"][0]  # more negatives


@pytest.mark.parametrize("frozen", [False, True])
def test_the_best_epoch_is_told_by_pairs_that_are_not_trained_on(tmp_path: Path, frozen: bool) -> None:
    folder = photos(tmp_path, 24)
    for split, numbers in {"train": range(8), "val": range(8, 16), "test": range(16, 24)}.items():
        (folder / f"{split}.txt").write_text("\n".join(f"{number}.png" for number in numbers))
    call = [*CLIP, "--data", folder, "--epochs", 5, "--knn_every", 2, "--learning_rate", 5, "--out", tmp_path / "run"]
    call += ["--freeze", "image,text", "--augmentation", "plain"] if frozen else []
    code, _, errors = here("train", *call)
    assert code == 0, errors
    rows = {
        line["epoch"]: line["validation_recall"]
        for line in read_records(tmp_path / "run")
        if "validation_recall" in line
    }
    assert list(rows) == [2, 4, 5]
    assert f"validation recall {rows[5]:.1f} %" in errors
    best = max(rows, key=lambda epoch: rows[epoch])  # the first of equals
    assert load_checkpoint(Run(tmp_path / "run").best)["step"] == best
    # what it was judged by is the validation split, as the protocol would
    (folder / "test.txt").write_text((folder / "val.txt").read_text())
    (folder / "val.txt").unlink()
    code, out, errors = here("evaluate", tmp_path / "run", "--protocol", "retrieval", "--json")
    assert code == 0, errors
    assert json.loads(out)["run"]["retrieval mean"] == pytest.approx(rows[5], abs=1e-3)


def step_losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_records(folder) if line["kind"] == "step"]


def test_shards_are_resumed_in_mid_epoch_bit_by_bit(shards: Path, tmp_path: Path) -> None:
    """Killed after a checkpoint inside an epoch of three steps, and resumed: the weights of one that was not."""
    call = [*CLIP, "--data", shards, "--epochs", 12, "--checkpoint_steps", 2, "--negatives", "glofnd"]
    assert here("train", *call, "--out", tmp_path / "whole")[0] == 0
    broken = tmp_path / "broken"
    process = start("train", *call, "--out", broken)
    deadline = time.monotonic() + 200
    while not (len(step_losses(broken)) >= 8 and Run(broken).last.exists()):
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline, "the run did not get far enough"
        time.sleep(0.001)
    process.kill()
    process.join()
    antipodes("train", "--resume", broken)
    states: list[dict[str, Any]] = [load_checkpoint(Run(tmp_path / name).last) for name in ("whole", "broken")]
    assert equal(states[0]["model"], states[1]["model"])
    assert equal(states[0]["optimizer"], states[1]["optimizer"])
