"""HNSSL's loss: by hand, by loops in value and gradient, and with nothing to push."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import HardPairs
from antipodes.functional.tensors import NotFinite
from antipodes.losses.distances import closest, scale_by_largest, squared_distances
from tests.cases import every
from tests.ranks import Ranks
from tests.reference.hard_pairs import hard_pairs as reference

MININGS: dict[str, dict[str, Any]] = {
    "the closest": {},
    "top 3": {"top_k": 3},
    "top of more than there are": {"top_k": 50},
    "quantile": {"quantile": 0.3},
    "tiny quantile": {"quantile": 0.01},
    "all": {"quantile": 1.0},
    "threshold": {"threshold": 2.5},
    "the paper's threshold": {"threshold": 1.0},
    "empty": {"threshold": 0.0},
}


def features(count: int = 9, dim: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    online = target + 0.5 * torch.randn(count, dim, generator=generator, dtype=torch.float64)
    return online.requires_grad_(), target.requires_grad_()


def test_by_hand() -> None:
    online = torch.tensor([[2.0, 0.0], [0.0, -4.0], [3.0, 3.0]])  # (1, 0), (0, -1), (1, 1)
    target = torch.tensor([[1.0, 0.0], [0.5, -0.5], [0.0, 7.0]])  # (1, 0), (1, -1), (0, 1)
    loss_fn = HardPairs(epsilon=1e-12)
    loss = loss_fn(online, target, torch.arange(3))
    # of the first target the third is closest, 1; of the second the first, 1; of the third the first, 2
    positive, negative = (0 + 1 + 1) / 3, -(math.log(1) + math.log(1) + math.log(2)) / 3
    assert loss.item() == pytest.approx(0.8 * positive + 0.1 * negative, abs=1e-6)
    assert loss_fn.stats["positive_term"] == pytest.approx(positive)
    assert loss_fn.stats["negative_term"] == pytest.approx(negative, abs=1e-6)
    assert loss_fn.stats["negative_distance"] == pytest.approx((2 + 1 + 1 + 4 + 2 + 4) / 6)
    assert loss_fn.stats["kept_per_anchor"] == 1


@every("mining", MININGS)
@every("duplicates", [False, True])
def test_by_loops(mining: str, duplicates: bool) -> None:
    online, target = features()
    ids = [4, 7, 1, 4, 0, 7, 4, 9, 2] if duplicates else list(range(9))
    loss = HardPairs(**MININGS[mining])(online, target, torch.tensor(ids))
    expected = reference(online, target, ids, **MININGS[mining])
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (online, target)), torch.autograd.grad(expected, (online, target)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_weights_and_epsilon_by_loops() -> None:
    online, target = features()
    loss = HardPairs(2, positive_weight=0.3, negative_weight=2.0, epsilon=0.1)(online, target, torch.arange(9))
    torch.testing.assert_close(loss, reference(online, target, range(9), 2, weights=(0.3, 2.0), epsilon=0.1))


def test_the_negative_term_trains_the_candidates() -> None:
    """U'_i has no gradient in HNSSL, so L2 moves the negatives U_k away from it, and nobody else."""
    online, target = features()
    loss_fn = HardPairs(positive_weight=0.0)
    loss = loss_fn(online, target.detach(), torch.arange(9))
    (gradient,) = torch.autograd.grad(loss, online)
    distances = squared_distances(scale_by_largest(target), scale_by_largest(online)).fill_diagonal_(math.inf)
    assert set(gradient.abs().sum(1).nonzero()[:, 0].tolist()) == set(distances.argmin(1).tolist())
    further = loss_fn(online - 0.01 * gradient, target.detach(), torch.arange(9))
    assert further < loss


def test_samples_of_the_same_id_are_never_negatives() -> None:
    online, target = features(4)
    loss_fn = HardPairs(quantile=1.0)
    loss_fn(online, target, torch.tensor([5, 5, 5, 6]))
    assert loss_fn.stats["kept_per_anchor"] == (1 + 1 + 1 + 3) / 4


