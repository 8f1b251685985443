"""A run whose config.yaml is cut short or changed: every command refuses it in one sentence that names the file."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from antipodes.runs.folder import Run
from antipodes.runs.yaml_files import configuration_text
from tests.cases import every
from tests.cli.command import here, refused


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    call = ["--data", "shapes", "--data.limit", "64", "--encoder", "resnet18-slim", "--encoder.width", "8"]
    code, _, errors = here("train", *call, "--epochs", 1, "--batch_size", 32, "--out", folder)
    assert code == 0, errors
    return folder


def test_no_part_of_a_configuration_is_one(run: Path, tmp_path: Path) -> None:
    text = (run / "config.yaml").read_text()
    whole = Run(run).config
    for length in range(len(text)):
        (tmp_path / "config.yaml").write_text(text[:length])
        with pytest.raises(ValueError, match=r"config\.yaml"):
            _ = Run(tmp_path).config
    (tmp_path / "config.yaml").write_text(text)
    assert Run(tmp_path).config == whole
    old = configuration_text(whole).removeprefix("---\n").removesuffix("...\n")  # of an earlier version
    (tmp_path / "config.yaml").write_text(old)
    assert Run(tmp_path).config == whole


@every("command", ["resume", "evaluate", "report", "compare", "audit", "embed", "export", "pictures"])
def test_commands_refuse_a_cut_configuration(run: Path, tmp_path: Path, command: str) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(run, cut)
    calls = {
        "resume": ("train", "--resume", cut),
        "evaluate": ("evaluate", cut, "--protocol", "knn"),
        "report": ("report", cut, "--out", tmp_path / "report.html"),
        "compare": ("compare", cut, run, "--baseline", run),
        "audit": ("audit", cut, "--out", tmp_path / "audit"),
        "embed": ("embed", cut, "--out", tmp_path / "vectors.npz"),
        "export": ("export", cut, "--checkpoint", "last", "--onnx", tmp_path / "encoder.onnx"),
        "pictures": ("pictures", cut, "--out", tmp_path / "pictures"),
    }
    text = (run / "config.yaml").read_text()
    for length in (0, 5, *random.Random(0).sample(range(len(text)), 4), len(text) - 2):
        (cut / "config.yaml").write_text(text[:length])
        assert "config.yaml" in refused(*calls[command])


def test_a_run_of_another_version_is_refused_in_one_sentence(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = (run / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("\nloss:\n", "\nobjective:\n"))
    assert "names no loss" in refused("evaluate", other, "--protocol", "knn")


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("  statistics: given", "  suatistics: given", "suatistics"),
        ("method:\n  name: simclr", "method:\n  nane: simclr", "method"),
        ("guide:\n  name: none", "guide:\n  name: nothing", "nothing"),
        ("\nbatch_size: 32", "\nbatch_size: many", "batch_size"),
    ],
    ids=["an unknown argument", "a component without a name", "an unknown component", "a value of another type"],
)
def test_a_changed_configuration_is_refused_by_the_name_of_its_file(
    run: Path, tmp_path: Path, before: str, after: str, named: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = (run / "config.yaml").read_text()
    assert before in text
    (other / "config.yaml").write_text(text.replace(before, after))
    calls = (("evaluate", other, "--protocol", "label-free"), ("train", "--resume", other, "--epochs", 2))
    for call in calls:
        told = refused(*call)
        assert "config.yaml" in told
        assert named in told
