"""Flags by chance: their share, who shares them, two ranks, and what is in the checkpoint; and the oracle that errs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import Chance, InfoNCE
from antipodes.negatives.controls import uniform_by_row
from antipodes.pairs import Pairs


def apart(anchors: int, candidates: int) -> Pairs:
    """Anchors and candidates of different samples."""
    ids = torch.arange(anchors + candidates)
    z = torch.ones(anchors + candidates, 2) / 2**0.5
    return Pairs(z[:anchors], ids[:anchors], torch.ones(anchors), z[anchors:], ids[anchors:])


def flagged(policy: Chance, pairs: Pairs, learn: bool = True) -> Tensor:
    """(A, C) by comparing the groups one by one."""
    (rule,) = policy.judge(pairs, 1.0, learn)
    (group,) = rule.groups
    return (group.anchors[:, None] == group.candidates[None]) & (group.candidates >= 0)


@pytest.mark.parametrize("alpha", [0.07, 0.8])
def test_the_share_is_right(alpha: float) -> None:
    pairs, policy = apart(60, 3000), Chance(alpha)
    shares = torch.stack([flagged(policy, pairs).double().mean() for _ in range(20)])
    assert shares.mean().item() == pytest.approx(alpha, rel=0.1)
    assert shares.std() > 0  # every step draws anew


def test_the_kernel_drops_what_the_groups_say() -> None:
    pairs, policy = apart(20, 400), Chance(0.1, seed=3)
    expected = flagged(policy, pairs, learn=False)
    (rule,) = policy.judge(pairs, 1.0, learn=False)
    sums = pairs.contrast(0.5, (rule, rule.attract()))
    assert torch.equal(sums.kept[0], 400 - expected.sum(1))
    assert torch.equal(sums.pulled[1], expected.sum(1))


def test_who_is_flagged_follows_from_rows_seed_and_step() -> None:
    pairs = apart(20, 400)
    first, again, other = Chance(0.1), Chance(0.1), Chance(0.1, seed=1)
    one, two = flagged(first, pairs), flagged(first, pairs)
    assert torch.equal(one, flagged(again, pairs))
    assert not torch.equal(one, two)
    assert not torch.equal(one, flagged(other, pairs))
    resumed = Chance(0.1)
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(flagged(resumed, pairs), flagged(first, pairs))
    looking = flagged(first, pairs, learn=False)
    assert torch.equal(looking, flagged(first.eval(), pairs))  # nobody who looks on moves the draws
    some = Pairs(pairs.anchors, pairs.anchor_ids, pairs.positives, pairs.candidates[7:], pairs.candidate_ids[7:])  # type: ignore[index]
    assert torch.equal(flagged(first, some), looking[:, 7:])


def test_numbers_by_row_are_uniform_and_unrelated() -> None:
    rows = torch.arange(20_000)
    one, two = uniform_by_row(rows, 0), uniform_by_row(rows, 1)
    for numbers in (one, two):
        assert torch.histc(numbers, 10, 0, 1).sub(2000).abs().max() < 200  # 4.7 standard deviations
        assert torch.corrcoef(torch.stack((numbers[:-1], numbers[1:])))[0, 1].abs() < 0.04
    assert torch.corrcoef(torch.stack((one, two)))[0, 1].abs() < 0.04
    assert one.min() >= 0
    assert one.max() < 1


def steps(rank: int, world_size: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Three steps on one rank's part."""
    loss_fn = InfoNCE(0.1, Chance(0.3))
    part = slice(10 * rank // world_size, 10 * (rank + 1) // world_size)
    losses, gradients = [], []
    for step in range(3):
        ids = torch.randperm(20, generator=torch.Generator().manual_seed(step))[:10][part]
        z1, z2 = torch.randn(2, 20, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[:, ids]
        z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
        loss = loss_fn(z1, z2, ids)
        losses.append(loss.detach() / world_size)
        gradients.append(torch.stack(torch.autograd.grad(loss, (z1, z2))) / world_size)
    return torch.stack(losses), torch.stack(gradients), loss_fn.state_dict()


@pytest.mark.parametrize("share", [1e-300])
def test_a_share_of_almost_nothing_flags_nothing(share: float) -> None:
    z1, z2 = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(0))
    loss_fn = InfoNCE(0.1, Chance(share))
    loss_fn(z1, z2, torch.arange(32), progress=1.0)
    assert loss_fn.stats["flagged_share"] == 0
