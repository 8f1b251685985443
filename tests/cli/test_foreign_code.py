"""No Python file that lies among data runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antipodes.registry import find
from tests.cases import every
from tests.cli.command import ENVIRONMENT

TRAP = "from pathlib import Path\nPath({!r}).touch()\n"
NAMES = ("hashlib", "html", "typing", "signal", "json", "torch", "numpy", "rich", "photos", "sitecustomize")
SCRIPT = "import sys; sys.path.pop(0); from antipodes.__main__ import run; run()"


def run(folder: Path, start: list[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, *start, *map(str, arguments)]
    return subprocess.run(call, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(drawn.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    np.save(folder / "vectors.npy", drawn.normal(size=(64, 8)).astype(np.float32))
    for name in (*NAMES, "vectors"):
        (folder / f"{name}.py").write_text(TRAP.format(str(tmp_path / f"{name} ran")))
    return folder


@pytest.mark.parametrize("start", [["-m", "antipodes"], ["-c", SCRIPT]], ids=["module", "script"])
def test_no_module_of_a_data_folder_is_imported(photos: Path, start: list[str]) -> None:
    audited = run(photos, start, "audit", ".", "--encoder", "patches", "--out", photos.parent / "audit")
    tiny = ["--method", "simclr", "--encoder", "mlp", "--epochs", 1, "--batch_size", 32]
    trained = run(photos, start, "train", "--data", "vectors.npy", *tiny, "--out", photos.parent / "run")
    assert not list(photos.parent.glob("* ran")), (audited.stderr, trained.stderr)
    assert audited.returncode == 0, audited.stderr
    assert trained.returncode == 0, trained.stderr


def test_a_missing_file_is_not_taken_for_a_module(photos: Path) -> None:
    refused = run(photos, ["-c", SCRIPT], "train", "--data", "photos.npy", "--out", photos.parent / "run")
    assert refused.returncode == 2
    assert "photos.npy" in refused.stderr
    assert not list(photos.parent.glob("* ran"))


def test_a_class_of_the_user_is_found_in_the_current_folder_by_its_dotted_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_policies_here.py").write_text("from antipodes import FNC\n\n\nclass Mine(FNC):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert find("negatives", "my_policies_here.Mine").target.__name__ == "Mine"
    assert sys.path == before


@every("name", ["my_policies.mine", "../a.B", "a..B", ".B", "a.B()", "a.é.B"])
def test_what_does_not_look_like_a_class_is_not_imported(name: str) -> None:
    with pytest.raises(ValueError, match="negatives"):
        find("negatives", name)
