"""`NTXentLoss` compared with lightly's own where that is installed, and with its formula by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from antipodes import GloFND, PositiveAware
from antipodes.integrations.lightly import NTXentLoss
from tests.integrations import peers
from tests.ranks import Ranks

B, D, TAU = 8, 5, 0.2


def views(seed: int = 0) -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, B, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).unbind()
    return first.clone().requires_grad_(), second.clone().requires_grad_()


def nt_xent(first: Tensor, second: Tensor) -> Tensor:
    """Every view finds the other view of its sample among all 2B - 1 others."""
    both = F.normalize(torch.cat((first, second)), dim=1)
    logits = (both @ both.T / TAU).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * B).roll(B))


def with_bank(first: Tensor, second: Tensor, bank: Tensor) -> Tensor:
    """Every first view finds its second view among the keys of the bank."""
    first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
    logits = torch.cat(((first * second).sum(1, keepdim=True), first @ bank.T), dim=1) / TAU
    return F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64))


def gradients(value: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


def test_value_and_gradient_without_a_bank() -> None:
    inputs = views()
    found, expected = NTXentLoss(TAU)(*inputs), nt_xent(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("size", [12, (12, D)])
def test_value_and_gradient_with_a_bank(size: int | tuple[int, int]) -> None:
    loss = NTXentLoss(TAU, size).double()
    history = []
    for seed in range(3):
        loss(*views(seed))
        history.append(F.normalize(views(seed)[1].detach(), dim=1))
    inputs = views(3)
    found, expected = loss(*inputs), with_bank(*inputs, torch.cat(history)[-12:])
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("size", [0, (2 * B, D)])
def test_value_and_gradient_are_lightlys(size: int | tuple[int, int]) -> None:
    theirs = peers.with_empty_torchvision("lightly.loss.ntx_ent_loss").NTXentLoss(TAU, size)
    ours = NTXentLoss(TAU, size)
    for seed in range(4):
        first, second = (each.detach().float().requires_grad_() for each in views(seed))
        found, expected = ours(first, second), theirs(first, second)
        if seed > 1 or not size:  # its bank starts with random keys; by now it holds those of the first two calls
            torch.testing.assert_close(found, expected)
            inputs = (first, second)
            torch.testing.assert_close(gradients(found, inputs), gradients(expected, inputs))


def test_a_stale_key_of_the_anchors_own_sample_does_not_count() -> None:
    loss = NTXentLoss(TAU, (B, D)).double()
    loss(*views(0), ids=torch.arange(B))
    inputs = views(1)
    found = loss(*inputs, ids=torch.arange(B))
    first, second = (F.normalize(each, dim=1) for each in inputs)
    keys = F.normalize(views(0)[1], dim=1)
    negatives = (first @ keys.T / TAU).fill_diagonal_(-torch.inf)
    logits = torch.cat(((first * second).sum(1, keepdim=True) / TAU, negatives), dim=1)
    torch.testing.assert_close(found, F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64)))


def test_the_bank_moves_in_training_alone() -> None:
    loss = NTXentLoss(TAU, (B, D))
    before = loss.queue.keys.clone() if loss.queue else None
    with torch.no_grad():
        loss(*(each.detach() for each in views()))
    loss.eval()
    loss(*views())
    assert loss.queue is not None
    assert torch.equal(loss.queue.keys, before)


@pytest.mark.parametrize("size", [12, (12, D)])
def test_save_load_continue_is_bit_equal(size: int | tuple[int, int]) -> None:
    def make() -> NTXentLoss:
        return NTXentLoss(TAU, size, negatives=GloFND(2 * B, alpha=0.2, start=0.0)).double()

    def call(loss: NTXentLoss, seed: int) -> Tensor:
        found: Tensor = loss(*views(seed), ids=torch.arange(B) + B * (seed % 2), progress=0.5)
        return found

    loss = make()
    call(loss, 0)
    again = make()
    again.load_state_dict(loss.state_dict())
    for seed in (1, 2):
        assert torch.equal(call(again, seed), call(loss, seed))


def test_a_policy_leaves_out_what_it_flags() -> None:
    inputs = views()
    loss = NTXentLoss(TAU, negatives=PositiveAware(0.0, relative=False))
    found = loss(*inputs)
    both = F.normalize(torch.cat(inputs), dim=1)
    similarities = both @ both.T
    positive = (both * both.roll(B, 0)).sum(1)
    kept = similarities <= positive[:, None]
    kept.fill_diagonal_(False)
    kept[torch.arange(2 * B), torch.arange(2 * B).roll(B)] = True
    expected = F.cross_entropy((similarities / TAU).masked_fill(~kept, -torch.inf), torch.arange(2 * B).roll(B))
    torch.testing.assert_close(found, expected)


def one_rank(rank: int, world: int, size: int, gathered: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Values of two steps of a rank's share, and the gradients of the second."""
    loss = NTXentLoss(TAU, (size, D) if size else 0, gathered).double()
    share = slice(rank * B // world, (rank + 1) * B // world)
    values = []
    for seed in (0, 1):
        inputs = views(seed)
        values.append(loss(*(each[share] for each in inputs)))
        values[-1].backward()
    return [each.detach() for each in values], [each.grad for each in inputs]  # type: ignore[misc]


@pytest.mark.parametrize("size", [0, 12])
def test_two_ranks_equal_one(two_ranks: Ranks, size: int) -> None:
    values, expected = one_rank(0, 1, size, True)
    found = two_ranks(one_rank, size, True)
    for step in range(2):
        torch.testing.assert_close(torch.stack([of_rank[step] for of_rank, _ in found]).mean(), values[step])
    torch.testing.assert_close([(a + b) / 2 for a, b in zip(found[0][1], found[1][1], strict=True)], expected)


def test_without_gathering_a_rank_keeps_to_its_own(two_ranks: Ranks) -> None:
    for rank, (values, _) in enumerate(two_ranks(one_rank, 0, False)):
        first, second = (each[rank * B // 2 : (rank + 1) * B // 2] for each in views(1))
        both = F.normalize(torch.cat((first, second)), dim=1)
        logits = (both @ both.T / TAU).fill_diagonal_(-torch.inf)
        torch.testing.assert_close(values[1], F.cross_entropy(logits, torch.arange(B).roll(B // 2)).detach())


@pytest.mark.parametrize(
    ("options", "call", "name"),
    [
        ({"memory_bank_size": (1, 2, 3)}, {}, "memory_bank_size"),
        ({"memory_bank_size": -1}, {}, "memory_bank_size"),
        ({"memory_bank_size": 4, "negatives": GloFND(B, alpha=0.2)}, {"progress": 1.0}, "ids"),
        ({"memory_bank_size": 4}, {"rows": torch.arange(B)}, "rows"),
        ({"temperature": 0.0}, {}, "temperature"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], call: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        NTXentLoss(**options)(*views(), **call)
