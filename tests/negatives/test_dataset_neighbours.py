"""Neighbours: tables by hand and by sorting, what is flagged, everything flagged, two ranks, saved and continued."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import DatasetNeighbours, InfoNCE
from antipodes.pairs import Pairs, normalise
from tests.ranks import Ranks

N = 13


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_by_hand_on_a_circle() -> None:
    points = circle(0, 10, 25, 100, 104)
    policy = DatasetNeighbours(5, k=1)
    policy.fit(points, progress=0.5)
    assert policy.table[:, 0].tolist() == [1, 0, 1, 4, 3]
    mutual = DatasetNeighbours(5, k=1, mutual=True)
    mutual.fit(points)
    assert mutual.table[:, 0].tolist() == [1, 0, -1, 4, 3]  # 2 likes 1, which likes 0
    queue = torch.tensor([1, 0, -1, 1, 4])
    flags = policy.flags(Pairs(torch.eye(5)[:2], torch.tensor([2, 3]), torch.ones(2), torch.eye(5), queue))
    assert list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True)) == [(0, 0), (0, 3), (1, 4)]


@pytest.mark.parametrize("mutual", [False, True])
def test_rows_of_the_own_sample_take_no_place(mutual: bool) -> None:
    """Two rows of one sample lie side by side: each finds the nearest row of another sample."""
    points, identities = circle(0, 1, 30, 31, 100), torch.tensor([7, 7, 3, 3, 9])
    policy = DatasetNeighbours(5, k=1, mutual=mutual, identities=identities)
    policy.fit(points)
    assert policy.table[:, 0].tolist() == ([-1, 2, 1, -1, -1] if mutual else [2, 2, 1, 1, 3])
    few = DatasetNeighbours(5, k=4, mutual=mutual, identities=identities)
    few.fit(points)
    assert few.table[0].tolist() == [2, 3, 4, -1]  # there are no more others than three
    assert "samples" not in policy.state_dict()
    with pytest.raises(ValueError, match=r"identities must be \(5,\) whole numbers, the sample of every row, got"):
        DatasetNeighbours(5, k=1, identities=identities[:4])


@pytest.mark.parametrize("mutual", [False, True])
def test_tables_equal_a_sort(mutual: bool) -> None:
    features = noise(N, 4)
    policy = DatasetNeighbours(N, k=3, mutual=mutual)
    policy.fit(features)
    similarity = (normalise(features) @ normalise(features).T).fill_diagonal_(-2)
    order = similarity.argsort(dim=1, descending=True)[:, :3].tolist()
    expected = [[j if not mutual or i in order[j] else -1 for j in row] for i, row in enumerate(order)]
    assert policy.table.tolist() == expected


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_values_and_gradients_by_loops(treatment: Any) -> None:
    policy = DatasetNeighbours(N, k=3)
    policy.fit(noise(N, 4))
    z1, z2 = noise(2, N, 5, seed=1).requires_grad_()
    loss = InfoNCE(0.3, policy, treatment)(z1, z2, torch.arange(N))
    z = normalise(torch.cat((z1, z2)))
    losses = []
    for i in range(2 * N):
        others = [k for k in range(2 * N) if k % N != i % N]
        false = [k for k in others if k % N in policy.table[i % N].tolist()]
        kept = [k for k in others if k not in false or treatment == "attract"]
        positive = z[i] @ z[(i + N) % (2 * N)]
        logits = torch.stack([positive, *(z[i] @ z[k] for k in kept)]) / 0.3
        pulled = torch.stack([positive, *(z[i] @ z[k] for k in false)])
        losses.append(logits.logsumexp(0) - (pulled.mean() if treatment == "attract" else positive) / 0.3)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def steps(rank: int, world_size: int, alone: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """A fit on the whole features or this rank's share of them, then the loss of this rank's part."""
    share = slice(N * rank // world_size, N * (rank + 1) // world_size)
    features = noise(N, 4)
    policy = DatasetNeighbours(N, k=3, mutual=True)
    policy.fit(features[share] if alone else features, progress=0.3)
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z[part].clone().requires_grad_() for z in noise(2, 8, 5, seed=1))
    loss = InfoNCE(0.1, policy, "attract")(z1, z2, torch.arange(8)[part])
    gradient = torch.stack(torch.autograd.grad(loss, (z1, z2)))
    return loss.detach() / world_size, gradient / world_size, policy.state_dict()


@pytest.mark.parametrize("alone", [False, True])
def test_two_ranks_equal_one(two_ranks: Ranks, alone: bool) -> None:
    loss, gradient, state = steps(0, 1, alone)
    (first_loss, first, first_state), (second_loss, second, second_state) = two_ranks(steps, alone)
    torch.testing.assert_close(first_loss + second_loss, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1), gradient)
    for name, value in state.items():
        assert torch.equal(first_state[name], value)
        assert torch.equal(second_state[name], value)


def test_a_sample_without_a_vector_has_no_neighbours() -> None:
    vectors = noise(N, 4)
    vectors[[2, 5]] = 0
    policy = DatasetNeighbours(N, k=3)
    policy.fit(vectors)
    assert bool((policy.table[[2, 5]] == -1).all())
    assert not bool(torch.isin(policy.table, torch.tensor([2, 5])).any())


def test_due_start_and_refusals() -> None:
    assert [epoch for epoch in range(9) if DatasetNeighbours(N, every=3).due(epoch)] == [3, 6]
    assert [epoch for epoch in range(9) if DatasetNeighbours(N, every=3, space="guide").due(epoch)] == [0, 3, 6]
    pairs = Pairs(torch.eye(4), torch.arange(4), torch.ones(4))
    with pytest.warns(UserWarning, match="DatasetNeighbours has no neighbours yet"):
        DatasetNeighbours(N).judge(pairs, 1.0)
    late = DatasetNeighbours(N, start=0.5)
    late.fit(noise(N, 4))
    assert not late.flags(pairs, 0.4).anchors.numel()
    for arguments, sentence in (
        ({"k": N}, r"k must be in 1\.\.12"),
        ({"every": 0}, "every must be at least 1"),
        ({"space": "seen"}, "space must be features, embeddings or guide"),
        ({"start": 2.0}, "start must be in"),
    ):
        with pytest.raises(ValueError, match=sentence):
            DatasetNeighbours(N, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"features must be \(13, F\)"):
        DatasetNeighbours(N).fit(noise(12, 4))
    with pytest.raises(ValueError, match=r"features must be \(13, F\).*got None"):
        DatasetNeighbours(N).fit(None)
