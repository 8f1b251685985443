"""GloFND against loops, its lemma as a property, and the promises every policy keeps."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antipodes import FNC, GloFND, InfoNCE, Oracle
from antipodes.pairs import Pairs, normalise
from antipodes.registry import find
from tests.ranks import Ranks
from tests.reference.glofnd import LoopGloFND

COUNT = 24


def views(seed: int, count: int = COUNT) -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return first, second


def by_sample(z1: Tensor, z2: Tensor, ids: Tensor) -> dict[int, list[float]]:
    """Similarities of every sample's two views to all views of other samples."""
    z, owners = normalise(torch.cat((z1, z2))), torch.cat((ids, ids)).tolist()
    similarity = (z @ z.T).tolist()
    found: dict[int, list[float]] = {}
    for row, owner in enumerate(owners):
        values = [value for value, other in zip(similarity[row], owners, strict=True) if other != owner]
        found.setdefault(owner, []).extend(values)
    return found


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_thresholds_equal_loops_over_several_visits(optimizer: Any) -> None:
    policy = GloFND(COUNT, alpha=0.2, optimizer=optimizer, lr=0.3, initial="one")
    loops = LoopGloFND(alpha=0.2, lr=0.3, adam=optimizer == "adam")
    loss_fn = InfoNCE(0.1, policy)
    for step in range(6):
        z1, z2 = views(step)
        ids = torch.randperm(COUNT, generator=torch.Generator().manual_seed(step))[:10]
        loss_fn(z1[ids], z2[ids], ids, progress=step / 6)
        loops.step(by_sample(z1[ids], z2[ids], ids))
        flagged = [
            sum(value > loops.threshold[sample] for value in values)
            for sample, values in by_sample(z1[ids], z2[ids], ids).items()
        ]
        # the new threshold flags on the same batch
        assert loss_fn.stats["flagged_share"] == pytest.approx(sum(flagged) / (20 * 18), abs=1e-6)
    for sample, value in loops.threshold.items():
        assert policy.threshold[sample].item() == pytest.approx(value, abs=1e-5)


def test_flags_by_hand_on_a_circle() -> None:
    degrees = torch.tensor([0.0, 20.0, 90.0, 180.0]).deg2rad()
    points = torch.stack((degrees.cos(), degrees.sin()), dim=1)
    policy = GloFND(4, alpha=0.4, optimizer="sgd", lr=0.5, initial="one")
    (rule,) = policy.judge(Pairs(points, torch.arange(4), torch.ones(4)), 1.0)
    # nothing exceeds 1, so g = 0.4 and every threshold falls to 0.8; cos 20 degrees is 0.94
    assert rule.ceiling is not None
    torch.testing.assert_close(rule.ceiling, torch.full((4,), 0.8))
    (rule,) = policy.judge(Pairs(points, torch.arange(4), torch.ones(4)), 1.0)
    # now a third of the candidates of 0 and 1 exceed 0.8: g = 0.4 - 1/3; none of 2's and 3's do
    expected = torch.tensor([0.8 - (0.4 - 1 / 3) / 2] * 2 + [0.6] * 2)
    torch.testing.assert_close(rule.ceiling, expected)


@settings(max_examples=6, deadline=None)
@given(count=st.integers(20, 60), k=st.integers(1, 10), seed=st.integers(0, 1000))
def test_lemma_the_threshold_converges_to_the_quantile(count: int, k: int, seed: int) -> None:
    """Lemma 3.1: where alpha n is not whole, the optimum is the k-th largest similarity, k = ceil(alpha n)."""
    alpha = (k - 0.5) / (count - 1)
    z = normalise(torch.randn(count, 5, generator=torch.Generator().manual_seed(seed)))
    policy = GloFND(count, alpha=alpha)
    pairs = Pairs(z, torch.arange(count), torch.ones(count))
    for step in range(600):
        policy.lr = 0.2 / (1 + step / 20)
        policy.judge(pairs, 1.0)
    similarity = (z @ z.T).fill_diagonal_(-math.inf).sort(dim=1, descending=True).values
    torch.testing.assert_close(policy.threshold, similarity[:, k - 1], rtol=0, atol=0.03)


def test_the_share_flagged_converges_to_alpha() -> None:
    z1, z2 = views(3, 200)
    loss_fn = InfoNCE(0.1, GloFND(200, alpha=0.1, decay=True, initial="one", lr=0.05))
    shares = []
    for step in range(200):
        ids = torch.randperm(200, generator=torch.Generator().manual_seed(step))[:50]
        loss_fn(z1[ids], z2[ids], ids, progress=step / 200)
        shares.append(loss_fn.stats["flagged_share"])
    assert shares[0] < 0.001
    assert sum(shares[-40:]) / 40 == pytest.approx(0.1, abs=0.02)


