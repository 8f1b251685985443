"""Known: groups and listed pairs by hand, everything flagged, two ranks, saved; files of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from antipodes import InfoNCE, Known, Oracle, Sigmoid
from antipodes.losses import Treatment
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


def write_csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_large_numbers_stay_apart(tmp_path: Path) -> None:
    """float64 has no room for them, and uint64 is more than int64."""
    near = [2**60 + 1, 2**60 + 2, 2**60 + 1]
    huge = [2**64 - 1, 2**64 - 2, 2**64 - 1]
    np.savez(tmp_path / "near.npz", group=near)
    np.savez(tmp_path / "huge.npz", group=np.array(huge, dtype=np.uint64))
    lines = [f"{row},{group}" for row, group in enumerate(huge)]
    for groups in (
        tmp_path / "near.npz",
        write_csv(tmp_path / "near.csv", "row,group", *(f"{row},{group}" for row, group in enumerate(near))),
        near,
        np.array(near),
    ):
        assert Known(groups).groups.tolist() == near
    for groups in (
        tmp_path / "huge.npz",
        write_csv(tmp_path / "huge.csv", "row,group", *lines),
        huge,
        np.array(huge, dtype=np.uint64),
        torch.tensor(huge, dtype=torch.uint64),
        ["0a", "0b", "0a"],
        ["007", "7", "007"],
    ):
        first, second, third = Known(groups).groups.tolist()
        assert first == third != second
        assert min(first, second) >= 0


def test_a_missing_group_is_alone(tmp_path: Path) -> None:
    for name, lines in {
        "numbers": ("row,group", "0,4", "1,", "2,4", "3,-1"),
        "floats": ("row,group", "0,4.0", "1,", "2,4.0", "3,-1.0"),
        "names": ("row,group", "0,cat", "1,", "2,cat", "3,-1"),
        "short": ("row,group", "0,cat", "1", "2,cat", "3,-1"),
    }.items():
        groups = Known(write_csv(tmp_path / f"{name}.csv", *lines)).groups
        assert groups[0] == groups[2] >= 0
        assert groups[[1, 3]].tolist() == [-1, -1]
    assert Known(["a", None, "a", ""]).groups.tolist() == [0, -1, 0, -1]
    np.savez(tmp_path / "a.npz", row=[0, 2], group=[5.0, np.nan])
    assert Known(tmp_path / "a.npz").groups.tolist() == [5, -1, -1]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(
        pyarrow.table({"row": [0, 1, 2], "group": [2**60 + 1, None, 2**60 + 2]}), tmp_path / "a.parquet"
    )
    assert Known(tmp_path / "a.parquet").groups.tolist() == [2**60 + 1, -1, 2**60 + 2]
    parquet.write_table(pyarrow.table({"group": ["x", None, "x"]}), tmp_path / "b.parquet")
    assert Known(tmp_path / "b.parquet").groups.tolist() == [0, -1, 0]


PAIRS, WEIGHTS = [[0, 3], [2, 3], [6, 1]], [0.5, 0.25, 1.0]


def weighted(rank: int, world_size: int, loss_fn: str) -> tuple[Tensor, Tensor]:
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z1, z2 = z1[part].clone().requires_grad_(), z2[part].clone().requires_grad_()
    policy = Known(pairs=PAIRS, weights=WEIGHTS, num_samples=8)
    build = {"softmax": InfoNCE, "sigmoid": Sigmoid}[loss_fn]
    loss = build(0.2, negatives=policy, treatment="attract")(z1, z2, torch.arange(8)[part])
    return loss.detach(), torch.stack(torch.autograd.grad(loss, (z1, z2)))


def test_weights_of_pairs_equal_the_dense_formula() -> None:
    """A pair of weight w counts w like the positive, in both directions and all views."""
    loss, gradient = weighted(0, 1, "softmax")
    z1, z2 = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    z = torch.nn.functional.normalize(torch.cat((z1, z2)), dim=1)
    pulled = torch.zeros(8, 8, dtype=torch.float64)
    for (row, other), weight in zip(PAIRS, WEIGHTS, strict=True):
        pulled[row, other] = pulled[other, row] = weight
    pulled, logits = pulled.repeat(2, 2), z @ z.T / 0.2
    positive = logits.diagonal(8).repeat(2)
    log_sum = logits.masked_fill(torch.eye(16, dtype=torch.bool), -torch.inf).logsumexp(1)
    target = (positive + (pulled * logits).sum(1)) / (1 + pulled.sum(1))
    expected = (log_sum - target).mean()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(gradient, torch.stack(torch.autograd.grad(expected, (z1, z2))))


@pytest.mark.parametrize("loss_fn", ["softmax", "sigmoid"])
def test_weights_on_two_ranks_equal_one(two_ranks: Ranks, loss_fn: str) -> None:
    loss, gradient = weighted(0, 1, loss_fn)
    (first_loss, first), (second_loss, second) = two_ranks(weighted, loss_fn)
    torch.testing.assert_close((first_loss + second_loss) / 2, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1) / 2, gradient)


def test_weights_are_read_saved_and_flag_their_pairs(tmp_path: Path) -> None:
    lines = [f"{row},{other},{weight}" for (row, other), weight in zip(PAIRS, WEIGHTS, strict=True)]
    path = write_csv(tmp_path / "pairs.csv", "row,other,weight", *lines, "3,0,0.5")  # once more, the other way round
    read, given = Known.read(path, num_samples=8), Known(pairs=PAIRS, weights=WEIGHTS, num_samples=8)
    assert all(torch.equal(value, given.state_dict()[name]) for name, value in read.state_dict().items())
    assert "weights" in read.state_dict()
    assert "weights" not in Known(pairs=PAIRS).state_dict()
    other = Known(pairs=PAIRS, weights=[0.0, 0.0, 0.0], num_samples=8)
    other.load_state_dict(given.state_dict())
    pairs = Pairs(torch.eye(8), torch.arange(8), torch.ones(8))
    assert flagged(other, pairs) == [(0, 3), (1, 6), (2, 3), (3, 0), (3, 2), (6, 1)]
    assert (given & Oracle(torch.arange(8))).needs.weighs


def test_refusals_of_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weights say how much pairs are pulled: give treatment='attract'"):
        InfoNCE(0.1, Known(pairs=PAIRS, weights=WEIGHTS))
    for arguments, sentence in (
        ({"groups": GROUPS, "weights": [1.0]}, "weights are those of pairs"),
        ({"pairs": PAIRS, "weights": [0.5, 0.5]}, r"weights must be \(3,\) numbers in \[0, 1\]"),
        ({"pairs": PAIRS, "weights": [0.5, 0.5, 1.5]}, r"weights must be \(3,\) numbers in \[0, 1\]"),
        ({"pairs": PAIRS, "weights": [0.5, 0.5, float("nan")]}, r"weights must be \(3,\) numbers in \[0, 1\]"),
        ({"pairs": [[0, 1], [1, 0]], "weights": [0.5, 0.2]}, r"pairs list \(0, 1\) with different weights"),
        ({"groups": write_csv(tmp_path / "a.csv", "row,other,weight", "0,1,much")}, "weight of .* must be numbers"),
        ({"groups": write_csv(tmp_path / "b.csv", "row,group,weight", "0,1,1")}, "row and group, or row, other"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Known(**arguments)


def test_refusals_of_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "uneven.npz", row=[0, 1], group=[1])
    np.savez(tmp_path / "half.npz", group=[0.5, 1.0])
    np.savez(tmp_path / "blurred.npz", group=[2.0**60])
    for path, sentence in (
        (write_csv(tmp_path / "a.csv", "row,group", "0,1", "-1,2"), "row of .* names row -1: rows are counted from 0"),
        (write_csv(tmp_path / "b.csv", "row,group", "3,1", "0,2", "3,2"), "gives row 3 more than one group"),
        (write_csv(tmp_path / "c.csv", "row,group", ",1"), "row of .* must be whole numbers"),
        (write_csv(tmp_path / "d.csv", "row,other", "0,-2"), "other of .* names row -2"),
        (write_csv(tmp_path / "e.csv", "row,group", f"{2**50},1"), "names row .* num_samples"),
        (tmp_path / "uneven.npz", "must be of one length"),
        (tmp_path / "half.npz", "groups must be whole numbers"),
        (tmp_path / "blurred.npz", "groups must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Known.read(path)
    with pytest.raises(ValueError, match="names row 9: the dataset has at most 5 rows"):
        Known.read(write_csv(tmp_path / "f.csv", "row,group", "9,1"), num_samples=5)
    again = write_csv(tmp_path / "g.csv", "row,group", "1,7", "1,7", "0,7")
    assert Known.read(again).groups.tolist() == [7, 7]


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("row,colour\n0,1\n")
    (tmp_path / "half.csv").write_text("row,group\n0.5,1\n")
    for arguments, sentence in (
        ({}, "known needs to know something"),
        ({"groups": torch.zeros(3)}, "groups must be whole numbers"),
        ({"pairs": torch.zeros(3, 3, dtype=torch.int64)}, r"pairs must be \(L, 2\)"),
        ({"groups": torch.zeros(9, dtype=torch.int64), "num_samples": 5}, "the dataset has only 5 rows"),
        ({"groups": tmp_path / "none.csv"}, "does not exist"),
        ({"groups": tmp_path / "bad.csv"}, "must have columns row and group"),
        ({"groups": tmp_path / "half.csv"}, "must be whole numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Known(**arguments)
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.7"):
        Known(GROUPS).judge(Pairs(torch.eye(2), torch.tensor([0, 9]), torch.ones(2)), 1.0)
