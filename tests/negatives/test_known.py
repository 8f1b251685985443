"""Known: groups and listed pairs by hand, everything flagged, two ranks, saved; files of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antipodes import InfoNCE, Known, Oracle
from antipodes.objectives import Treatment
from antipodes.pairs import Pairs
from tests.ranks import Ranks

GROUPS = torch.tensor([0, 0, -1, 1, 1, -1, 2, 0])


def flagged(policy: Known, pairs: Pairs) -> list[tuple[int, int]]:
    flags = policy.flags(pairs)
    return list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True))


def test_groups_by_hand() -> None:
    pairs = Pairs(torch.eye(5), torch.tensor([0, 1, 2, 3, 5]), torch.ones(5))
    assert flagged(Known(GROUPS), pairs) == [(0, 1), (1, 0)]  # 2 and 5 are alone, though both have -1
    queue = torch.tensor([7, -1, 0, 4, 2])
    pairs = Pairs(torch.eye(5)[:2], torch.tensor([0, 3]), torch.ones(2), torch.eye(5), queue)
    assert flagged(Known(GROUPS), pairs) == [(0, 0), (1, 3)]


def test_listed_pairs_by_hand() -> None:
    policy = Known(pairs=torch.tensor([[0, 3], [2, 3], [6, 7]]), num_samples=8)
    pairs = Pairs(torch.eye(8), torch.tensor([0, 2, 3, 5] * 2), torch.ones(8))
    assert flagged(policy, pairs) == [
        (0, 2), (0, 6), (1, 2), (1, 6), (2, 0), (2, 1), (2, 4), (2, 5),
        (4, 2), (4, 6), (5, 2), (5, 6), (6, 0), (6, 1), (6, 4), (6, 5),
    ]  # fmt: skip
    both = Known(GROUPS, torch.tensor([[2, 5]]))
    assert flagged(both, Pairs(torch.eye(3), torch.tensor([0, 2, 5]), torch.ones(3))) == [(1, 2), (2, 1)]


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_groups_are_labels_that_are_known(treatment: Treatment) -> None:
    z1, z2 = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    ours, theirs = (
        InfoNCE(0.2, policy, treatment)(z1, z2, torch.arange(8)) for policy in (Known(GROUPS), Oracle(GROUPS))
    )
    torch.testing.assert_close(ours, theirs)
    listed = torch.tensor([(i, k) for i in range(8) for k in range(i) if GROUPS[i] == GROUPS[k] >= 0])
    torch.testing.assert_close(InfoNCE(0.2, Known(pairs=listed), treatment)(z1, z2, torch.arange(8)), theirs)


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
@pytest.mark.parametrize("listed", [False, True])
def test_everything_flagged_stays_finite(listed: bool) -> None:
    every = torch.tensor([(i, k) for i in range(4) for k in range(i)])
    policy = Known(pairs=every) if listed else Known(torch.zeros(4, dtype=torch.int64))
    z1, z2 = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss_fn = InfoNCE(0.1, policy)
    loss = loss_fn(z1, z2, torch.arange(4))
    assert loss.isfinite()
    assert loss_fn.stats["kept_per_anchor"] == 0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (z1, z2)))


def one_step(rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z1, z2 = z1[part].clone().requires_grad_(), z2[part].clone().requires_grad_()
    policy = Known(GROUPS, torch.tensor([[2, 5], [0, 6]]))
    loss = InfoNCE(0.1, policy, "attract")(z1, z2, torch.arange(8)[part])
    return loss.detach() / world_size, torch.stack(torch.autograd.grad(loss, (z1, z2))) / world_size


def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    loss, gradient = one_step(0, 1)
    (first_loss, first), (second_loss, second) = two_ranks(one_step)
    torch.testing.assert_close(first_loss + second_loss, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1), gradient)


def test_what_is_known_is_saved() -> None:
    policy = Known(GROUPS, torch.tensor([[2, 5]]))
    other = Known(torch.full((8,), -1), torch.tensor([[0, 1]]))
    other.load_state_dict(policy.state_dict())
    pairs = Pairs(torch.eye(8), torch.arange(8), torch.ones(8))
    assert flagged(other, pairs) == flagged(policy, pairs)


def test_files_of_every_kind(tmp_path: Path) -> None:
    rows, groups = [3, 0, 4], [7, 7, 9]
    (tmp_path / "a.csv").write_text("row,group\n3,7\n0,7\n4,9\n")
    (tmp_path / "names.csv").write_text("row,group\n3,cat\n0,cat\n4,dog\n")
    np.savez(tmp_path / "a.npz", row=rows, group=groups)
    torch.save(torch.tensor([7, -1, -1, 7, 9]), tmp_path / "a.pt")
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    parquet.write_table(pyarrow.table({"row": rows, "group": groups, "path": ["x", "y", "z"]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.npz", "a.pt", "a.parquet"):
        assert Known.read(tmp_path / name).groups.tolist() == [7, -1, -1, 7, 9]
    assert Known.read(tmp_path / "a.csv", num_samples=7).groups.tolist() == [7, -1, -1, 7, 9, -1, -1]
    named = Known(str(tmp_path / "names.csv")).groups
    assert named[0] == named[3] != named[4]
    (tmp_path / "pairs.csv").write_text("row,other\n0,2\n")
    assert flagged(Known.read(tmp_path / "pairs.csv"), Pairs(torch.eye(3), torch.arange(3), torch.ones(3))) == [
        (0, 2), (2, 0)
    ]  # fmt: skip


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("row,colour\n0,1\n")
    (tmp_path / "half.csv").write_text("row,group\n0.5,1\n")
    for arguments, sentence in (
        ({}, "known needs to know something"),
        ({"groups": torch.zeros(3)}, "groups must be whole numbers"),
        ({"pairs": torch.zeros(3, 3, dtype=torch.int64)}, r"pairs must be \(L, 2\)"),
        ({"groups": torch.zeros(9, dtype=torch.int64), "num_samples": 5}, "the dataset has only 5 rows"),
        ({"groups": tmp_path / "none.csv"}, "do not exist"),
        ({"groups": tmp_path / "bad.csv"}, "must have columns row and group"),
        ({"groups": tmp_path / "half.csv"}, "must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Known(**arguments)
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.7"):
        Known(GROUPS).judge(Pairs(torch.eye(2), torch.tensor([0, 9]), torch.ones(2)), 1.0)