def test_nothing_happens_before_the_start() -> None:
    policy = GloFND(COUNT, alpha=0.2, start=0.3)
    loss_fn = InfoNCE(0.1, policy)
    loss_fn(*views(0), torch.arange(COUNT), progress=0.29)
    assert loss_fn.stats["flagged_share"] == 0
    assert bool((policy.threshold == 1).all())
    loss_fn(*views(0), torch.arange(COUNT), progress=0.3)
    assert bool((policy.threshold < 1).all())


def test_the_default_flags_alpha_at_once_and_the_papers_start_nothing() -> None:
    slow, fast = (InfoNCE(0.1, GloFND(COUNT, alpha=0.25, **options)) for options in ({"initial": "one"}, {}))
    for loss_fn in (slow, fast):
        loss_fn(*views(0), torch.arange(COUNT))
    assert slow.stats["flagged_share"] == 0
    assert fast.stats["flagged_share"] == pytest.approx(0.25, abs=0.05)


def test_the_papers_start_has_a_name() -> None:
    paper, default = find("negatives", "glofnd-paper"), find("negatives", "glofnd")
    slow, fast = (part.target(num_samples=COUNT, **part.preset) for part in (paper, default))
    assert (slow.initial, slow.lr) == ("one", 0.05)
    assert (fast.initial, fast.lr) == ("quantile", 0.01)


