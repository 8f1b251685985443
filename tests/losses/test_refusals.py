"""Wrong input gets one sentence: numbers of a wrong kind, lists in the place of tensors, weights and ids that err."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antipodes import (
    IFND,
    DatasetNeighbours,
    GlobalContrastive,
    GloFND,
    HardPairs,
    InfoNCE,
    Known,
    Oracle,
    Sigmoid,
    Temperature,
    TwoWay,
)
from tests.cases import every

B = 6
IDS = torch.arange(B)


def views(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, B, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return z1, z2


@every(
    ("sentence", "call"),
    [
        ("num_samples must be", lambda: GloFND("a")),
        ("num_samples must be", lambda: GloFND(torch.arange(5))),
        ("num_samples must be", lambda: GloFND(100.5)),
        ("num_samples must be", lambda: GlobalContrastive(math.nan)),
        ("num_samples must be", lambda: IFND([3], (2,))),
        ("num_samples must be", lambda: DatasetNeighbours(None)),
        ("per_sample must be", lambda: Temperature(per_sample="a")),
        ("temperature must be", lambda: InfoNCE("x")),
        ("temperature must be", lambda: Sigmoid([0.1], learnable=False)),
        ("temperature must be", lambda: InfoNCE(torch.ones(3))),
        ("progress must be in .* got a str", lambda: InfoNCE()(*views(), IDS, progress="a")),
        ("progress must be in .* got a list", lambda: InfoNCE()(*views(), IDS, progress=[0.5])),
        ("z1 must be a tensor of embeddings, got a list", lambda: InfoNCE()([[1.0]], views()[1], IDS)),
        ("z2 must be a tensor of embeddings, got a ndarray", lambda: InfoNCE()(views()[0], np.ones((B, 5)), IDS)),
        ("second must be a tensor of embeddings, got a list", lambda: TwoWay(InfoNCE())(views()[0], [1.0], IDS)),
        ("online must be a tensor of embeddings, got a list", lambda: HardPairs()([[1.0]], views()[1], IDS)),
        (
            "embeddings must share a precision, got z1 torch.float32, .* candidates torch.float64",
            lambda: InfoNCE(0.1, GloFND(9))(*views(), IDS, candidates=torch.eye(5).double(), candidate_ids=range(5)),
        ),
        ("labels must be whole numbers", lambda: Oracle(["a", "b"])),
        ("labels must be whole numbers", lambda: Oracle([0.5, 1.0])),
        ("groups must be one per row, got a int", lambda: Known(3)),
        ("groups must be one per row, got several", lambda: Known([[0, 1], [1, 0]])),
        ("groups must be whole numbers or names", lambda: Known([0.5, 1.0])),
    ],
)
def test_one_sentence(sentence: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_means_the_same_is_taken() -> None:
    assert GloFND(100.0).threshold.shape == (100,)
    assert GloFND(np.int64(7)).num_samples == 7
    assert Oracle([0, 1]).labels.tolist() == [0, 1]
    assert Oracle(np.array([3, -1])).labels.tolist() == [3, -1]
    assert Known([0, 0, 1]).groups.tolist() == [0, 0, 1]
    assert Known(np.array([2, -1, 2], dtype=np.int32)).groups.tolist() == [2, -1, 2]
    loss_fn = InfoNCE(torch.tensor(0.1))
    torch.testing.assert_close(loss_fn(*views(), IDS, progress=torch.tensor(0.5)), InfoNCE(0.1)(*views(), IDS))


@every(
    "ids",
    [
        torch.arange(B).half() + 2048,
        torch.arange(B).bfloat16() + 256,
        torch.arange(B).float() * 2 + 2**24,
        torch.arange(B).double() * 2 + 2**53,
        [math.inf] * B,
        [1e30] * B,
        np.full(B, 1e30),
    ],
    ids=["half", "bfloat16", "float", "double", "inf", "1e30", "numpy"],
)
def test_floating_ids_that_cannot_be_exact(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"exact below .* only: give them as int64"):
        InfoNCE()(*views(), ids)


@every("bad", [-0.1, math.nan, math.inf])
@every("two_way", [False, True])
def test_weights_that_are_none(bad: float, two_way: bool) -> None:
    loss_fn = TwoWay(InfoNCE()) if two_way else InfoNCE()
    weights = torch.ones(B)
    weights[2] = bad
    with pytest.raises(ValueError, match="weights must be finite numbers of at least 0, got"):
        loss_fn(*views(), IDS, weights=weights)
    if not math.isfinite(bad):
        more = {"log_weights": (torch.zeros(B), weights)} if two_way else {"candidate_log_weights": weights}
        with pytest.raises(ValueError, match="log_weights must be finite numbers, got"):
            loss_fn(*views(), IDS, **more)


@pytest.mark.parametrize("loss_fn", [InfoNCE(), TwoWay(InfoNCE())], ids=["one", "two"])
def test_lengths_that_do_not_fit(loss_fn: Any) -> None:
    for name, values, sentence in (
        ("weights", torch.ones(5), r"weights must be \(6,\) floating-point"),
        ("weights", [1.0] * B, r"weights must be \(6,\) floating-point numbers, got a list"),
        ("weights", torch.ones(B).long(), r"weights must be \(6,\) floating-point"),
        ("rows", torch.arange(5), r"rows must be one per sample, \(6,\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            loss_fn(*views(), IDS, **{name: values})
    if isinstance(loss_fn, TwoWay):
        with pytest.raises(ValueError, match=r"log_weights must be \(6,\) floating-point"):
            loss_fn(*views(), IDS, log_weights=(torch.zeros(B), torch.zeros(5)))


def test_ids_of_the_batch_are_noticed_by_temperatures_of_samples() -> None:
    loss_fn = InfoNCE(Temperature(0.1, per_sample=5000))
    loss_fn(*views(), IDS)
    with pytest.warns(UserWarning, match=r"ids were 0\.\.5 in 2 calls in a row, with tables of 5000 rows"):
        loss_fn(*views(), IDS)
    shuffled = InfoNCE(Temperature(0.1, per_sample=5000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            shuffled(*views(), IDS + B * step)
