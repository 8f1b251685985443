"""Presets: options under one name, below what a call says itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from antipodes.cli.train import parse
from antipodes.registry import PRESETS
from antipodes.studies.definition import load_study
from antipodes.studies.resolving import complete
from tests.cases import every
from tests.cli.command import here, refused

ROOT = Path(__file__).parents[2]


def asked(*arguments: str) -> dict[str, Any]:
    return parse([*arguments, "--data", "shapes", "--out", "somewhere"])[0]


def test_a_preset_brings_its_method_policy_and_options() -> None:
    config = asked("--preset", "locked-clip")
    assert config["method"]["name"] == "clip"
    assert config["loss"]["temperature"] == 0.03
    assert not config["temperature"]["learnable"]
    assert config["epochs"] == 10
    assert asked("--preset", "ring-bank")["negatives"]["name"] == "ring"
    assert "preset" not in config  # what it stands for is written down, and a run is resumed by that


def test_locked_clip_is_what_was_measured(tmp_path: Path) -> None:
    """Apart from the data it is the variant of the study to which its page points."""
    study = load_study(ROOT / "research" / "studies" / "image-text.yaml")
    (trial,) = [trial for trial in study.trials(tmp_path) if str(trial) == "clip .03, 10 epochs, seed 0"]
    measured, preset = complete(trial), json.loads(json.dumps(dict(asked("--preset", "locked-clip"))))
    for config in (measured, preset):
        del config["data"], config["out"]
    assert preset == measured


@every(
    ("name", "study", "variant"),
    [
        ("ring-bank", "ring", "iring"),
        ("ring-bank", "ring-cifar100", "iring"),
        ("guided", "false-negatives", "guide others, view"),
        ("guided", "guide-photos", "guide others, view"),
        ("guided", "guide-cifar100", "guide others, view"),
        ("patches", "false-negatives", "patches others, view"),
        ("patches", "guide-photos", "patches others, view"),
        ("patches", "guide-cifar100", "patches others, view"),
    ],
)
def test_a_preset_for_images_is_what_was_measured(name: str, study: str, variant: str, tmp_path: Path) -> None:
    trials = load_study(ROOT / "research" / "studies" / f"{study}.yaml").trials(tmp_path)
    (trial,) = [trial for trial in trials if str(trial) == f"{variant}, seed 0"]
    measured, preset = complete(trial), json.loads(json.dumps(dict(asked("--preset", name))))
    for config in (measured, preset):
        for name in ("data", "out", "encoder", "epochs"):
            del config[name]
    assert preset == measured


def test_what_a_call_says_wins() -> None:
    config = asked("--preset", "locked-clip", "--loss.temperature", "0.05", "--epochs", "3")
    assert (config["loss"]["temperature"], config["epochs"]) == (0.05, 3)
    assert config["batch_size"] == 512
    other = asked("--preset", "ring-bank", "--negatives", "fnc", "--negatives.alpha", "0.1")
    assert (other["negatives"]["name"], other["negatives"]["start"]) == ("fnc", 0.0)  # nothing of Ring's is left
    assert other["head"]["centred"]
    open_towers = asked("--preset", "locked-clip", "--freeze", "[]", "--encoders.text", "bag-of-words")
    assert open_towers["freeze"] == ()
    assert open_towers["encoders"]["text"]["name"] == "bag-of-words"


def test_a_configuration_may_name_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"preset": "ring-bank", "negatives": {"inner": 0.2}}))
    config = asked("--config", str(file))
    assert config["method"]["name"] == "instance"
    assert (config["negatives"]["name"], config["negatives"]["inner"]) == ("ring", 0.2)
    assert config == asked("--preset", "ring-bank", "--negatives.inner", "0.2")


def test_an_unknown_preset_gets_one_sentence(tmp_path: Path) -> None:
    said = refused("train", "--preset", "clean", "--data", "shapes", "--out", tmp_path / "out")
    assert "unknown preset 'clean': choose one of locked-clip" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_in_the_help_and_has_a_page_that_shows_it(name: str) -> None:
    assert name in here("train", "--help")[1]
    assert (ROOT / PRESETS[name].evidence).is_file()
    assert f"`{name}`" in (ROOT / "docs" / "comparing.md").read_text()
