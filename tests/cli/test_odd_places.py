"""A folder or a link in the place of a file that a command reads: one sentence that names it, and nothing written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.command import here, refused

TRAIN = [
    "train",
    "--data",
    "shapes",
    "--data.count",
    "32",
    "--encoder",
    "resnet8-slim",
    "--batch_size",
    "16",
    "--epochs",
    "1",
    "--out",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "run"
    code, _, errors = here(*TRAIN, folder)
    assert code == 0, errors
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_whose_metrics_are_a_folder_is_refused_before_its_configuration_changes(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    before = (run / "config.yaml").read_bytes()
    assert "metrics.jsonl" in refused("train", "--resume", run, "--epochs", 2)
    assert (run / "config.yaml").read_bytes() == before


def test_an_encoder_that_is_a_link_to_itself_is_named(run: Path, tmp_path: Path) -> None:
    (run / "encoder.safetensors").unlink()
    (run / "encoder.safetensors").symlink_to("encoder.safetensors")
    assert "encoder.safetensors" in refused("export", run, "--safetensors", tmp_path / "new.safetensors")


def test_an_option_that_a_component_does_not_take_is_blamed_on_the_configuration(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("  count:", "  cuont:"))
    assert "config.yaml" in refused("evaluate", run, "--protocol", "label-free")


def test_captions_that_name_no_image_are_blamed_on_their_table(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("image,caption\nabsent.png,a square\n")
    assert "captions.csv" in refused("train", "--method", "clip", "--data", tmp_path, "--out", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_negative_number_of_shown_pairs_is_refused(run: Path, tmp_path: Path) -> None:
    assert "shown" in refused("report", run, "--shown", -1, "--out", tmp_path / "page.html")


def test_epochs_without_end_are_refused(tmp_path: Path) -> None:
    assert "epochs" in refused(*TRAIN, tmp_path / "new", "--epochs", 2**70)
    assert not (tmp_path / "new").exists()
