"""Guides: tables on disk, frozen and momentum networks, a sample's own history; saved, and the same on two ranks."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from antipodes import DatasetNeighbours, Guided, HistoryGuide, InfoNCE, MomentumGuide, NetworkGuide, TableGuide
from antipodes.pairs import normalise
from tests.ranks import Ranks


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_principal_directions_are_those_of_the_singular_values_and_keep_who_is_not_known() -> None:
    table = noise(40, 6) * torch.tensor([5.0, 1.0, 3.0, 0.2, 0.1, 0.05]) + 4.0  # behind a ReLU all point one way
    table[7] = 0.0
    narrow = TableGuide(table).principal(2)
    known = torch.arange(40) != 7
    centred = table[known] - table[known].mean(0)
    u, s, _ = torch.linalg.svd(centred.double(), full_matrices=False)
    projected = u[:, :2] * s[:2]
    # directions may be turned: what counts is which samples look alike
    expected = normalise(projected) @ normalise(projected).T
    found = narrow(torch.arange(40)[known])
    torch.testing.assert_close((found @ found.T).double(), expected, atol=1e-5, rtol=0)
    assert narrow.vectors().shape == (40, 2)
    assert not narrow(torch.tensor([7])).any()
    for dim in (0, 7):
        with pytest.raises(ValueError, match=rf"a guide's dim must be in 1..6, got {dim}"):
            TableGuide(table).principal(dim)


def test_a_table_from_memory_and_from_files(tmp_path: Path) -> None:
    table = noise(9, 4)
    np.save(tmp_path / "table.npy", table.numpy())
    save_file({"embeddings": table}, tmp_path / "table.safetensors")
    save_file({"embeddings": table, "other": table.clone()}, tmp_path / "two.safetensors")
    rows = torch.tensor([4, 0, 4])
    sources = [
        TableGuide(table),
        TableGuide(tmp_path / "table.npy"),
        TableGuide(str(tmp_path / "table.safetensors")),
        TableGuide(tmp_path / "two.safetensors", name="other"),
    ]
    for guide in sources:
        torch.testing.assert_close(guide(rows), normalise(table[rows]))
        assert guide.num_samples == 9
        assert not guide.state_dict()
    for arguments, sentence in (
        (("none.npy",), "does not exist"),
        (("two.safetensors",), "holds embeddings, other: choose one with name="),
        (("two.safetensors", "third"), "holds no third"),
    ):
        with pytest.raises(ValueError, match=sentence):
            TableGuide(tmp_path / arguments[0], *arguments[1:])
    with pytest.raises(ValueError, match=r"a guide's table must be \(n, G\) floats"):
        TableGuide(torch.arange(4))
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.8"):
        sources[0](torch.tensor([9]))


def test_a_table_guides_a_loss_and_finds_neighbours() -> None:
    """Rows of one direction in the table are false negatives, whatever the embeddings say."""
    labels = torch.arange(12) % 3
    guide = TableGuide(torch.eye(3)[labels] + 0.01 * noise(12, 3))
    ids = torch.arange(12)
    loss_fn = InfoNCE(0.1, Guided(margin=0.2))
    loss_fn(*noise(2, 12, 5, seed=1), ids, guide=(guide(ids), guide(ids)))
    assert loss_fn.stats["flagged_share"] == pytest.approx(6 / 22)
    policy = DatasetNeighbours(12, k=3)
    policy.fit(guide.vectors())
    assert bool((labels[policy.table.long()] == labels[:, None]).all())


def test_a_frozen_network_stays_frozen() -> None:
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    guide = NetworkGuide(network).train()
    before = {name: value.clone() for name, value in guide.state_dict().items()}
    images = noise(5, 4)
    vectors = guide(torch.arange(5), images)
    assert not vectors.requires_grad
    torch.testing.assert_close(vectors, normalise(network(images)))
    assert all(torch.equal(before[name], value) for name, value in guide.state_dict().items())
    assert not [parameter for parameter in guide.parameters() if parameter.requires_grad]
    with pytest.raises(ValueError, match="NetworkGuide embeds inputs"):
        guide(torch.arange(5))


def test_a_momentum_network_follows() -> None:
    network = nn.Linear(2, 2)
    guide = MomentumGuide(network, momentum=0.75)
    start = network.weight.detach().clone()
    with torch.no_grad():
        network.weight += 1
    guide.update(network)
    followed = guide.network.weight
    torch.testing.assert_close(followed, start + 0.25)
    guide.eval()
    guide.update(network)
    torch.testing.assert_close(followed, start + 0.25)
    with pytest.raises(ValueError, match=r"momentum must be"):
        MomentumGuide(network, 1.0)


def test_a_history_by_hand() -> None:
    guide = HistoryGuide(4, 2, momentum=0.5)
    east, north = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert guide(torch.tensor([1])).tolist() == [[0, 0]]
    guide.update(torch.tensor([1]), east)
    torch.testing.assert_close(guide(torch.tensor([1])), torch.tensor([[1.0, 0.0]]))
    guide.update(torch.tensor([1]), north)
    torch.testing.assert_close(guide(torch.tensor([1])), normalise(torch.tensor([[1.0, 1.0]])))
    guide.update(torch.tensor([2]), east, north)  # two views of one visit
    torch.testing.assert_close(guide(torch.tensor([2])), normalise(torch.tensor([[1.0, 1.0]])))
    guide.eval()
    guide.update(torch.tensor([2]), east)
    torch.testing.assert_close(guide(torch.tensor([2])), normalise(torch.tensor([[1.0, 1.0]])))
    resumed = HistoryGuide(4, 2, momentum=0.5)
    resumed.load_state_dict(guide.state_dict())
    assert torch.equal(resumed.vectors(), guide.vectors())
    with pytest.raises(ValueError, match="momentum must be in"):
        HistoryGuide(4, 2, momentum=1.0)


def visits(rank: int, world_size: int) -> Tensor:
    guide = HistoryGuide(10, 3)
    for step in range(3):
        rows = torch.randperm(10, generator=torch.Generator().manual_seed(step))[:6]
        rows[5] = rows[0]  # one sample on both ranks
        part = slice(6 * rank // world_size, 6 * (rank + 1) // world_size)
        guide.update(rows[part], noise(6, 3, seed=step)[part])
    return guide.vectors()


def test_a_visit_that_is_not_finite_does_not_count() -> None:
    guide = HistoryGuide(num_samples=4, dim=2, momentum=0.5)
    guide.update(torch.tensor([0]), torch.tensor([[1.0, 0.0]]))
    views = torch.tensor([[math.nan, 0.0], [math.inf, 1.0], [0.0, 3.0]])
    guide.update(torch.tensor([0, 1, 2]), views)
    torch.testing.assert_close(guide.vectors(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    guide.update(torch.tensor([2]), torch.tensor([[0.0, 1.0]]), torch.tensor([[math.nan, 1.0]]))
    guide.update(torch.tensor([3]), views[:1])
    torch.testing.assert_close(guide.vectors()[2:], torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    expected = visits(0, 1)
    for other in two_ranks(visits):
        torch.testing.assert_close(other, expected)
