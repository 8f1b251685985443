"""Cave: candidates of the anchor's cluster by hand, single clusters, two ranks, saved and continued."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from antipodes import Cave, InfoNCE, Ring
from antipodes.pairs import Pairs
from tests.ranks import Ranks


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def line() -> Tensor:
    """Six samples of two directions: 0 1 2 and 3 4 5."""
    return torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.1], [-1.0, 0.2]])


def kept(policy: Cave, pairs: Pairs) -> list[list[int]]:
    return [pairs.contrast(1.0, rule).kept[0].tolist() for rule in policy.judge(pairs, 0.5)]


def test_pairs_by_hand() -> None:
    policy = Cave(6, (2,), space="features")
    queue = torch.tensor([1, -1, 2, 2, 4, 0])
    pairs = Pairs(torch.eye(6)[:2], torch.tensor([0, 3]), torch.zeros(2), torch.eye(6), queue)
    assert kept(policy, pairs) == [[4, 5]]  # before the first fit all count but the own sample and the empty slot
    policy.fit(line(), progress=0.4)
    assert kept(policy, pairs) == [[3, 1]]  # 1 2 2 for anchor 0, 4 for anchor 3
    batch = Pairs(torch.eye(12), torch.arange(6).repeat(2), torch.zeros(12))
    assert kept(policy, batch) == [[4] * 12]  # both views of two others


def test_several_numbers_of_clusters_and_another_policy() -> None:
    policy = Cave(6, (1, 2, 6))
    policy.fit(line())
    pairs = Pairs(torch.eye(6)[:1], torch.tensor([0]), torch.zeros(1), torch.eye(6), torch.arange(6))
    assert kept(policy, pairs) == [[5], [2], [0]]  # one cluster keeps all, and a sample alone in its own nothing
    assert len((policy & Ring()).judge(pairs, 0.5)) == 3


def test_a_sample_alone_in_its_cluster_stays_finite() -> None:
    policy = Cave(4, (4,))
    policy.fit(torch.eye(4))
    z1, z2 = noise(2, 4, 5).requires_grad_()
    with pytest.warns(UserWarning, match="no negatives left"):
        loss = InfoNCE(0.1, policy)(z1, z2, torch.arange(4))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (z1, z2)))


def test_due_after_the_first_epochs() -> None:
    assert [epoch for epoch in range(9) if Cave(60, every=3).due(epoch)] == [3, 6]


def steps(rank: int, world_size: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Two batches go by, a fit on what was seen, then the loss and gradient of one rank's part."""
    policy = Cave(20, (3,))
    loss_fn = InfoNCE(0.1, policy)
    for step in range(3):
        ids = torch.randperm(20, generator=torch.Generator().manual_seed(step))[:16].chunk(world_size)[rank]
        z1, z2 = noise(2, 20, 5, seed=step).double()[:, ids]
        z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
        loss = loss_fn(z1, z2, ids, progress=step / 3)
        policy.fit(None, step / 3)
    gradient = torch.stack(torch.autograd.grad(loss, (z1, z2)))
    return loss.detach() / world_size, gradient / world_size, dict(loss_fn.state_dict())


def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    loss, gradient, state = steps(0, 1)
    (first_loss, first, first_state), (second_loss, second, second_state) = two_ranks(steps)
    torch.testing.assert_close(first_loss + second_loss, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1), gradient)
    assert all(torch.equal(first_state[name], second_state[name]) for name in state)
    torch.testing.assert_close(first_state, state)


def test_save_load_continue_is_bit_equal(tmp_path: Path) -> None:
    policy = Cave(60, (3, 5))
    policy.fit(noise(60, 6), 0.4)
    torch.save(policy.state_dict(), tmp_path / "saved")
    other = Cave(60, (3, 5), seed=7)
    other.load_state_dict(torch.load(tmp_path / "saved"))
    for one in (policy, other):
        one.fit(noise(60, 6) + 0.3 * noise(60, 6, seed=1), 0.5)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in policy.state_dict().items())
    assert {name: tuple(value.shape) for name, value in policy.export().items()} == {
        "labels_3": (60,), "centroids_3": (3, 6), "labels_5": (60,), "centroids_5": (5, 6),
    }  # fmt: skip


def test_wrong_input_gets_one_sentence() -> None:
    for arguments, sentence in (
        ({"num_samples": 5}, r"between 1 and the 5 samples, got \(10,\)"),
        ({"clusters": ()}, "clusters must be different numbers"),
        ({"every": 0}, "every must be at least 1"),
        ({"space": "pixels"}, "space must be one of features, embeddings, seen"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Cave(**{"num_samples": 60, **arguments})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="call fit first"):
        Cave(60).export()
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.59"):
        Cave(60).judge(Pairs(torch.eye(2), torch.tensor([0, 60]), torch.zeros(2)), 0.5)
