import json

import pytest
from rich.console import Console

from antipodes.evaluation.scores import Row, results_dictionary, results_table

ROWS: list[Row] = [
    {"encoder": "random", "linear top-1": 41.04, "linear strength": 0.01},
    {"encoder": "trained", "linear top-1": 62.149999, "linear strength": 0.001, "knn top-1": 100.0},
]


def render(rows: list[Row]) -> list[list[str]]:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(results_table(rows, title="cifar10"))
    lines = [line for line in capture.get().splitlines() if "│" in line or "┃" in line]
    return [[cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")] for line in lines]


def test_table_has_one_decimal_and_a_dash_for_what_is_missing() -> None:
    assert render(ROWS) == [
        ["encoder", "linear top-1", "knn top-1"],
        ["random", "41.0", "-"],
        ["trained", "62.1", "100.0"],
    ]


def test_dictionary_is_by_encoder_and_survives_json() -> None:
    assert json.loads(json.dumps(results_dictionary(ROWS))) == {
        "random": {"linear top-1": 41.04, "linear strength": 0.01},
        "trained": {"linear top-1": 62.15, "linear strength": 0.001, "knn top-1": 100.0},
    }


def test_an_encoder_without_a_name_or_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="every row needs an 'encoder' of its own"):
        results_dictionary([{"knn top-1": 1.0}])
    with pytest.raises(ValueError, match="every row needs an 'encoder' of its own"):
        results_dictionary([ROWS[0], ROWS[0]])
