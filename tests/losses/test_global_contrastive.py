"""GlobalContrastive against loops in float64 over several visits; its u in a checkpoint and on two ranks."""

import io
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antipodes import GlobalContrastive, GloFND, Oracle
from antipodes.losses import Treatment
from tests.cases import every
from tests.ranks import Ranks
from tests.reference import losses as reference

N, TAU = 12, 0.2
VISITS = [[0, 1, 2, 3], [4, 1, 5, 0], [0, 6, 1, 7], [8, 9, 0, 1]]  # ids of four steps: 0 and 1 come back
LABELS = [0, 1, 0, 2, 1, 1, 2, 2, 0, 1, 2, 0]


def views(step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    first = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    second = first + 0.5 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return first.to(dtype).requires_grad_(), second.to(dtype).requires_grad_()


def u_of(loss_fn: GlobalContrastive) -> dict[int, float]:
    return {i: math.exp(log_u) for i, log_u in enumerate(loss_fn.log_u.rows.tolist()) if log_u > -math.inf}


@every("gamma", [0.3, 0.9, 1.0])
@every(("labelled", "treatment"), [(False, "eliminate"), (True, "eliminate"), (True, "attract"), (True, "refine")])
def test_value_gradient_and_u_over_several_visits(gamma: float, labelled: bool, treatment: Treatment) -> None:
    policy = Oracle(torch.tensor(LABELS)) if labelled else None
    loss_fn = GlobalContrastive(N, TAU, gamma, negatives=policy, treatment=treatment)
    slow = reference.GlobalContrastive(TAU)
    for step, ids in enumerate(VISITS):
        z1, z2 = views(step)
        flagged = reference.same(LABELS) if labelled else reference.nothing
        expected = slow(z1, z2, ids, gamma, flagged, treatment)
        loss = loss_fn(z1, z2, torch.tensor(ids))
        # the table is float32, a millionth is what it holds
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
        for ours, theirs in zip(
            torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
        assert u_of(loss_fn) == pytest.approx(slow.u, rel=1e-5)
        assert loss_fn.stats["value"] == pytest.approx(slow.value, rel=1e-5)


def test_by_hand_on_a_circle() -> None:
    # views of sample 0 at 0 and 20 degrees, of sample 1 at 90 and 60; see the angles in test_info_nce
    def mean(*degrees: float) -> float:
        return sum(math.exp(math.cos(math.radians(angle)) / TAU) for angle in degrees) / len(degrees)

    z1, z2 = (
        torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in angles])
        for angles in ((0, 90), (20, 60))
    )
    loss_fn = GlobalContrastive(2, TAU, gamma=0.5)
    loss = loss_fn(z1, z2, torch.tensor([0, 1]))
    g0, g0_other, g1, g1_other = mean(90, 60), mean(70, 40), mean(90, 70), mean(60, 40)
    u0, u1 = (g0 + g0_other) / 2, (g1 + g1_other) / 2
    assert u_of(loss_fn) == pytest.approx({0: u0, 1: u1}, rel=1e-5)
    pull = (math.cos(math.radians(20)) + math.cos(math.radians(30))) / 2
    assert loss.item() == pytest.approx(-pull + TAU, rel=1e-5)  # at a first visit the ratios average to 1
    # the second visit: sample 0 turned to 180 and 160 degrees, sample 1 as before
    z1[0], z2[0] = -z1[0], torch.tensor([-math.cos(math.radians(20)), math.sin(math.radians(20))])
    loss_fn(z1, z2, torch.tensor([0, 1]))
    new = (mean(90, 120) + mean(70, 100)) / 2
    assert u_of(loss_fn)[0] == pytest.approx(0.5 * u0 + 0.5 * new, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.03, 0.005])
