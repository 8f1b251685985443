"""Scores in a run's folder: what was measured alike stays, the rest goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from antipodes.evaluation.scores import FILE, keep_scores, read_scores
from antipodes.runs.folder import fingerprint

SETTINGS = {"weights": "a1", "test_limit": 10, "fractions": (0.1, 0.01)}


def test_another_protocol_adds_and_the_same_replaces(tmp_path: Path) -> None:
    assert keep_scores(tmp_path, {"encoder": "run", "knn top-1": 50.0, "1-nn top-1": 40.0}, SETTINGS) is None
    assert keep_scores(tmp_path, {"encoder": "run", "linear top-1": 60.0}, SETTINGS) is None
    assert keep_scores(tmp_path, {"encoder": "moved", "knn top-1": 51.0}, SETTINGS) is None
    assert read_scores(tmp_path) == {"knn top-1": 51.0, "1-nn top-1": 40.0, "linear top-1": 60.0}
    content = json.loads((tmp_path / FILE).read_text())
    assert list(content) == ["moved", "measured with"]
    assert content["measured with"] == {"weights": "a1", "test_limit": 10, "fractions": [0.1, 0.01]}


@pytest.mark.parametrize("change", [{"weights": "b2"}, {"test_limit": None}, {"fractions": (0.1,)}])
def test_other_weights_or_settings_replace_everything(tmp_path: Path, change: dict[str, object]) -> None:
    keep_scores(tmp_path, {"encoder": "run", "knn top-1": 50.0}, SETTINGS)
    said = keep_scores(tmp_path, {"encoder": "run", "linear top-1": 60.0}, SETTINGS | change)
    assert said == f"the scores in {tmp_path / FILE} were replaced: their {next(iter(change))} differ or are not known"
    assert read_scores(tmp_path) == {"linear top-1": 60.0}


def test_a_setting_that_concerns_only_some_scores_is_compared_where_both_have_it(tmp_path: Path) -> None:
    keep_scores(tmp_path, {"encoder": "run", "transfer a top-1": 50.0}, SETTINGS | {"transfer_limit": 5})
    assert keep_scores(tmp_path, {"encoder": "run", "linear top-1": 60.0}, SETTINGS) is None
    assert keep_scores(tmp_path, {"encoder": "run", "transfer b top-1": 70.0}, SETTINGS | {"transfer_limit": 6})
    assert read_scores(tmp_path) == {"transfer b top-1": 70.0}


def test_scores_of_unknown_weights_are_read_and_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"run": {"knn top-1": 50.0}}')
    assert read_scores(tmp_path) == {"knn top-1": 50.0}
    assert "their weights differ or are not known" in str(keep_scores(tmp_path, {"encoder": "run", "a": 1.0}, SETTINGS))
    assert read_scores(tmp_path) == {"a": 1.0}


def test_a_folder_without_scores_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no scores yet: run antipodes evaluate"):
        read_scores(tmp_path)


def test_the_fingerprint_follows_weights_buffers_and_names() -> None:
    def network() -> nn.Sequential:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))

    whole = network()
    assert fingerprint(network()) == fingerprint(whole.to(memory_format=torch.channels_last))
    moved, renamed = network(), nn.ModuleDict({"a": network()})
    moved[1].num_batches_tracked += 1
    assert len({fingerprint(whole), fingerprint(moved), fingerprint(renamed)}) == 3


@pytest.mark.parametrize("damage", ["folder", "deep", "loop of links"])
def test_damaged_scores_get_one_sentence_with_the_file(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "evaluation.json"
    if damage == "folder":
        file.mkdir()
    elif damage == "deep":
        file.write_text("[" * 100_000)
    else:
        file.symlink_to(file.name)
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
        read_scores(tmp_path)