@every("mining", MININGS)
def test_a_batch_of_one_and_one_id_have_no_negative_term(mining: str) -> None:
    for count in (1, 4):
        online, target = features(count)
        loss_fn = HardPairs(**MININGS[mining])
        loss = loss_fn(online, target, torch.zeros(count, dtype=torch.int64))
        expected = 0.8 * (scale_by_largest(online) - scale_by_largest(target)).square().sum(1).mean()
        torch.testing.assert_close(loss, expected)
        assert torch.autograd.grad(loss, online)[0].isfinite().all()
        assert loss_fn.stats["without_negatives"] == 1


@every("mining", MININGS)
@every("fill", [0.0, 1.0, 1e30, 1e-30])
def test_coinciding_and_zero_features_stay_finite(mining: str, fill: float) -> None:
    online, target = torch.full((6, 4), fill).requires_grad_(), torch.full((6, 4), fill)
    loss = HardPairs(**MININGS[mining])(online, target, torch.arange(6))
    assert loss.isfinite()
    assert torch.autograd.grad(loss, online)[0].isfinite().all()


def test_almost_collapsed_features_keep_their_distances() -> None:
    generator = torch.Generator().manual_seed(0)
    collapsed = 1 + 1e-4 * torch.rand(20, 64, generator=generator, dtype=torch.float64)
    expected = squared_distances(collapsed, collapsed)
    direct = (collapsed[:, None] - collapsed).square().sum(2)
    torch.testing.assert_close(expected, direct, rtol=1e-6, atol=1e-20)
    single = squared_distances(collapsed.float(), collapsed.float())
    off = ~torch.eye(20, dtype=torch.bool)
    torch.testing.assert_close(single.double()[off], direct[off], rtol=1e-2, atol=0)
    assert bool((single >= 0).all())


def test_the_closest_of_each_row() -> None:
    distances = torch.tensor([[0.3, 0.1, 0.2], [0.3, 0.1, 0.2], [0.3, 0.1, 0.2]])
    allowed = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])
    chosen = closest(distances, allowed, torch.tensor([2, 1, 5]))
    assert chosen.tolist() == [[False, True, True], [False, False, True], [False, False, False]]


def step(rank: int, world_size: int, mining: str) -> tuple[Tensor, Tensor]:
    online, target = features(8)
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    mine = online.detach()[part].clone().requires_grad_()
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])[part]
    loss = HardPairs(**MININGS[mining])(mine, target.detach()[part], ids)
    return loss.detach() / world_size, torch.autograd.grad(loss, mine)[0] / world_size


@every("mining", MININGS)
def test_two_ranks_equal_one(two_ranks: Ranks, mining: str) -> None:
    loss, gradient = step(0, 1, mining)
    (first, first_gradient), (second, second_gradient) = two_ranks(step, mining)
    torch.testing.assert_close(first + second, loss)
    torch.testing.assert_close(torch.cat((first_gradient, second_gradient)), gradient)


@every(
    ("arguments", "sentence"),
    [
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"quantile": 0.0}, r"quantile must be in \(0, 1\]"),
        ({"quantile": 1.1}, r"quantile must be in \(0, 1\]"),
        ({"threshold": -1.0}, "threshold must be"),
        ({"threshold": math.nan}, "threshold must be"),
        ({"top_k": 1, "threshold": 1.0}, "give one of them"),
        ({"positive_weight": -1.0}, "must be at least 0"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HardPairs(**arguments)


def test_wrong_inputs_get_one_sentence() -> None:
    online, target = features()
    with pytest.raises(ValueError, match=r"must be \(B, D\) and ids \(B,\)"):
        HardPairs()(online, target[1:], torch.arange(9))
    with pytest.raises(ValueError, match=r"must be \(B, D\) and ids \(B,\)"):
        HardPairs()(online[:0], target[:0], torch.arange(0))
    for bad in (math.nan, math.inf):
        with pytest.raises(NotFinite, match="NaN or infinite"):
            HardPairs()(torch.where(torch.eye(9, 5) > 0, bad, online), target, torch.arange(9))
