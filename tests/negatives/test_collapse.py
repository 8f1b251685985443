"""The mean similarity of candidates against all pairs, the warning of a narrow cone, and the ring that waits for it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import Hardest, InfoNCE, Oracle, Ring
from antipodes.negatives.ranked import later, negative_similarity
from antipodes.pairs import Pairs, normalise
from tests.ranks import Ranks


def embeddings(count: int, seed: int = 0, along: float = 0.0) -> Tensor:
    """Unit vectors (count, 6); `along` moves all of them towards one direction."""
    z = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z[:, 0] += along
    return normalise(z)


def by_pairs(pairs: Pairs) -> float:
    keys, ids = pairs.keys()
    found = [
        float(anchor @ key)
        for anchor, own in zip(pairs.anchors, pairs.anchor_ids.tolist(), strict=True)
        for key, other in zip(keys, ids.tolist(), strict=True)
        if other >= 0 and other != own
    ]
    return sum(found) / len(found)


def test_three_views_by_hand() -> None:
    views = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
    pairs = Pairs(views, torch.tensor([0, 1, 2]), torch.ones(3))
    assert negative_similarity(pairs).item() == pytest.approx((0.6 + 0.0 + 0.6 + 0.8 + 0.0 + 0.8) / 6)


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4], [0, 1, 1, 3, 0]])
def test_a_batch_and_a_queue_equal_loops(ids: list[int]) -> None:
    both = torch.tensor(ids).repeat(2)
    pairs = Pairs(embeddings(10, along=2.0), both, torch.ones(10))
    assert negative_similarity(pairs).item() == pytest.approx(by_pairs(pairs))
    queue = Pairs(
        embeddings(5, seed=1), both[:5], torch.ones(5), embeddings(8, seed=2), torch.tensor([0, 7, -1, 1, 9, 0, -1, 3])
    )
    assert negative_similarity(queue).item() == pytest.approx(by_pairs(queue))


def test_a_queue_that_changes_afterwards_is_told_as_it_was() -> None:
    keys = embeddings(8, seed=2)
    pairs = Pairs(embeddings(5), torch.arange(5), torch.ones(5), keys, torch.arange(8) + 10)
    expected, told = by_pairs(pairs), later(pairs)
    keys.zero_()
    assert told().item() == pytest.approx(expected)


def test_what_is_told_later_holds_no_graph() -> None:
    z = embeddings(6).requires_grad_()
    loss_fn = InfoNCE(0.2)
    loss_fn(z[:3], z[3:], torch.arange(3))
    stats = loss_fn.stats
    unit = z.detach()
    pairs = Pairs(unit, torch.arange(3).repeat(2), torch.ones(6))
    assert stats["negative_similarity"] == pytest.approx(by_pairs(pairs))


def test_nobody_to_compare_with_is_not_a_number() -> None:
    alone = Pairs(embeddings(2), torch.tensor([0, 0]), torch.ones(2))
    assert math.isnan(negative_similarity(alone).item())
    empty = Pairs(embeddings(2), torch.arange(2), torch.ones(2), torch.zeros(3, 6).double(), torch.full((3,), -1))
    assert math.isnan(negative_similarity(empty).item())


def test_the_loss_above_chance() -> None:
    """Nothing to tell the positive by is chance, whatever the policy leaves; a perfect positive is far below."""
    alike = torch.ones(4, 3)
    for policy, treatment in ((None, "eliminate"), (Oracle(torch.tensor([0, 0, 1, 2])), "attract")):
        loss_fn = InfoNCE(0.2, policy, treatment)  # type: ignore[arg-type]
        loss_fn(alike, alike, torch.arange(4))
        assert loss_fn.stats["loss_above_chance"] == pytest.approx(0, abs=1e-5)
    loss_fn = InfoNCE(0.2)
    loss = loss_fn(torch.eye(4), torch.eye(4), torch.arange(4))
    assert loss_fn.stats["loss_above_chance"] == pytest.approx(loss.item() - math.log(7), abs=1e-6)
    loss_fn(torch.eye(4), torch.eye(4), torch.arange(4), candidate_log_weights=torch.ones(4))
    assert "loss_above_chance" not in loss_fn.stats


def test_ranking_in_a_narrow_cone_is_warned_of_once() -> None:
    z = embeddings(10, along=8.0)
    loss_fn = InfoNCE(0.2, Hardest(2))
    with pytest.warns(UserWarning, match=r"nearly collapsed.*--head\.centred true"):
        loss_fn(z[:5], z[5:], torch.arange(5))
    spread = embeddings(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn(z[:5], z[5:], torch.arange(5))
        InfoNCE(0.2, Hardest(2))(spread[:5], spread[5:], torch.arange(5))
        InfoNCE(0.2)(z[:5], z[5:], torch.arange(5))  # nobody ranks
        InfoNCE(0.2, Ring(start=0.2))(z[:5], z[5:], torch.arange(5), progress=0.1)  # not yet


def pairs_of(along: float, seed: int = 0) -> Pairs:
    return Pairs(embeddings(12, seed, along), torch.arange(12), torch.ones(12).double())


def test_the_ball_shrinks_only_while_the_candidates_are_spread() -> None:
    ring = Ring((1.0, 0.1), inner=0.2, until=0.9, anneal="collapse")
    narrow, wide = pairs_of(8.0), pairs_of(0.0)
    assert negative_similarity(narrow) > 0.5 > negative_similarity(wide)
    assert ring.uses_progress
    seen = []
    for number, pairs in enumerate([narrow, narrow, wide, wide, narrow, wide, wide]):
        (rule,) = ring.judge(pairs, 0.1 * number)
        seen.append((round(ring.share(0.0), 5), bool(rule.ranks)))
    # a look takes the time since the one before; until the first spread nothing is ranked
    assert seen == [(1, False), (1, False), (0.9, True), (0.8, True), (0.8, True), (0.7, True), (0.6, True)]
    (rule,) = ring.judge(wide, 1.0, learn=False)
    assert ring.share(0.0) == pytest.approx(0.6)  # looking on moves nothing
    assert rule.ranks[0].first.tolist() == [1] * 12  # type: ignore[union-attr]
    ring.judge(wide, 1.0)
    ring.judge(wide, 1.0)
    assert ring.statistics()["ring_outer"] == pytest.approx(0.2)


def test_the_waiting_ring_starts_late_and_is_saved() -> None:
    ring, resumed = (Ring((1.0, 0.1), until=0.9, start=0.4, anneal="collapse", collapse_limit=0.3) for _ in range(2))
    wide = pairs_of(0.0)
    for progress in (0.0, 0.3, 0.4):
        ring.judge(wide, progress)
    assert ring.share(0.0) == 1  # no time before the start counts
    ring.judge(wide, 0.5)
    assert ring.share(0.0) == pytest.approx(1 - 0.1 * 0.9 / 0.5)
    resumed.load_state_dict(ring.state_dict())
    for policy in (ring, resumed):
        policy.judge(wide, 0.6)
    assert ring.share(0.0) == resumed.share(0.0) < 0.65
    with pytest.raises(ValueError, match="collapse_limit must be in"):
        Ring(collapse_limit=1.0)


@pytest.mark.filterwarnings("ignore:the embeddings have nearly collapsed")
def test_an_empty_queue_and_identical_candidates_stay_finite() -> None:
    z1, z2 = torch.ones(2, 4, 6, dtype=torch.float64).requires_grad_()
    loss_fn = InfoNCE(0.1, Ring(anneal="collapse"))
    loss = loss_fn(z1, z2, torch.arange(4), progress=0.5)
    assert loss.isfinite()
    queue: dict[str, Any] = {"candidates": torch.zeros(3, 6).double(), "candidate_ids": torch.full((3,), -1)}
    for progress in (0.6, 0.7):
        assert loss_fn(z1, z2, torch.arange(4), progress=progress, **queue).item() == 0
    assert loss_fn.negatives is not None
    assert loss_fn.negatives.statistics() == {"ring_outer": 1.0}


def steps(rank: int, world_size: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Four steps of a waiting ring, in a cone and out of it, on one rank's part of the batch."""
    loss_fn = InfoNCE(0.1, Ring((1.0, 0.5), until=0.8, anneal="collapse"))
    part = slice(6 * rank // world_size, 6 * (rank + 1) // world_size)
    losses = []
    for step, along in enumerate((8.0, 0.0, 0.0, 8.0)):
        z1, z2 = embeddings(12, step, along).requires_grad_().split(6)
        loss = loss_fn(z1[part], z2[part], torch.arange(6)[part], progress=step / 4)
        losses.append(loss.detach() / world_size)
    return torch.stack(losses), loss_fn.state_dict()


@pytest.mark.filterwarnings("ignore:the embeddings have nearly collapsed")
def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    losses, state = steps(0, 1)
    (first, first_state), (second, second_state) = two_ranks(steps)
    torch.testing.assert_close(first + second, losses)
    assert 0.5 < state["negatives.ball"] < 1
    for name, value in state.items():
        assert torch.equal(first_state[name], second_state[name])
        torch.testing.assert_close(first_state[name], value)
