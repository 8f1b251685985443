"""The protocols that look at features and labels, and what all protocols have in common."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
import torch

from antipodes.evaluation.features import FeatureSet
from antipodes.evaluation.linear import linear_probe
from antipodes.evaluation.protocol import PROTOCOLS, Protocol, find_protocol, is_setting, make_protocols, run_protocols
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import knn
from tests.cases import every

OF_FEATURES = ("linear", "semi", "knn")


def feature_set(count: int, seed: int, classes: int = 6) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    return FeatureSet(torch.eye(classes)[labels] + 0.6 * torch.randn(count, classes, generator=generator), labels)


TRAIN, TEST = feature_set(120, 0), feature_set(60, 1)


def run(name: str, train: FeatureSet = TRAIN, test: FeatureSet = TEST, **options: Any) -> dict[str, float]:
    return run_protocols(make_protocols([name], {name: options}), Subject(given=(train, test)))


@every("name", list(PROTOCOLS))
def test_a_protocol_is_a_dataclass_that_says_what_it_needs(name: str) -> None:
    found = find_protocol(name)
    assert found.name == name
    assert is_dataclass(found)
    assert found.needs
    assert found.summary[0].islower()
    assert not found.summary.endswith(".")
    assert isinstance(found().options(), dict)


def test_a_protocol_of_ones_own_is_a_file_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "spread", f"{__name__}.Spread")
    assert run("spread", power=1.0) == {"spread": pytest.approx(float(TEST.features.std()))}


@dataclass(frozen=True)
class Spread(Protocol):
    name = "spread"
    summary = "how far features spread"
    needs = frozenset({"features"})

    power: float = 2.0

    def run(self, subject: Subject) -> dict[str, float]:
        return {"spread": float(subject.test.features.std() ** self.power)}


def test_scores_are_those_of_the_functions_in_percent() -> None:
    assert TRAIN.labels is not None
    assert TEST.labels is not None
    parts = (TRAIN.features, TRAIN.labels, TEST.features, TEST.labels)
    row = run("linear") | run("knn", k=7, temperature=0.2)
    result = linear_probe(*parts)
    assert result.accuracy.top5 is not None
    assert row == {
        "linear top-1": 100 * result.accuracy.top1,
        "linear top-5": 100 * result.accuracy.top5,
        "linear mean per class": 100 * result.accuracy.mean_per_class,
        "linear strength": result.strength,
        "knn top-1": 100 * knn(*parts, k=7, temperature=0.2),
        "knn top-5": row["knn top-5"],
        "1-nn top-1": 100 * knn(*parts, k=1),
    }
    assert [name for name in row if is_setting(name)] == ["linear strength"]
    assert 20 < row["knn top-1"] < row["knn top-5"] <= 100
    assert row["knn top-1"] != row["1-nn top-1"]


def test_five_classes_report_no_top5() -> None:
    parts = feature_set(50, 0, classes=5), feature_set(50, 1, classes=5)
    assert not [name for protocol in OF_FEATURES for name in run(protocol, *parts) if "top-5" in name]


def test_unknown_name_lists_what_exists_before_anything_is_built() -> None:
    with pytest.raises(
        ValueError, match=r"no evaluation protocol 'liner': choose from linear, semi, knn, false-negatives"
    ):
        make_protocols(["knn", "liner"], {"knn": {"nonsense": 1}})
    with pytest.raises(ValueError, match="choose from"):
        find_protocol("")


@pytest.mark.parametrize("name", OF_FEATURES)
def test_missing_labels_say_how_to_get_some(name: str) -> None:
    with pytest.raises(ValueError, match=f"the {name} protocol needs labels and the train data has none: .*folder"):
        run(name, FeatureSet(TRAIN.features))
    with pytest.raises(ValueError, match="the test data has none"):
        run(name, TRAIN, FeatureSet(TEST.features))


@every("name", sorted(set(PROTOCOLS) - set(OF_FEATURES)))
def test_features_alone_are_not_enough_for_the_others(name: str) -> None:
    with pytest.raises(ValueError, match="needs a run with a policy" if name == "false-negatives" else name):
        run(name)


@pytest.mark.parametrize("name", OF_FEATURES)
def test_broken_features_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="120 of 120 train features are NaN"):
        run(name, FeatureSet(TRAIN.features * torch.nan, TRAIN.labels))


def test_fewer_labels_score_lower_and_one_per_class_still_works() -> None:
    row = run("semi", fractions=(1.0, 0.5, 0.01), draws=4)
    assert row["linear 1 % labels"] < row["linear 50 % labels"] <= row["linear 100 % labels"] + 5
    assert row["linear 100 % labels"] == run("linear")["linear top-1"]
    assert row["linear 1 % labels"] > 100 / 6
    shares = [row[f"linear {share} % labels"] for share in (100, 50, 1)]
    assert row["linear mean of shares"] == pytest.approx(sum(shares) / 3)
    assert row["linear 1 % labels, used %"] == pytest.approx(100 * 6 / 120)  # one of each class is five times as much
    assert "linear 50 % labels, used %" not in row
    fewer = run("semi", fractions=(0.12,), draws=1)
    assert fewer["linear 12 % labels, used %"] == pytest.approx(10)  # 2.4 of 20 are two
    assert row["linear 1 % labels"] < row["linear 1 % labels, top-5"]
    assert run("semi", fractions=(1.0, 0.5, 0.01), draws=4) == row


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="fractions must be shares"):
        make_protocols(["semi"], {"semi": {"fractions": (2.0,)}})
    with pytest.raises(ValueError, match="rates must be above 0"):
        make_protocols(["fine-tune"], {"fine-tune": {"rates": (0.0,)}})
