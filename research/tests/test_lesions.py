"""Lesions, and details of the authors' code: each against its own definition; on two ranks, saved and continued."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from antipodes import FNC, GlobalContrastive, InfoNCE, Oracle, Ring
from antipodes.losses import HardPairs
from antipodes.methods import HNSSL, Tower, Towers
from antipodes.negatives.flags import count_flags, summarise_flags
from antipodes.pairs import Pairs, normalise
from research.lesions import (
    CrossEntropy,
    HeldIFND,
    NoisyOracle,
    PerClusterIFND,
    PerViewGlobalContrastive,
    QuantileFNC,
    RescaledInfoNCE,
    RestartingGlobalContrastive,
    SharedGloFND,
    StaircaseRing,
    TargetGradientHNSSL,
    WindowRing,
)
from tests.methods import tiny
from tests.methods.test_promises import train
from tests.negatives.test_ifnd import circle, noise
from tests.ranks import Ranks
from tests.reference.hard_pairs import hard_pairs as reference

B = 6
N = 12
LABELS = torch.tensor([0, 1, 0, 1, 2, 2])


def views(count: int = B, seed: int = 0) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z1.requires_grad_(), z2.requires_grad_()


def compare(ours: Tensor, theirs: Tensor, *wanted: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True):
        torch.testing.assert_close(mine, other)


# GloFND


def test_a_shared_threshold_is_one_number() -> None:
    policy = SharedGloFND(N, alpha=0.2)
    InfoNCE(0.1, policy)(*views(N), torch.arange(N))
    assert policy.threshold.shape == (N,)
    assert policy.threshold.unique().numel() == 1
    assert sum(buffer.numel() for buffer in policy.buffers()) == 4
    with pytest.raises(ValueError, match="one threshold has one alpha"):
        SharedGloFND(10, alpha=torch.full((10,), 0.1))


def test_a_shared_threshold_stays_in_eval_and_is_saved() -> None:
    loss_fn = InfoNCE(0.1, SharedGloFND(N, alpha=0.3))
    loss_fn(*views(N), torch.arange(N))
    state = copy.deepcopy(loss_fn.state_dict())
    loss_fn.eval()(*views(N, 1), torch.arange(N))
    assert all(torch.equal(value, state[name]) for name, value in loss_fn.state_dict().items())
    again = InfoNCE(0.1, SharedGloFND(N, alpha=0.3))
    again.load_state_dict(state)
    loss_fn.train()
    for fn in (loss_fn, again):
        fn(*views(N, 2), torch.arange(N))
    assert torch.equal(loss_fn.negatives.threshold, again.negatives.threshold)  # type: ignore[union-attr]


def shared_steps(rank: int, world_size: int) -> Tensor:
    """The shared threshold after three steps, of which every rank has a part."""
    policy = SharedGloFND(N, alpha=0.3)
    part = slice(N * rank // world_size, N * (rank + 1) // world_size)
    for seed in range(3):
        z1, z2 = (z.detach()[part].clone().requires_grad_() for z in views(N, seed))
        InfoNCE(0.1, policy)(z1, z2, torch.arange(N)[part])
    return policy.threshold


def test_a_shared_threshold_is_that_of_one_rank(two_ranks: Ranks) -> None:
    for threshold in two_ranks(shared_steps):
        torch.testing.assert_close(threshold, shared_steps(0, 1))


# FNC


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("count", [5, 11, 40])
def test_fnc_by_quantile(alpha: float, count: int) -> None:
    z = normalise(torch.randn(count, 6, generator=torch.Generator().manual_seed(count), dtype=torch.float64))
    pairs = Pairs(z, torch.arange(count), torch.ones(count))
    (rule,) = QuantileFNC(alpha).judge(pairs, 1.0)
    similarity = z @ z.T
    others = similarity[~torch.eye(count, dtype=torch.bool)].view(count, -1)
    expected = (others > others.quantile(1 - alpha, dim=1, keepdim=True)).sum(1)
    assert (len(z) - 1 - pairs.contrast(1.0, rule).kept[0]).tolist() == expected.tolist()


# IFND


def test_a_held_rate_moves_with_fits_only() -> None:
    policy = HeldIFND(6, (2,))
    policy.fit(circle(), progress=0.5)
    assert int((policy.accepted(torch.arange(6), 1.0) >= 0).sum()) == 3
    policy.fit(circle(), progress=1.0)
    assert int((policy.accepted(torch.arange(6), 0.0) >= 0).sum()) == 6
    assert not policy.uses_progress


def test_acceptance_within_clusters_only_adds_as_training_goes_on() -> None:
    policy = PerClusterIFND(60, (3, 5, 9))
    policy.fit(noise(60, 6), progress=0.4)
    pairs, before = Pairs(torch.eye(60), torch.arange(60), torch.zeros(60)), torch.zeros(3, 60, dtype=torch.bool)
    for progress in (0.1, 0.25, 0.5, 0.7, 0.95, 1.0):
        groups = torch.stack([rule.groups[0].anchors for rule in policy.judge(pairs, progress)])
        accepted = groups >= 0
        assert bool((accepted | ~before).all())
        assert torch.equal(groups[accepted], policy.labels[accepted].long())
        before = accepted
        for level, k in enumerate(policy.clusters):
            for number in range(k):
                member = policy.labels[level] == number
                inside = policy.confidence[level][member & accepted[level]]
                outside = policy.confidence[level][member & ~accepted[level]]
                assert len(inside) == pytest.approx(progress * int(member.sum()), abs=0.5 + 1e-6)
                assert not len(inside) or not len(outside) or inside.min() >= outside.max()
    assert bool(before.all())


# Oracle


def test_a_noisy_oracle_knows_a_share_of_the_labels() -> None:
    labels = torch.arange(1000) % 7
    policy = NoisyOracle(labels, known=0.3, seed=1)
    known = policy.labels >= 0
    assert int(known.sum()) == 300
    assert torch.equal(policy.labels[known], labels[known])
    assert torch.equal(policy.labels, NoisyOracle(labels, known=0.3, seed=1).labels)
    assert not torch.equal(policy.labels, NoisyOracle(labels, known=0.3, seed=2).labels)
    with pytest.raises(ValueError, match=r"known must be in \[0, 1\], got 2"):
        NoisyOracle(labels, known=2)


def test_a_noisy_oracle_has_the_precision_and_recall_it_was_given() -> None:
    labels = torch.arange(1000) % 10
    pairs = Pairs(torch.ones(1000, 2) / 2**0.5, torch.arange(1000), torch.ones(1000))
    flags = count_flags(pairs, NoisyOracle(labels, known=0.8, wrong=0.05).judge(pairs, 1.0), labels).means()
    numbers = summarise_flags(flags)
    found = 0.64 + 0.36 * 0.05  # of the same label: both known, or by mistake
    assert numbers["recall"] == pytest.approx(found, rel=0.05)
    assert numbers["precision"] == pytest.approx(found * 99 / (found * 99 + 0.05 * 900), rel=0.05)
    (rule,) = NoisyOracle(labels, wrong=0.05).judge(pairs, 1.0)
    (again,) = NoisyOracle(labels, wrong=0.05).judge(pairs, 1.0)
    assert torch.equal(rule.groups[1].candidates, again.groups[1].candidates)  # the same mistakes in every step
    with pytest.raises(ValueError, match="wrong must be in"):
        NoisyOracle(labels, wrong=1.0)


def noisy_steps(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """Losses and gradients of three steps on one rank's part."""
    loss_fn = InfoNCE(0.1, NoisyOracle(torch.arange(20) % 4, known=0.5, wrong=0.2))
    part = slice(10 * rank // world_size, 10 * (rank + 1) // world_size)
    losses, gradients = [], []
    for step in range(3):
        ids = torch.randperm(20, generator=torch.Generator().manual_seed(step))[:10][part]
        z1, z2 = (z.detach()[ids].clone().requires_grad_() for z in views(20, step))
        loss = loss_fn(z1, z2, ids)
        losses.append(loss.detach() / world_size)
        gradients.append(torch.stack(torch.autograd.grad(loss, (z1, z2))) / world_size)
    return torch.stack(losses), torch.stack(gradients)


def test_a_noisy_oracle_on_two_ranks_equals_one(two_ranks: Ranks) -> None:
    losses, gradients = noisy_steps(0, 1)
    (first, first_gradients), (second, second_gradients) = two_ranks(noisy_steps)
    torch.testing.assert_close(first + second, losses)
    torch.testing.assert_close(torch.cat((first_gradients, second_gradients), dim=2), gradients)


# Ring


def tell(policy: Ring, value: float, progress: float) -> None:
    """Give an adaptive ring the number that it receives."""
    (policy.on_loss if policy.needs.receives == "loss" else policy.on_score)(value, progress)


def authors_threshold(numbers: list[float], window: int, step: float) -> list[float]:
    """The authors' adaptive anneal of a loss, number by number: against the mean of the window, by a fixed step."""
    threshold, found = 1.0, []
    for place, number in enumerate(numbers):
        before = numbers[max(0, place - window) : place]
        if before and number != sum(before) / len(before):
            improved = number < sum(before) / len(before)
            threshold = min(1.0, max(0.1, threshold - step if improved else threshold + step))
        found.append(threshold)
    return found


@pytest.mark.parametrize(("anneal", "window", "step"), [("validation", 5, 0.05), ("loss", 10, 0.01)])
def test_the_window_means_of_rings_authors(anneal: Literal["validation", "loss"], window: int, step: float) -> None:
    draws = torch.Generator().manual_seed(0)
    numbers = [4.0, 4.0, *(4 - 0.02 * place + torch.randn((), generator=draws).item() / 4 for place in range(60))]
    policy = WindowRing((1.0, 0.1), anneal=anneal)
    shares = []
    for place, number in enumerate(numbers):
        tell(policy, number if anneal == "loss" else -number, 0.01 * (place % 7))  # time does not matter
        shares.append(policy.share(0.3))
    assert shares == pytest.approx(authors_threshold(numbers, window, step), abs=1e-6)
    assert shares[:2] == [1.0, 1.0]  # an equal number moves nothing
    assert 0.1 < min(shares) < max(shares[3:]) < 1


@pytest.mark.parametrize("anneal", ["validation", "loss"])
def test_a_ring_of_windows_is_saved(anneal: Literal["validation", "loss"]) -> None:
    policy, resumed = WindowRing(anneal=anneal), WindowRing(anneal=anneal)
    for step, better in enumerate([1.0, 2.0, 3.0, 2.0, 4.0, 5.0]):
        value = -better if anneal == "loss" else better
        tell(policy, value, 0.01 * step)
        if step == 2:
            resumed.load_state_dict(policy.state_dict())
        elif step > 2:
            tell(resumed, value, 0.01 * step)
    assert 0.1 < policy.share(0.0) < 1
    assert policy.share(0.0) == resumed.share(0.0)


@pytest.mark.parametrize("anneal", ["validation", "loss"])
def test_before_the_start_a_ring_of_windows_only_remembers(anneal: Literal["validation", "loss"]) -> None:
    policy = WindowRing((1.0, 0.1), until=0.9, start=0.5, anneal=anneal)
    sign = -1 if anneal == "loss" else 1
    for step in range(50):
        tell(policy, sign * (1.0 + step), 0.01 * step)  # better and better
    assert policy.share(0.5) == 1
    tell(policy, sign * 100.0, 0.6)
    assert policy.share(0.6) == pytest.approx(1 - policy.step)


def test_the_staircase_goes_down_by_tenths() -> None:
    policy = StaircaseRing((1.0, 0.1), until=0.5)
    shares = [policy.share(progress) for progress in (0.0, 0.049, 0.051, 0.26, 0.449, 0.451, 0.5, 1.0)]
    assert shares == pytest.approx([1.0, 1.0, 0.9, 0.5, 0.2, 0.1, 0.1, 0.1])  # ten shares in equal times


# losses


def test_the_kept_sum_is_rescaled() -> None:
    z1, z2 = views()
    loss = RescaledInfoNCE(0.3, Oracle(LABELS))(z1, z2, torch.arange(B))
    z, labels = normalise(torch.cat((z1, z2))), LABELS.repeat(2)
    losses = []
    for i in range(2 * B):
        positive = z[i] @ z[(i + B) % (2 * B)] / 0.3
        others = [k for k in range(2 * B) if k % B != i % B]
        kept = [k for k in others if labels[k] != labels[i]]
        total = torch.stack([(z[i] @ z[k] / 0.3).exp() for k in kept]).sum() * len(others) / len(kept)
        losses.append((positive.exp() + total).log() - positive)
    compare(loss, torch.stack(losses).mean(), z1, z2)
    plain = RescaledInfoNCE(0.3)(z1, z2, torch.arange(B))
    torch.testing.assert_close(plain, InfoNCE(0.3)(z1, z2, torch.arange(B)))  # nothing is missing


def test_the_loss_above_chance_counts_what_was_there() -> None:
    loss_fn = RescaledInfoNCE(0.2, Oracle(torch.tensor([0, 0, 1, 2])))
    loss_fn(torch.ones(4, 3), torch.ones(4, 3), torch.arange(4))
    assert loss_fn.stats["loss_above_chance"] == pytest.approx(0, abs=1e-5)


def test_a_running_mean_for_each_view() -> None:
    loss_fn = PerViewGlobalContrastive(8, 0.3, gamma=0.4)
    ids = torch.tensor([3, 0, 5, 6, 1, 7])
    u: dict[tuple[int, int], float] = {}
    for seed in range(3):
        z1, z2 = views(seed=seed)
        loss = loss_fn(z1, z2, ids)
        z = normalise(torch.cat((z1, z2))).detach()
        losses = []
        for i in range(2 * B):
            g = torch.stack([(z[i] @ z[k] / 0.3).exp() for k in range(2 * B) if k % B != i % B]).mean().item()
            key = (int(ids[i % B]), i // B)
            u[key] = 0.6 * u[key] + 0.4 * g if key in u else g
            losses.append(-(z[i] @ z[(i + B) % (2 * B)]).item() + 0.3 * g / u[key])
        assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    for (row, view), value in u.items():
        assert loss_fn.log_u.rows[2 * row + view].item() == pytest.approx(math.log(value), abs=1e-5)
    assert len(loss_fn.log_u.rows) == 16


def per_view_step(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """The loss and the table of one step on one rank's part."""
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z.detach()[part].clone().requires_grad_() for z in views(8))
    loss_fn = PerViewGlobalContrastive(8, 0.3, gamma=0.4)
    return loss_fn(z1, z2, torch.arange(8)[part]).detach(), loss_fn.log_u.rows


def test_a_running_mean_for_each_view_on_two_ranks(two_ranks: Ranks) -> None:
    loss, rows = per_view_step(0, 1)
    (first, first_rows), (second, second_rows) = two_ranks(per_view_step)
    torch.testing.assert_close((first + second) / 2, loss)
    for table in (first_rows, second_rows):
        torch.testing.assert_close(table, rows)


def test_what_was_summed_before_the_policy_started_is_forgotten() -> None:
    first, second = views()
    ids = torch.arange(B)
    waiting = RestartingGlobalContrastive(8, 0.1, gamma=0.25, negatives=FNC(alpha=0.3, start=0.5))
    waiting(first, second, ids, progress=0.1)
    begun = waiting(second, first, ids, progress=0.5)
    fresh = GlobalContrastive(8, 0.1, gamma=0.25, negatives=FNC(alpha=0.3))
    alone = fresh(second, first, ids, progress=0.5)
    torch.testing.assert_close(waiting.log_u.rows, fresh.log_u.rows)
    torch.testing.assert_close(begun, alone)
    before = waiting.log_u.rows[:B].clone()
    waiting(first, second, ids, progress=0.6)
    assert bool((waiting.log_u.rows[:B] >= before + math.log(0.75) - 1e-6).all())  # only once: three quarters stay
    again = RestartingGlobalContrastive(8, 0.1, gamma=0.25, negatives=FNC(alpha=0.3, start=0.5))
    again.load_state_dict(waiting.state_dict())
    assert bool(again.restarted)


# HNSSL

tiny.METHODS["hnssl target gradient"] = lambda **policy: TargetGradientHNSSL(
    Towers({"image": Tower(tiny.Tiny(), nn.Identity())}), HardPairs(quantile=1.0), momentum=0.9
)
MININGS: list[dict[str, Any]] = [{}, {"threshold": 2.0}, {"quantile": 1.0}]


@pytest.mark.parametrize("mining", MININGS)
def test_gradients_train_the_target_too(mining: dict[str, Any]) -> None:
    torch.manual_seed(0)
    network = Towers({"image": Tower(tiny.Tiny(), nn.Identity())})
    method = TargetGradientHNSSL(network, HardPairs(**mining)).double()
    with torch.no_grad():  # weights of its own
        for number, parameter in enumerate(method.target.parameters()):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    given = tiny.batch(0, method, dtype=torch.float64)
    (view,), plain = given["image"].views, given["image"].plain
    assert plain is not None
    loss = method.loss(method.network, given, 0.5)
    expected = reference(method.backbone()(view), method.target(plain), given.ids.tolist(), **mining)
    parameters = [*method.backbone().parameters(), *method.target.parameters()]
    assert {id(each) for each in parameters} == {id(each) for each in method.network.parameters()}
    compare(loss, expected, *parameters)


def train_target(rank: int, world_size: int) -> tuple[list[float], dict[str, Tensor]]:
    return train(rank, world_size, "hnssl target gradient", "none", torch.float64, 0.2)


def test_a_trained_target_on_two_ranks_equals_one(two_ranks: Ranks) -> None:
    losses, state = train_target(0, 1)
    (first_losses, first), (second_losses, second) = two_ranks(train_target)
    assert [(a + b) / 2 for a, b in zip(first_losses, second_losses, strict=True)] == pytest.approx(losses, rel=1e-12)
    for name, expected in state.items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], expected)
    assert isinstance(tiny.build("hnssl target gradient"), HNSSL)


# labels alone


def test_cross_entropy_is_that_of_the_labels_of_the_rows() -> None:
    torch.manual_seed(0)
    labels = torch.randint(0, 3, (tiny.N,))
    network = Towers({"image": Tower(tiny.Tiny(), nn.Identity())})
    width = tiny.Tiny().num_features
    method = CrossEntropy(network, InfoNCE(0.1), labels, dim=width).double()
    given = tiny.batch(0, method, dtype=torch.float64)
    (view,) = given["image"].views
    logits = method.backbone()(view)
    rows = zip(logits, labels[given.rows].tolist(), strict=True)
    expected = torch.stack([torch.logsumexp(each, 0) - each[label] for each, label in rows]).mean()
    compare(method.loss(method.network, given, 0.5), expected, *method.parameters())
    assert not any(name.endswith("labels") for name in method.state_dict())
    with pytest.raises(ValueError, match="labels"):
        CrossEntropy(network, InfoNCE(0.1), labels, dim=2)