def test_a_low_temperature_does_not_overflow(temperature: float) -> None:
    """e^(1/0.005) is beyond float32 and e^(1/0.03) beyond its digits when it is mixed with e^-33."""
    loss_fn, slow = GlobalContrastive(N, temperature, 0.5), reference.GlobalContrastive(temperature)
    near = torch.ones(4, 6, dtype=torch.float64) + 0.1 * views(0)[0].detach()
    far = views(1)[0].detach()
    for first, ids in ((near, [0, 1, 2, 3]), (far, [0, 1, 4, 5]), (near, [2, 3, 0, 4])):
        z = first.float().requires_grad_()
        exact = first.clone().requires_grad_()
        loss, expected = loss_fn(z, z * 1.5, torch.tensor(ids)), slow(exact, exact * 1.5, ids, 0.5)
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-4)
        gradient, expected_gradient = torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, exact)[0]
        assert (gradient - expected_gradient).abs().max() < 1e-3 * expected_gradient.abs().max()
        log_u = loss_fn.log_u.read(torch.tensor(ids)).tolist()
        assert log_u == pytest.approx([math.log(slow.u[i]) for i in ids], abs=1e-3)


def test_nothing_kept_leaves_u_alone() -> None:
    labels = torch.tensor([0, 0, 1] + [0] * (N - 3))
    loss_fn = GlobalContrastive(N, TAU, 0.5, negatives=Oracle(labels))
    z1, z2 = views(0)
    with pytest.warns(UserWarning, match="no negatives left"):
        loss = loss_fn(z1[:2], z2[:2], torch.tensor([0, 1]))  # one label: nothing is kept, nothing was before
    assert u_of(loss_fn) == {}
    positives = torch.nn.functional.cosine_similarity(z1[:2], z2[:2])
    torch.testing.assert_close(loss, -positives.mean())
    loss_fn(z1[:3], z2[:3], torch.tensor([0, 1, 2]))
    before = u_of(loss_fn)
    assert set(before) == {0, 1, 2}
    loss_fn(z1[1:3], z2[1:3], torch.tensor([0, 1]))
    assert u_of(loss_fn) == before


def test_gamma_falls_from_one_by_a_cosine() -> None:
    loss_fn = GlobalContrastive(N, TAU, gamma=0.2, gamma_until=0.5)
    slow = reference.GlobalContrastive(TAU)
    for progress, gamma in (
        (0.0, 1.0),
        (0.25, 0.6),
        (0.125, 0.2 + 0.4 * (1 + math.cos(math.pi / 4))),
        (0.5, 0.2),
        (1.0, 0.2),
    ):
        z1, z2 = views(int(1000 * progress))
        loss_fn(z1, z2, torch.arange(4), progress=progress)
        slow(z1, z2, range(4), gamma)
        assert u_of(loss_fn) == pytest.approx(slow.u, rel=1e-5)


def test_a_queue_is_one_direction() -> None:
    loss_fn = GlobalContrastive(N, TAU, 0.5)
    z1, z2 = (z.detach() for z in views(0))
    queue = torch.nn.functional.normalize(views(1)[0].detach(), dim=1)
    loss_fn(z1, z2, torch.arange(4), candidates=queue, candidate_ids=torch.tensor([0, 7, -1, 8]))
    similarities = torch.nn.functional.normalize(z1, dim=1) @ queue.T
    for i in range(4):
        kept = [k for k, other in enumerate((0, 7, -1, 8)) if other not in (i, -1)]
        expected = sum(math.exp(float(similarities[i, k]) / TAU) for k in kept) / len(kept)
        assert u_of(loss_fn)[i] == pytest.approx(expected, rel=1e-5)


def test_save_load_continue_is_bit_equal() -> None:
    def run(loss_fn: GlobalContrastive, steps: range) -> list[float]:
        return [loss_fn(*views(step, torch.float32), torch.tensor(VISITS[step])).item() for step in steps]

    through, first, second = (GlobalContrastive(N, TAU, 0.3) for _ in range(3))
    losses = run(through, range(4))
    before = run(first, range(2))
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    assert before + run(second, range(2, 4)) == losses
    assert torch.equal(second.log_u.rows, through.log_u.rows)


