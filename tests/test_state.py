"""Tables by id: reading, writing, refusing, files on disk, checkpoints and ranks."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antipodes import GlobalContrastive, GloFND
from antipodes.distributed import expect_unequal
from antipodes.state import SampleTable, check_ids
from tests.ranks import Ranks


def test_reads_back_what_was_written() -> None:
    table = SampleTable(5, (2,), fill=-1.0)
    table.write(torch.tensor([4, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert table.read(torch.tensor([0, 1, 4])).tolist() == [[3.0, 4.0], [-1.0, -1.0], [1.0, 2.0]]


def test_a_read_is_a_copy() -> None:
    table = SampleTable(3)
    table.read(torch.tensor([1])).fill_(7.0)
    assert table.rows.tolist() == [0.0, 0.0, 0.0]


def test_a_write_keeps_no_graph_and_takes_any_precision() -> None:
    table = SampleTable(3)
    table.write(torch.tensor([1]), torch.tensor([0.5], dtype=torch.float64, requires_grad=True) * 2)
    assert table.rows.tolist() == [0.0, 1.0, 0.0]
    assert not table.rows.requires_grad


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=40))
def test_the_last_of_several_writes_to_one_id_wins(ids: list[int]) -> None:
    table = SampleTable(7, fill=-1.0)
    table.write(torch.tensor(ids, dtype=torch.int64), torch.arange(len(ids), dtype=torch.float32))
    expected = {one: float(position) for position, one in enumerate(ids)}
    assert table.rows.tolist() == [expected.get(one, -1.0) for one in range(7)]


@pytest.mark.parametrize("ids", [[0, 5], [-1], [2**40]])
def test_refuses_ids_outside_the_table(ids: list[int]) -> None:
    table = SampleTable(5)
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.4, got .* size of the dataset"):
        table.read(torch.tensor(ids))
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.4"):
        table.write(torch.tensor(ids), torch.zeros(len(ids)))
    assert not table.rows.any()


@pytest.mark.parametrize("ids", [torch.tensor([0.0]), torch.tensor([0], dtype=torch.int32), torch.tensor([[0]])])
def test_refuses_ids_of_another_kind(ids: Tensor) -> None:
    with pytest.raises(ValueError, match=r"ids must be int64 of shape \(B,\), got"):
        check_ids(ids, 5)


def test_refuses_values_that_do_not_fit_their_ids() -> None:
    with pytest.raises(ValueError, match=r"values must have the shape \(2, 3\)"):
        SampleTable(5, (3,)).write(torch.tensor([0, 1]), torch.zeros(2))


def test_refuses_an_empty_dataset() -> None:
    with pytest.raises(ValueError, match=r"num_samples must be .* got 0"):
        SampleTable(0)


def test_state_dict_round_trip() -> None:
    table, other = SampleTable(4, fill=-math.inf), SampleTable(4)
    table.write(torch.tensor([2]), torch.tensor([0.5]))
    other.load_state_dict(table.state_dict())
    assert other.rows.tolist() == [-math.inf, -math.inf, 0.5, -math.inf]


def test_a_table_in_a_file_is_like_one_in_memory(tmp_path: Path) -> None:
    table = SampleTable(3, (2,), fill=-1.0, folder=str(tmp_path))
    other = SampleTable(3, (2,), folder=str(tmp_path))
    table.write(torch.tensor([1]), torch.tensor([[5.0, 6.0]]))
    assert table.read(torch.tensor([1, 2])).tolist() == [[5.0, 6.0], [-1.0, -1.0]]
    assert not other.rows.any()  # tables share nothing
    assert not list(tmp_path.iterdir())  # nothing is left when the process ends, however it does
    other.load_state_dict(table.state_dict())
    assert torch.equal(other.rows, table.rows)


def test_a_table_in_a_file_is_mapped_and_stays_there(tmp_path: Path) -> None:
    table = SampleTable(100_000, folder=str(tmp_path))
    address = table.rows.data_ptr()
    mapping = next(line for line in Path("/proc/self/maps").read_text().splitlines() if f"{address:x}-" in line)
    assert str(tmp_path) in mapping
    holder = torch.nn.ModuleList([table, SampleTable(2)]).double()
    holder.load_state_dict(holder.state_dict())
    assert (table.rows.data_ptr(), table.rows.dtype) == (address, torch.float32)
    assert holder[1].rows.dtype == torch.float64


def test_refuses_a_folder_that_is_not_there_or_too_small(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere' for tables does not exist: create it first"):
        SampleTable(3, folder=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"needs 4,000,000,000,000 bytes and .* free: choose another folder"):
        SampleTable(10**12, folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


def write_on_a_rank(rank: int, world_size: int) -> Tensor:
    table = SampleTable(6, fill=-1.0)
    ids = torch.tensor([[0, 3, 5], [1, 3, 4]][rank])  # both ranks write 3: the later rank wins
    table.write(ids, ids + 10.0 * (rank + 1))
    return table.rows


def test_two_ranks_hold_the_same_table(two_ranks: Ranks) -> None:
    for rows in two_ranks(write_on_a_rank):
        assert rows.tolist() == [10.0, 21.0, -1.0, 23.0, 24.0, 15.0]


def count_in_a_file_on_a_rank(rank: int, world_size: int, folder: str) -> list[float]:
    table, ids = SampleTable(2, folder=folder), torch.tensor([0, 1])
    for _ in range(50):  # in a file that ranks share, each would go on from what the other has written
        table.write_gathered(ids, table.read(ids) + 1)
    return table.rows.tolist()


def test_two_ranks_have_files_of_their_own(two_ranks: Ranks, tmp_path: Path) -> None:
    assert two_ranks(count_in_a_file_on_a_rank, str(tmp_path)) == [[50.0, 50.0]] * 2


def sharded_on_a_rank(this: int, world: int, folder: str) -> tuple[int, Tensor, list[Tensor], dict[str, Tensor]]:
    """Reads and writes of a table of which every rank holds a share: of other rows on every rank, and of the same."""
    table = SampleTable(11, (2,), fill=-1.0, folder=folder, sharded=True)
    random = torch.Generator().manual_seed(this)
    reads = []
    for _ in range(4):
        ids = torch.randint(11, (3 + this,), generator=random)
        expect_unequal(True)
        table.write(ids, torch.stack((ids + 0.5, ids + 10.0 * this), dim=1))
        expect_unequal(False)
        reads.append(table.read(torch.arange(11)[this::2]))
    every = torch.arange(11)
    table.write_gathered(every[::3], torch.zeros(4, 2), distinct=True)
    again = SampleTable(11, (2,), sharded=True)
    again.load_state_dict(table.state_dict())
    assert torch.equal(again.rows, table.rows)
    return len(table.rows), table.whole(), reads, table.state_dict()


def test_four_ranks_hold_a_quarter_each_of_one_table(tmp_path: Path) -> None:
    expected = SampleTable(11, (2,), fill=-1.0)
    randoms, reads = [torch.Generator().manual_seed(this) for this in range(4)], []
    for _ in range(4):
        drawn = [torch.randint(11, (3 + this,), generator=random) for this, random in enumerate(randoms)]
        values = [torch.stack((ids + 0.5, ids + 10.0 * this), dim=1) for this, ids in enumerate(drawn)]
        expected.write(torch.cat(drawn), torch.cat(values))
        reads.append([expected.read(torch.arange(11)[this::2]) for this in range(4)])
    expected.rows[::3] = 0
    with Ranks(4, tmp_path / "store") as ranks:
        for this, (held, whole, found, state) in enumerate(ranks(sharded_on_a_rank, str(tmp_path))):
            assert held in (2, 3)
            assert torch.equal(whole, expected.rows)
            assert torch.equal(state["rows"], expected.rows)
            assert all(torch.equal(each, step[this]) for each, step in zip(found, reads, strict=True))
        of_one = policy_on_a_rank(0, 1)
        for loss, gradient, table in ranks(policy_on_a_rank):
            torch.testing.assert_close(table, of_one[2], atol=1e-6, rtol=0)
            assert loss.isfinite()
            assert gradient.any()


def policy_on_a_rank(this: int, world: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Two steps of a loss with sharded tables, on this rank's part of the batch."""
    loss_fn = GlobalContrastive(20, 0.2, negatives=GloFND(20, alpha=0.2, sharded=True), sharded=True)
    part = slice(12 * this // world, 12 * (this + 1) // world)
    for seed in range(2):
        random = torch.Generator().manual_seed(seed)
        (z1, z2), ids = torch.randn(2, 12, 4, generator=random), torch.randperm(20, generator=random)[:12]
        z1 = z1[part].clone().requires_grad_()
        loss = loss_fn(z1, z2[part], ids[part])
        loss.backward()
    assert z1.grad is not None
    return loss.detach(), z1.grad, loss_fn.state_dict()
