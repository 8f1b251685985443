"""Names of earlier versions are refused with one sentence that says the new name."""

from __future__ import annotations

from pathlib import Path

import pytest

import antipodes
from antipodes.registry import find
from tests.cli.command import here


@pytest.mark.parametrize(("old", "new"), [("DCL", "Debiased"), ("Neighbours", "DatasetNeighbours")])
def test_a_renamed_class_says_its_new_name(old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=f"antipodes.{old} is now called antipodes.{new}"):
        getattr(antipodes, old)
    assert getattr(antipodes, new).__name__ == new


@pytest.mark.parametrize(("old", "new"), [("dcl", "debiased"), ("neighbours", "dataset-neighbours")])
def test_a_renamed_component_says_its_new_name(old: str, new: str) -> None:
    with pytest.raises(ValueError, match=f"'{old}' is now called '{new}'"):
        find("negatives", old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--objective", "--loss"),
        ("--objective.temperature", "--loss.temperature"),
        ("--together", "--batch_neighbours"),
        ("--guide_view", "--distill"),
    ],
)
def test_a_renamed_option_says_its_new_name(old: str, new: str) -> None:
    code, _, errors = here("train", old, "1")
    assert code == 2
    assert f"{old} is now called {new}" in errors
    assert here("train", f"{old}=1")[0] == 2


def test_a_configuration_with_an_old_option_says_its_new_name(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("objective: info-nce\ndata: shapes\n")
    code, _, errors = here("train", "--config", tmp_path / "old.yaml")
    assert code == 2
    assert "objective is now called loss" in errors
