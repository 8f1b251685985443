"""Names and what they stand for."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from antipodes.data import Folder, Shapes
from antipodes.registry import NAMES, find

EVERY = [(kind, name) for kind, names in NAMES.items() for name in names]


def test_every_name_has_a_class_that_takes_its_preset() -> None:
    for kind, name in EVERY:
        component = find(kind, name)
        assert set(component.preset) <= set(inspect.signature(component.target).parameters)


def test_listing_names_imports_nothing_heavy() -> None:
    code = "import sys, antipodes.registry; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'PIL')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_data_by_path_and_by_dotted_path(tmp_path: Path) -> None:
    assert find("data", str(tmp_path)).target is Folder
    assert find("data", "antipodes.data.shapes.Shapes").target is Shapes
    dotted = tmp_path / "my.photos"
    dotted.mkdir()
    assert find("data", str(dotted)).preset == {"path": str(dotted)}


def test_unknown_names_get_one_sentence() -> None:
    for kind, name, sentence in [
        ("method", "simclrr", "unknown method 'simclrr': did you mean 'simclr'\\?"),
        ("negatives", "nobody.Home", "unknown negatives 'nobody.Home': it cannot be imported"),
        ("method", "antipodes.InfoNCE", "it is not a subclass of antipodes.methods.method.Method"),
        ("data", "/nowhere/photos", "does not exist as a path"),
        ("encoder", "resnet19", "did you mean"),
        ("augmentation", "blurry", "Choose one of"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            find(kind, name)
