"""The command line as a stranger meets it: help, wrong calls, wrong data."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from antipodes.cli.train import parse
from tests.cases import every
from tests.cli.command import COMMAND, ENVIRONMENT, antipodes, here, launched, refused

SMALL = ["--encoder", "resnet8-slim", "--head.hidden", 16, "--batch_size", 16, "--epochs", 1]


def photos(folder: Path, count: int, first: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_help_does_not_wait_for_torch() -> None:
    times = []
    for _ in range(3):
        started = time.perf_counter()
        result = launched("--help")
        times.append(time.perf_counter() - started)
        assert result.returncode == 0
        assert "train" in result.stdout
    assert min(times) < 0.5
    listing = subprocess.run(
        [COMMAND[0], "-X", "importtime", "-m", "antipodes", "--help"], capture_output=True, text=True, env=ENVIRONMENT
    )
    assert "torch" not in listing.stderr


def test_help_shows_the_options_of_the_chosen_method() -> None:
    _, text, _ = here("train", "--method", "moco", "--help")
    assert "--method.queue_size" in text
    assert "Number of keys" in text
    short = here("train", "--help")[1]
    assert "--method.queue_size" not in short
    assert "--loss.temperature" in short
    assert "--temperature.learnable" in short
    assert len(short.splitlines()) < 50  # a screen


def test_help_of_a_method_lists_the_options_of_its_loss_and_none_that_it_lacks() -> None:
    sane, hnssl = (here("train", "--method", name, "--help")[1] for name in ("sane", "hnssl"))
    assert {"--loss.tau_prime", "--loss.mu", "--method.kappa"} <= set(sane.split())
    assert {"--loss.top_k", "--loss.positive_weight", "--method.momentum"} <= set(hnssl.split())
    absent = {"--loss.temperature", "--treatment", "--guide"}
    assert not absent & set(hnssl.split())
    assert not {"--treatment", "--guide"} & set(sane.split())


@every(
    ("arguments", "sentence"),
    [
        (["train", "--data", "/nonexistent"], "does not exist"),
        (["train", "--method", "simclear"], "Choose one of simclr"),
        (["train", "--encoder", "resnet19"], "did you mean"),
        (["train", "--negatives", "glow"], "Choose one of glofnd"),
        (["train", "--augmentation", "none"], "Choose one of plain"),
        (["train", "--method"], "--method needs a value"),
        (["train", "--config", "/nonexistent.yaml"], "does not exist"),
        (["train", "--resume", "/nonexistent"], "is not a run"),
        (["train", "--accumulate", "2"], "its negatives are the samples of a batch"),
        (["train", "--warmup", "1.5"], "warmup must be in"),
        (["train", "--threads", "0"], "threads must be from 1 to 1024"),
        (["train", "--batch_size", "1"], "at least 2"),
        (["train", "--accelerator", "cuda"], "accelerator cuda cannot be used"),
        (["train", "--precision", "16-mixed"], "needs a GPU"),
        (["train", "--method", "instance", "--method.samples", "-1"], "samples must be at least 1"),
        (["train", "--out", "/dev/null/run"], "is not a folder that can be written to"),
        (["train", "--batch_size", "20000"], "batch_size 20000 exceeds"),
        (["train", "--method", "supcon", "--negatives", "none"], "treatment 'attract' needs a policy"),
        (["train", "--method", "hnssl", "--negatives", "ring", "--data.count", "64"], "leave --negatives out"),
        (
            [
                "train",
                "--method",
                "hnssl",
                "--loss.top_k",
                "2",
                "--loss.threshold",
                "1",
                "--data.count",
                "64",
            ],
            "give one of them",
        ),
        (
            ["train", "--negatives", "debiased", "--negatives.tau_plus", "1", "--data.count", "64"],
            "tau_plus must be in",
        ),
        (["train", "--negatives", "hcl+debiased", "--data.count", "64"], "cannot be joined"),
        (["evaluate", "/nonexistent"], "is not a run"),
        (["evalute"], "choose one of train, evaluate, "),
    ],
)
def test_a_wrong_call_gets_one_sentence(arguments: list[object], sentence: str, tmp_path: Path) -> None:
    if arguments[0] == "train":
        out = [] if "--out" in arguments else ["--out", tmp_path / "run"]
        data = [] if {"--data", "--resume"} & {*arguments} else ["--data", "shapes", "--epochs", 1]
        arguments = ["train", *data, *arguments[1:], *out]
    assert sentence in refused(*arguments)
    assert not (tmp_path / "run").exists()


def test_a_wrong_path_in_a_process_of_its_own() -> None:
    result = launched("train", "--data", "/nonexistent")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_an_unknown_option_and_a_wrong_type_are_refused() -> None:
    for call, word in ((["--epoch", 3], "--epoch"), (["--epochs", "many"], "epochs"), (["--method.queue", 1], "queue")):
        code, _, errors = here("train", *call)
        assert code == 2
        assert word in errors
        assert "Traceback" not in errors


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no images" in refused("train", "--data", tmp_path / "empty", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_one_image_is_refused(tmp_path: Path) -> None:
    data = photos(tmp_path / "one", 1)
    assert "at least 2" in refused("train", "--data", data, *SMALL, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corrupt_image_is_reported_and_skipped_or_refused(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", 20)
    (data / "7.png").write_bytes(b"not an image")
    result = antipodes("train", "--data", data, *SMALL, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
    assert len(warnings) == 1
    assert "7.png" in warnings[0]
    assert "19 images of" in result.stderr
    assert "left out 1: not an image that can be read (7.png)" in result.stderr
    assert (tmp_path / "run" / "skipped.csv").read_text() == "path,reason\n7.png,not an image that can be read\n"
    assert "7.png" in refused("train", "--data", data, *SMALL, "--strict", "--out", tmp_path / "strict")
    assert not (tmp_path / "strict").exists()


def test_train_on_a_folder_then_evaluate(tmp_path: Path) -> None:
    for number, name in enumerate(("ants", "bees")):
        photos(tmp_path / "data" / name, 20, first=100 * number)
    run = tmp_path / "run"
    result = antipodes(
        "train", "--data", tmp_path / "data", "--data.size", 48, *SMALL, "--tensorboard", "true", "--out", run
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(run)
    assert "samples/s" in result.stderr
    assert "40 images" in result.stderr  # what was found, before training
    assert (run / "encoder.safetensors").is_file()
    assert list((run / "tensorboard").iterdir())
    rows = (run / "metrics.csv").read_text().splitlines()
    assert rows[0].startswith("step,epoch,loss")
    assert len(rows) == 2
    scores = json.loads(here("evaluate", run, "--protocol", "knn,linear", "--json")[1])
    assert set(scores["run"]) >= {"linear top-1", "knn top-1", "1-nn top-1"}
    assert json.loads((run / "evaluation.json").read_text())["run"] == scores["run"]
    assert "1-nn top-1" in antipodes("evaluate", run, "--protocol", "knn").stdout
    assert "choose from linear, semi, knn, false-negatives" in refused("evaluate", run, "--protocol", "lineal")
    _transfer(run, scores["run"], tmp_path / "data")
    assert "labels" in refused("evaluate", _unlabelled(tmp_path), "--protocol", "knn")


def _transfer(run: Path, before: dict[str, float], data: Path) -> None:
    """Scores on other data join those the run has, and other settings replace them all."""
    options = ["--protocol", "transfer", "--transfer_limit", 60, "--json"]
    grey = data.with_name("grey.npz")
    pixels = np.random.default_rng(0).integers(0, 256, (90, 28, 28), dtype=np.uint8)
    np.savez(grey, images=pixels, labels=np.arange(90) % 3)
    code, out, errors = here("evaluate", run, *options, "--transfer", grey, data)
    assert (code, errors) == (0, "")
    names = [f"transfer {name} {kind}" for name in ("grey", "data") for kind in ("top-1", "mean per class")] + [
        "transfer mean"
    ]
    assert list(json.loads(out)["run"]) == names
    kept = json.loads((run / "evaluation.json").read_text())["run"]
    assert kept == before | json.loads(out)["run"]
    assert "transfer needs other datasets" in refused("evaluate", run, *options)
    assert "does not exist as a path" in refused("evaluate", run, *options, "--transfer", grey, "nowhere")
    assert json.loads((run / "evaluation.json").read_text())["run"] == kept
    assert "their test_limit differ" in here("evaluate", run, "--protocol", "knn", "--test_limit", 20)[2]
    assert set(json.loads((run / "evaluation.json").read_text())["run"]) == {"knn top-1", "1-nn top-1"}


def _unlabelled(tmp_path: Path) -> Path:
    run = tmp_path / "unlabelled"
    data = photos(tmp_path / "flat", 20)
    assert here("train", "--data", data, *SMALL, "--out", run)[0] == 0
    assert (run / "checkpoints" / "best.pt").is_file()  # by loss, as there are no labels
    return run


@pytest.mark.parametrize("text", ["method: null", "method: [moco]", "- a", "a: [", "negatives: 3"])
def test_a_configuration_that_is_none_gets_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert "a.yaml" in refused("train", "--config", tmp_path / "a.yaml")


def test_a_configuration_goes_in_and_comes_out(tmp_path: Path) -> None:
    options = ["--method", "moco-v1", "--method.queue_size", 128, "--epochs", 7, "--print_config"]
    code, printed, errors = here("train", *options)
    assert code == 0, errors
    config = yaml.safe_load(printed)
    assert config["method"]["queue_size"] == 128
    assert config["augmentation"]["name"] == "moco-v1"
    (tmp_path / "a.yaml").write_text(printed)
    assert here("train", "--epochs=7", "--print_config=skip_default")[1].strip() == "epochs: 7"
    _, again, _ = here("train", "--config", tmp_path / "a.yaml", "--seed", 3, "--print_config")
    assert yaml.safe_load(again) == config | {"seed": 3}
    _, other, _ = here("train", "--config", tmp_path / "a.yaml", "--method", "simclr", "--print_config")
    assert yaml.safe_load(other)["method"]["name"] == "simclr"
    assert "queue_size" not in yaml.safe_load(other)["method"]
    (tmp_path / "short.yaml").write_text("method: moco-v1\nepochs: 7\n")
    _, printed, _ = here("train", "--config", tmp_path / "short.yaml", "--print_config")
    short = yaml.safe_load(printed)
    assert short["method"]["name"] == "moco-v1"
    assert short["loss"]["temperature"] == config["loss"]["temperature"] == 0.07
    assert short["head"] == config["head"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [("image", ("image",)), ("image,text", ("image", "text")), ('["image"]', ("image",)), ("[]", ())],
)
def test_towers_to_freeze_are_named_as_they_are(names: str, expected: tuple[str, ...]) -> None:
    assert tuple(parse(["--freeze", names])[0]["freeze"]) == expected
