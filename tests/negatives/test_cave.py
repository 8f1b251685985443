"""Cave: candidates of the anchor's cluster by hand, single clusters, two ranks, saved and continued."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antipodes import Cave, Ring
from antipodes.pairs import Pairs


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


def test_due_after_the_first_epochs() -> None:
    assert [epoch for epoch in range(9) if Cave(60, every=3).due(epoch)] == [3, 6]


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
