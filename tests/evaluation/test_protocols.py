import subprocess
import sys
from pathlib import Path

import pytest
import torch

import antipodes.evaluation.names
from antipodes.evaluation.features import FeatureSet
from antipodes.evaluation.linear import linear_probe
from antipodes.evaluation.names import PROTOCOL_NAMES, ProtocolOptions
from antipodes.evaluation.protocols import PROTOCOLS, evaluate, protocol
from antipodes.functional.knn import knn, nearest_neighbour


def feature_set(count: int, seed: int, classes: int = 6) -> FeatureSet:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    return FeatureSet(torch.eye(classes)[labels] + 0.6 * torch.randn(count, classes, generator=generator), labels)


TRAIN, TEST = feature_set(120, 0), feature_set(60, 1)


def test_names_and_functions_are_the_same_set() -> None:
    assert list(PROTOCOL_NAMES) == list(PROTOCOLS)


def test_names_import_no_torch() -> None:
    # The top package is left out, as what it imports is not this room's matter.
    code = (
        "import sys, types; top = types.ModuleType('antipodes'); top.__path__ = [sys.argv[1]]; "
        "sys.modules['antipodes'] = top; "
        "from antipodes.evaluation.names import PROTOCOL_NAMES; "
        "assert 'linear' in PROTOCOL_NAMES and 'torch' not in sys.modules"
    )
    top = Path(antipodes.evaluation.names.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code, str(top)], check=True)


def test_scores_are_those_of_the_functions_in_percent() -> None:
    assert TRAIN.labels is not None
    assert TEST.labels is not None
    parts = (TRAIN.features, TRAIN.labels, TEST.features, TEST.labels)
    row = evaluate(["linear", "knn"], TRAIN, TEST, ProtocolOptions(k=7, temperature=0.2))
    result = linear_probe(*parts)
    assert result.top5 is not None
    assert row == {
        "linear top-1": 100 * result.top1,
        "linear top-5": 100 * result.top5,
        "linear mean per class": 100 * result.mean_per_class,
        "linear strength": result.strength,
        "knn top-1": 100 * knn(*parts, k=7, temperature=0.2),
        "1-nn top-1": 100 * nearest_neighbour(*parts),
    }
    assert 20 < row["knn top-1"] < 100
    assert row["knn top-1"] != row["1-nn top-1"]


def test_five_classes_report_no_top5() -> None:
    row = evaluate(["linear"], feature_set(50, 0, classes=5), feature_set(50, 1, classes=5))
    assert "linear top-5" not in row


def test_unknown_name_lists_what_exists_before_anything_runs() -> None:
    with pytest.raises(
        ValueError, match=r"no evaluation protocol 'liner': choose from linear, semi, knn, false-negatives"
    ):
        evaluate(["knn", "liner"], FeatureSet(torch.zeros(0, 0)), TEST)
    with pytest.raises(ValueError, match="choose from"):
        protocol("")


@pytest.mark.parametrize("name", list(PROTOCOL_NAMES))
def test_missing_labels_say_how_to_get_some(name: str) -> None:
    with pytest.raises(ValueError, match=f"the {name} protocol needs labels and the train data has none: .*folder"):
        evaluate([name], FeatureSet(TRAIN.features), TEST)
    with pytest.raises(ValueError, match="the test data has none"):
        evaluate([name], TRAIN, FeatureSet(TEST.features))


@pytest.mark.parametrize("name", list(PROTOCOL_NAMES))
def test_broken_features_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="120 of 120 train features are NaN"):
        evaluate([name], FeatureSet(TRAIN.features * torch.nan, TRAIN.labels), TEST)


def test_fewer_labels_score_lower_and_one_per_class_still_works() -> None:
    row = evaluate(["semi", "linear"], TRAIN, TEST, ProtocolOptions(fractions=(0.5, 0.01), draws=4))
    assert row["linear 1 % labels"] < row["linear 50 % labels"] <= row["linear top-1"] + 5
    assert row["linear 1 % labels"] > 100 / 6
    again = evaluate(["semi"], TRAIN, TEST, ProtocolOptions(fractions=(0.5, 0.01), draws=4))
    assert again["linear 1 % labels"] == row["linear 1 % labels"]