@pytest.mark.parametrize("gamma", [0.0, -0.5, 1.5, math.nan])
def test_refuses_a_gamma_that_makes_no_sense(gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma must be"):
        GlobalContrastive(N, gamma=gamma)


@pytest.mark.parametrize("until", [-0.5, 1.5, math.nan])
def test_refuses_an_end_of_the_cosine_outside_the_training(until: float) -> None:
    with pytest.raises(ValueError, match="gamma_until"):
        GlobalContrastive(N, gamma_until=until)


def visits_of(rank: int, world_size: int, treatment: Treatment) -> tuple[list[Tensor], Tensor]:
    """The gradients (divided by the ranks, as data-parallel training does) and the table of one rank."""
    part = slice(4 * rank // world_size, 4 * (rank + 1) // world_size)
    loss_fn = GlobalContrastive(N, TAU, 0.3, negatives=Oracle(torch.tensor(LABELS)), treatment=treatment)
    results = []
    for step, ids in enumerate(VISITS):
        z1, z2 = (z.detach()[part].clone().requires_grad_() for z in views(step))
        loss = loss_fn(z1, z2, torch.tensor(ids)[part])
        results += [loss.detach()[None] / world_size, *(g / world_size for g in torch.autograd.grad(loss, (z1, z2)))]
    return results, loss_fn.log_u.rows


@pytest.mark.parametrize("treatment", ["eliminate", "attract", "refine"])
def test_two_ranks_equal_one(two_ranks: Ranks, treatment: Treatment) -> None:
    whole, table = visits_of(0, 1, treatment)
    (first, table_of_first), (second, table_of_second) = two_ranks(visits_of, treatment)
    assert torch.equal(table_of_first, table_of_second)
    torch.testing.assert_close(table_of_first, table)
    for ours, a, b in zip(whole, first, second, strict=True):
        torch.testing.assert_close(a + b if ours.dim() == 1 else torch.cat((a, b)), ours)


def duplicates_of(rank: int, world_size: int) -> Tensor:
    part = slice(4 * rank // world_size, 4 * (rank + 1) // world_size)
    loss_fn = GlobalContrastive(N, TAU, 0.3)
    z1, z2 = views(0)
    loss_fn(z1[part], z2[part], torch.tensor([0, 1, 2, 0])[part])
    return loss_fn.log_u.rows


def test_two_ranks_with_the_same_id_equal_one(two_ranks: Ranks) -> None:
    table = duplicates_of(0, 1)
    for of_rank in two_ranks(duplicates_of):
        torch.testing.assert_close(of_rank, table)


def tables_after(rank: int, world_size: int, folder: str | None, killed: bool) -> dict[str, Tensor]:
    """The tables of u and of thresholds after all visits, in memory or in files, in one go or through a checkpoint."""

    def build() -> GlobalContrastive:
        return GlobalContrastive(N, TAU, negatives=GloFND(N, alpha=0.3, lr=0.2, folder=folder), folder=folder)

    loss_fn, half = build(), slice(2 * rank, 2 * rank + 2) if world_size == 2 else slice(4)
    for step, ids in enumerate(VISITS):
        if killed and step == 2:
            checkpoint = io.BytesIO()
            torch.save(loss_fn.state_dict(), checkpoint)
            loss_fn = build()
            loss_fn.load_state_dict(torch.load(io.BytesIO(checkpoint.getvalue())))
        z1, z2 = views(step)
        loss_fn(z1[half], z2[half], torch.tensor(ids)[half], progress=step / 4)
    return {name: table.clone() for name, table in loss_fn.state_dict().items()}


@pytest.mark.parametrize("killed", [False, True])
def test_tables_in_files_change_nothing(two_ranks: Ranks, tmp_path: Path, killed: bool) -> None:
    for expected, mapped in [
        (tables_after(0, 1, None, False), tables_after(0, 1, str(tmp_path), killed)),
        *zip(two_ranks(tables_after, None, False), two_ranks(tables_after, str(tmp_path), killed), strict=True),
    ]:
        assert len(expected) == 2
        for name, table in expected.items():
            assert torch.equal(mapped[name], table), name
    assert not list(tmp_path.iterdir())
