"""Judging is read-only where it should be: no table moves in eval(), under no_grad() or with learn=False."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from antipodes import FNC, Cave, GlobalContrastive, GloFND, InfoNCE, Oracle, Policy, Ring
from antipodes.losses import Loss
from antipodes.pairs import Pairs, normalise
from tests.cases import every

N = 12
POLICIES: dict[str, Callable[[], Policy]] = {
    "glofnd": lambda: GloFND(N, alpha=0.3, initial="quantile"),
    "cave": lambda: Cave(N, (2,)),
    "joined": lambda: GloFND(N, alpha=0.3) & Cave(N, (2,)) & FNC(0.1),
}


def views(seed: int = 0) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, N, 4, generator=torch.Generator().manual_seed(seed))
    return z1.requires_grad_(), z2.requires_grad_()


def state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.filterwarnings("ignore:Cave has no clusters")
@every("build", [InfoNCE, lambda **arguments: GlobalContrastive(N, **arguments)])
@every("name", POLICIES)
def test_a_validation_loss_leaves_everything_alone(name: str, build: Callable[..., Loss]) -> None:
    loss_fn = build(negatives=POLICIES[name](), total_steps=10)
    z1, z2 = views()
    loss_fn(z1, z2, torch.arange(N))
    before = state(loss_fn)
    loss_fn.eval()
    quiet = loss_fn(*views(1), torch.arange(N))
    assert same(before, state(loss_fn))
    loss_fn.train()
    with torch.no_grad():
        torch.testing.assert_close(loss_fn(*views(1), torch.arange(N)), quiet)
    assert same(before, state(loss_fn))
    loss_fn(*views(1), torch.arange(N))
    assert not same(before, state(loss_fn))


@pytest.mark.filterwarnings("ignore:Cave has no clusters")
@pytest.mark.parametrize("name", POLICIES)
def test_judging_without_learning(name: str) -> None:
    policy = POLICIES[name]()
    z = normalise(torch.cat([part.detach() for part in views()]))
    pairs = Pairs(z, torch.arange(N).repeat(2), torch.ones(2 * N))
    policy.judge(pairs, 1.0)
    before = state(policy)
    policy.judge(pairs, 1.0, learn=False)
    policy.flags(pairs)
    policy.eval()
    policy.judge(pairs, 1.0)
    assert same(before, state(policy))


def test_learned_thresholds_are_applied_offline() -> None:
    policy = GloFND(N, alpha=0.2)
    policy._table.rows[:, 0].copy_(torch.linspace(-1, 1, N))
    z = normalise(views()[0].detach())
    (rule,) = policy.judge(Pairs(z, torch.arange(N), torch.ones(N)), 1.0, learn=False)
    assert rule.ceiling is not None
    assert torch.equal(rule.ceiling, torch.linspace(-1, 1, N))


def test_a_policy_without_state_may_leave_learn_out() -> None:
    class Keep(Policy):
        def judge(self, pairs: Pairs, progress: float) -> list[object]:  # type: ignore[override]
            return Oracle(torch.arange(N)).judge(pairs, progress)  # type: ignore[return-value]

    assert InfoNCE(negatives=Keep() & FNC(0.1))(*views(), torch.arange(N)).isfinite()


def test_a_joined_ring_receives_losses() -> None:
    policy = Ring(anneal="loss") & GloFND(N)
    assert policy.needs.receives == "loss"
    for step in range(5):
        policy.on_loss(5.0 - step, 0.1 * step)
    ring = policy.parts()[0]
    assert isinstance(ring, Ring)
    assert ring.share(0.0) < 1
    with pytest.raises(ValueError, match="receives losses and one that receives scores"):
        Ring(anneal="loss") & Ring(anneal="validation")


def test_a_joined_clustering_says_what_it_fits() -> None:
    policy = FNC() & Cave(N, (2,), space="embeddings") & GloFND(N)
    assert policy.needs.space == "embeddings"
    assert policy.needs.fits
    assert [type(part) for part in policy.parts()] == [FNC, Cave, GloFND]
    policy.fit(views()[0].detach(), 0.5)
    cave = policy.parts()[1]
    assert isinstance(cave, Cave)
    assert cave.fitted_at == 0.5
    with pytest.raises(ValueError, match="fit embeddings and features: fit each of parts"):
        (policy & Cave(N, (2,), space="features")).fit(views()[0].detach(), 0.5)


def test_nothing_seen_is_nothing_to_cluster() -> None:
    with pytest.raises(ValueError, match="Cave has seen no step yet"):
        Cave(N, (2,)).fit(None)
    with pytest.raises(ValueError, match="fit needs the features of the training set: Cave has space 'features'"):
        Cave(N, (2,), space="features").fit(None)


def test_flags_one_by_one() -> None:
    degrees = torch.tensor([0.0, 20.0, 90.0, 180.0, 200.0]).deg2rad()
    points = torch.stack((degrees.cos(), degrees.sin()), dim=1)
    ids = torch.arange(5)
    flags = FNC(alpha=0.25).flags(Pairs(points, ids, torch.ones(5)))
    assert list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True)) == [
        (0, 1), (1, 0), (2, 1), (3, 4), (4, 3)
    ]  # fmt: skip
    expected = torch.tensor([20.0, 20.0, 70.0, 20.0, 20.0]).deg2rad().cos()
    torch.testing.assert_close(flags.similarities, expected)
    assert flags.thresholds.shape == (1, 5)
    assert bool((flags.similarities > flags.thresholds[0]).all())
    assert flags.of(3).tolist() == [4]


def test_flags_by_group_in_a_queue() -> None:
    oracle = Oracle(torch.tensor([0, 0, 1, 1, 0, -1]))
    pairs = Pairs(
        torch.eye(6)[:3], torch.tensor([0, 2, 5]), torch.ones(3), torch.eye(6), torch.tensor([0, 1, 3, -1, 4, 5])
    )
    flags = oracle.flags(pairs)
    assert list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True)) == [(0, 1), (0, 4), (1, 2)]
    assert bool((flags.thresholds == torch.inf).all())
    everything = copy.deepcopy(oracle).flags(Pairs(torch.eye(6), torch.arange(6), torch.ones(6)))
    assert everything.of(0).tolist() == [1, 4]
