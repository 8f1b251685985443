"""Tables by id: reading, writing, refusing, files on disk, checkpoints and ranks."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

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
    with pytest.raises(ValueError, match="num_samples must be at least 1, got 0"):
        SampleTable(0)


def test_state_dict_round_trip() -> None:
    table, other = SampleTable(4, fill=-math.inf), SampleTable(4)
    table.write(torch.tensor([2]), torch.tensor([0.5]))
    other.load_state_dict(table.state_dict())
    assert other.rows.tolist() == [-math.inf, -math.inf, 0.5, -math.inf]


def test_a_file_is_filled_once_and_persists(tmp_path: Path) -> None:
    file = tmp_path / "table"
    table = SampleTable(3, (2,), fill=-1.0, file=str(file))
    table.write(torch.tensor([1]), torch.tensor([[5.0, 6.0]]))
    assert file.stat().st_size == 3 * 2 * 4
    del table
    again = SampleTable(3, (2,), fill=0.0, file=str(file))
    assert again.rows.tolist() == [[-1.0, -1.0], [5.0, 6.0], [-1.0, -1.0]]


def test_a_checkpoint_goes_back_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "table"
    table = SampleTable(3, file=str(file))
    checkpoint = {name: tensor.clone() for name, tensor in table.state_dict().items()}
    table.write(torch.tensor([1]), torch.tensor([5.0]))  # after the checkpoint, lost in a crash
    again = SampleTable(3, file=str(file))
    assert again.rows[1] == 5
    again.load_state_dict(checkpoint)
    assert SampleTable(3, file=str(file)).rows.tolist() == [0.0, 0.0, 0.0]


def test_refuses_the_file_of_another_dataset(tmp_path: Path) -> None:
    file = tmp_path / "table"
    SampleTable(3, file=str(file))
    with pytest.raises(ValueError, match="holds 12 bytes where the table needs 16: it belongs to another dataset"):
        SampleTable(4, file=str(file))
    with pytest.raises(ValueError, match="needs 24"):
        SampleTable(3, dtype=torch.float64, file=str(file))
    assert file.stat().st_size == 12


def test_refuses_a_file_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        SampleTable(3, file=str(tmp_path / "nowhere" / "table"))


def write_on_a_rank(rank: int, world_size: int) -> Tensor:
    table = SampleTable(6, fill=-1.0)
    ids = torch.tensor([[0, 3, 5], [1, 3, 4]][rank])  # both ranks write 3: the later rank wins
    table.write(ids, ids + 10.0 * (rank + 1))
    return table.rows


def test_two_ranks_hold_the_same_table(two_ranks: Ranks) -> None:
    for rows in two_ranks(write_on_a_rank):
        assert rows.tolist() == [10.0, 21.0, -1.0, 23.0, 24.0, 15.0]


def create_a_file_on_a_rank(rank: int, world_size: int, file: str) -> list[float]:
    table = SampleTable(1_000_000, fill=-1.0, file=file)
    before = table.read(torch.tensor([999_999])).item()
    table.write(torch.tensor([rank]), torch.tensor([float(rank)]))
    return [before, *table.read(torch.tensor([0, 1, 2])).tolist()]


def test_two_ranks_create_and_share_one_file(two_ranks: Ranks, tmp_path: Path) -> None:
    for attempt in range(5):  # a race between the ranks shows in some attempts only
        for values in two_ranks(create_a_file_on_a_rank, str(tmp_path / f"table{attempt}")):
            assert values == [-1.0, 0.0, 1.0, -1.0]
