"""Thresholds against the quantiles of a sort, and the protocol on a real run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from antipodes.evaluation.compared import (
    ComparedEmbeddings,
    batch_quantiles,
    dataset_quantiles,
    errors,
    policy_thresholds,
)
from antipodes.negatives import FNC
from antipodes.pairs import normalise
from tests.cli.command import here

SMALL = ["--data", "shapes", "--encoder", "resnet8-slim", "--head.hidden", 16, "--data.count", 128, "--batch_size", 32]


def points(count: int) -> torch.Tensor:
    return normalise(torch.randn(count, 6, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("alpha", [0.001, 0.1, 0.5])
def test_dataset_quantiles_equal_a_sort(alpha: float) -> None:
    z = points(90)
    ordered = (z @ z.T).fill_diagonal_(-math.inf).sort(dim=1, descending=True).values
    k = max(1, math.ceil(alpha * 89))
    torch.testing.assert_close(dataset_quantiles(z, z, alpha), ordered[:, k - 1])


def test_batch_quantiles_are_worse_in_smaller_batches() -> None:
    z = points(600)
    truth = dataset_quantiles(z, z, 0.1)
    small, large = (errors(batch_quantiles(z, z, 0.1, size), truth) for size in (20, 300))
    assert small[0] > 1.5 * large[0]
    assert small[0] < small[1]  # the root of the mean square is never below the mean


def test_errors_over_several_batches_are_the_mean_of_those_of_each() -> None:
    """GloFND's Figure 3a takes 20 batches an anchor; the first of them is the only one of the default."""
    policy, judged = FNC(alpha=0.1), ComparedEmbeddings(points(100), points(100))
    ((_, truth, one),), ((_, _, four),) = (policy_thresholds(policy, judged, 20, 0, count) for count in (1, 4))
    assert (one["batch"].shape, four["batch"].shape) == ((1, 100), (4, 100))
    assert torch.equal(one["batch"][0], four["batch"][0])
    assert not torch.equal(four["batch"][0], four["batch"][1])
    each = [errors(draw, truth)[0] for draw in four["batch"]]
    assert errors(four["batch"], truth)[0] == pytest.approx(sum(each) / 4)


def test_samples_outside_a_full_batch_do_not_count() -> None:
    found = batch_quantiles(points(50), points(50), 0.1, 20)
    assert int(found.isnan().sum()) == 10
    assert errors(torch.tensor([0.5, 0.1, math.nan]), torch.tensor([0.5, 0.3, 0.0])) == pytest.approx((0.1, 0.02**0.5))


def test_the_protocol_on_a_run(tmp_path: Path) -> None:
    policy = ["--negatives", "glofnd", "--negatives.alpha", 0.1, "--negatives.initial", "quantile"]
    assert here("train", *SMALL, *policy, "--epochs", 2, "--out", tmp_path / "run")[0] == 0
    code, out, _ = here("evaluate", tmp_path / "run", "--protocol", "false-negatives", "--json")
    assert code == 0
    scores = json.loads(out)["run"]
    assert set(scores) == {
        *(f"flags {how} {name}" for how in ("pooled", "per-anchor") for name in ("precision", "recall", "f1")),
        *("flags mtpr", "flags mtnr"),
        *(f"{name} {error}" for name in ("threshold", "batch") for error in ("MAE", "RMSE")),
    }
    assert 0 < scores["threshold MAE"] < 0.5
    assert 0 < scores["flags mtnr"] < 100
