"""What a wheel holds: the modules of the package, and every other file that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "antipodes"


def test_every_file_of_the_package_is_in_the_wheel() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and newer read pyproject.toml")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packed = {file for pattern in settings["package-data"]["antipodes"] for file in PACKAGE.glob(pattern)}
    read = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert {str(file.relative_to(PACKAGE)) for file in read - packed} == set()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for file in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []
