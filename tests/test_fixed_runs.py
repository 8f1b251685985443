"""Every method with a fixed seed ends with the loss that is written down in fixed_runs.json.

A change of structure must not change these numbers. Where a change of the maths is meant,
`python -m tests.test_fixed_runs EMPTY_FOLDER` writes them again, and the commit says why.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from antipodes.runs.records import read_epochs
from tests.cli.command import here

RECORDED = Path(__file__).with_name("fixed_runs.json")
TINY = ["--data", "shapes", "--data.count", 192, "--encoder", "resnet8-slim", "--batch_size", 32]
TINY += ["--epochs", 1, "--knn_every", 0, "--seed", 3, "--threads", 1]
HIDDEN = ["--head.hidden", 32]
BANK = ["--method.samples", 50]
GLOFND = ["--negatives.alpha", 0.1, "--negatives.start", 0]
CALLS: dict[str, list[object]] = {
    "simclr": [*HIDDEN],
    "simclr + glofnd": [*HIDDEN, "--negatives", "glofnd", *GLOFND],
    "simclr + glofnd-paper": [*HIDDEN, "--negatives", "glofnd-paper", *GLOFND],
    "simclr + fnc, attract": [*HIDDEN, "--negatives", "fnc", "--negatives.alpha", 0.1, "--treatment", "attract"],
    "simclr + ring & hcl": [*HIDDEN, "--negatives", "ring+hcl"],
    "sogclr": ["--method", "sogclr", *HIDDEN],
    "supcon": ["--method", "supcon", *HIDDEN],
    "moco": ["--method", "moco", "--method.queue_size", 100, *HIDDEN],
    "moco + ifnd": ["--method", "moco", "--method.queue_size", 100, *HIDDEN, "--negatives", "ifnd"],
    "sane": ["--method", "sane", "--method.queue_size", 100, *HIDDEN],
    "instance": ["--method", "instance", *BANK],
    "iring": ["--method", "iring", *BANK],
    "cmc": ["--method", "cmc", *BANK],
    "local-aggregation": ["--method", "local-aggregation"],
    "hnssl": ["--method", "hnssl"],
    "byol": ["--method", "byol", *HIDDEN],
    "simsiam": ["--method", "simsiam", *HIDDEN],
    "pcl": ["--method", "pcl", "--method.queue_size", 100, "--method.clusters", "[5,10]", *HIDDEN],
    "swav": ["--method", "swav", "--method.prototypes", 10, *HIDDEN],
    "i-mix": ["--method", "i-mix", "--method.queue_size", 100, *HIDDEN],
}


def final_loss(out: Path, options: list[object]) -> float:
    code, _, errors = here("train", *TINY, *options, "--out", out)
    assert code == 0, errors
    return float(read_epochs(out)[-1]["loss"])


@pytest.mark.parametrize("name", CALLS)
def test_a_fixed_seed_gives_the_recorded_loss(tmp_path: Path, name: str) -> None:
    recorded = json.loads(RECORDED.read_text())
    # another CPU rounds differently
    assert final_loss(tmp_path / "run", CALLS[name]) == pytest.approx(recorded[name], rel=5e-3)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    losses = {name: final_loss(folder / str(number), call) for number, (name, call) in enumerate(CALLS.items())}
    RECORDED.write_text(json.dumps(losses, indent=1) + "\n")