@pytest.mark.parametrize(
    ("options", "epochs", "warns"),
    [
        ({"initial": "one"}, 19, True),
        ({"initial": "one"}, 20, False),
        ({"initial": "one", "start": 0.35}, 20, True),
        ({}, 5, False),
        ({"initial": "one"}, 0, False),
    ],
)
def test_too_few_visits_for_the_papers_start_are_said(options: dict[str, Any], epochs: int, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GloFND(COUNT, **options).check_visits(epochs)
    assert ["initial" in str(each.message) for each in caught] == [True] * warns


def test_sixteen_bytes_a_sample() -> None:
    assert sum(buffer.numel() * buffer.element_size() for buffer in GloFND(1000).buffers()) == 16_000


def test_on_a_queue_empty_slots_and_own_copies_do_not_count() -> None:
    keys = normalise(views(1)[0])
    key_ids = torch.arange(COUNT)
    key_ids[::3] = -1
    policy, filled = GloFND(COUNT, alpha=0.2, lr=0.5), GloFND(COUNT, alpha=0.2, lr=0.5)
    ids = torch.arange(8)
    z1, z2 = (part[:8] for part in views(0))
    for _ in range(3):
        InfoNCE(0.1, policy)(z1, z2, ids, candidates=keys, candidate_ids=key_ids)
        kept = key_ids >= 0
        InfoNCE(0.1, filled)(z1, z2, ids, candidates=keys[kept], candidate_ids=key_ids[kept])
    assert torch.equal(policy.threshold, filled.threshold)
    assert bool((policy.threshold[8:] == 1).all())


def test_an_empty_queue_leaves_the_thresholds_alone() -> None:
    policy = GloFND(COUNT)
    empty = torch.full((COUNT,), -1)
    z1, z2 = views(0)
    assert InfoNCE(0.1, policy)(z1, z2, torch.arange(COUNT), candidates=z1, candidate_ids=empty).isfinite()
    assert bool((policy.threshold == 1).all())
    assert not bool(policy._table.rows[:, 1:].any())  # neither moments nor a step


def test_a_share_for_every_sample_by_hand() -> None:
    degrees = torch.tensor([0.0, 20.0, 90.0, 180.0]).deg2rad()
    points = torch.stack((degrees.cos(), degrees.sin()), dim=1)
    policy = GloFND(6, alpha=torch.tensor([0.9, 0.0, 0.1, 0.2, 0.4, 1.0]), optimizer="sgd", lr=0.5, initial="one")
    pairs = Pairs(points, torch.arange(4), torch.ones(4), anchor_rows=torch.tensor([5, 4, 2, 1]))
    (rule,) = policy.judge(pairs, 1.0)
    # nothing exceeds 1: a threshold falls by half of its own sample's share
    torch.testing.assert_close(rule.ceiling, torch.tensor([0.5, 0.8, 0.95, 1.0]))
    torch.testing.assert_close(policy.threshold, torch.tensor([1.0, 1.0, 0.95, 1.0, 0.8, 0.5]))


def test_every_sample_converges_to_its_own_share() -> None:
    count = 41
    z = normalise(torch.randn(count, 5, generator=torch.Generator().manual_seed(3)))
    alpha = (torch.arange(count) % 4 + 0.5) / (count - 1)  # the first to the fourth largest similarity
    policy, pairs = GloFND(count, alpha, lr=0.02, decay=True), Pairs(z, torch.arange(count), torch.ones(count))
    for step in range(600):
        policy.judge(pairs, step / 600)
    exceeding = pairs.count_above(policy.threshold)
    assert (exceeding - (torch.arange(count) % 4)).abs().max() <= 1


def run_steps(rank: int, world_size: int, first: int, last: int, state: Any, options: dict[str, Any]) -> Any:
    """Steps first..last of one rank's part; loss, gradient and state."""
    glofnd = GloFND(COUNT, **{"alpha": 0.2, "lr": 0.2, **options})
    loss_fn = InfoNCE(0.1, glofnd & FNC(0.1) & Oracle(torch.arange(COUNT) % 7))
    if state is not None:
        loss_fn.load_state_dict(state)
    part = slice(12 * rank // world_size, 12 * (rank + 1) // world_size)
    outcome = []
    for step in range(first, last):
        ids = torch.randperm(COUNT, generator=torch.Generator().manual_seed(step))[:12][part]
        z1, z2 = (z[ids].requires_grad_() for z in views(step))
        loss = loss_fn(z1, z2, ids, progress=step / 10)
        gradient = torch.stack(torch.autograd.grad(loss, (z1, z2)))
        outcome.append((loss.detach() / world_size, gradient / world_size))
    return outcome, loss_fn.state_dict()


BY_SAMPLE = {"alpha": torch.linspace(0, 0.5, COUNT)}


@pytest.mark.parametrize("options", [{"initial": "one"}, BY_SAMPLE], ids=", ".join)
def test_two_ranks_equal_one(two_ranks: Ranks, options: dict[str, Any]) -> None:
    outcome, state = run_steps(0, 1, 0, 5, None, options)
    (first, first_state), (second, second_state) = two_ranks(run_steps, 0, 5, None, options)
    for (loss, gradient), (loss_a, gradient_a), (loss_b, gradient_b) in zip(outcome, first, second, strict=True):
        torch.testing.assert_close(loss_a + loss_b, loss)
        torch.testing.assert_close(torch.cat((gradient_a, gradient_b), dim=1), gradient)
    for name, table in state.items():
        assert torch.equal(first_state[name], second_state[name])
        torch.testing.assert_close(first_state[name], table)


@pytest.mark.parametrize("options", [{"initial": "one", "decay": True}, BY_SAMPLE], ids=", ".join)
def test_save_load_continue_is_bit_equal(options: dict[str, Any]) -> None:
    whole, state = run_steps(0, 1, 0, 6, None, options)
    _, middle = run_steps(0, 1, 0, 3, None, options)
    rest, end = run_steps(0, 1, 3, 6, {name: table.clone() for name, table in middle.items()}, options)
    for (loss, gradient), (again, gradient_again) in zip(whole[3:], rest, strict=True):
        assert torch.equal(loss, again)
        assert torch.equal(gradient, gradient_again)
    assert all(torch.equal(state[name], end[name]) for name in state)


def test_shares_by_sample_are_saved() -> None:
    saved, other = GloFND(3, torch.tensor([0.1, 0.2, 0.3])).state_dict(), GloFND(3, torch.full((3,), 0.5))
    other.load_state_dict(saved)
    torch.testing.assert_close(other.alpha, torch.tensor([0.1, 0.2, 0.3]))


def test_wrong_arguments_get_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\), got 1.5: it is the share of negatives"):
        GloFND(10, alpha=1.5)
    with pytest.raises(ValueError, match="start must be in"):
        GloFND(10, start=2)
    with pytest.raises(ValueError, match=r"alpha by sample has the shape \(9,\): it must be \(10,\)"):
        GloFND(10, alpha=torch.full((9,), 0.1))
    with pytest.raises(ValueError, match=r"alpha by sample must be \(n,\) floats in \[0, 1\]"):
        GloFND(10, alpha=torch.full((10,), -0.1))
    with pytest.raises(ValueError, match="lr must be above 0"):
        GloFND(10, lr=0)
    with pytest.raises(ValueError, match=r"ids must be in 0..9, got 0..23"):
        InfoNCE(0.1, GloFND(10))(*views(0), torch.arange(COUNT))
