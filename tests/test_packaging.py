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


def test_the_digests_of_ci_are_of_the_pinned_versions() -> None:
    pinned = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"}
    lines = [line for line in (ROOT / "constraints-hashed.txt").read_text().splitlines() if line[0] != "#"]
    for line in lines:
        digest = line.partition(" --hash=sha256:")[2]
        assert len(digest) == 64
        assert set(digest) <= set("0123456789abcdef")
    versions = {line.partition(" ")[0] for line in lines}
    torch = {line for line in pinned if line.startswith("torch==")}
    assert pinned - torch <= versions  # torch's builds share a version and have different digests
    assert {line.partition("==")[0] for line in versions - pinned} == {"setuptools", "wheel"}
    assert "HASHED=1" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
