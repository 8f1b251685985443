"""The memory bank: momentum by hand, draws that repeat, and the same entries on both ranks."""

import math

import pytest
import torch
from torch import Tensor

from antipodes.candidates import MemoryBank
from tests.ranks import Ranks


def unit(degrees: float) -> list[float]:
    return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]


def test_entries_start_as_unit_vectors_that_follow_from_the_seed() -> None:
    rows = MemoryBank(50, 6, seed=3).table.rows
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(50))
    assert torch.equal(rows, MemoryBank(50, 6, seed=3).table.rows)
    assert not torch.equal(rows, MemoryBank(50, 6, seed=4).table.rows)
    assert rows.mean(0).abs().max() < 0.5


def test_nothing_touches_the_global_generator() -> None:
    before = torch.get_rng_state()
    MemoryBank(50, 6).draw(5)
    assert torch.equal(before, torch.get_rng_state())


def test_a_write_mixes_by_the_momentum_and_normalises() -> None:
    bank = MemoryBank(3, 2, momentum=0.25)
    bank.table.rows.copy_(torch.tensor([unit(0), unit(90), unit(180)]))
    bank.write(torch.tensor([1]), torch.tensor([unit(0)]))
    # 0.25 (0, 1) + 0.75 (1, 0), of length sqrt(0.0625 + 0.5625)
    length = math.sqrt(0.0625 + 0.5625)
    assert bank.read(torch.tensor([1]))[0].tolist() == pytest.approx([0.75 / length, 0.25 / length])
    assert bank.table.rows[0].tolist() == pytest.approx(unit(0))
    assert bank.table.rows[2].tolist() == pytest.approx(unit(180), abs=1e-6)


def test_momentum_zero_replaces() -> None:
    bank = MemoryBank(3, 2, momentum=0.0)
    bank.write(torch.tensor([2]), torch.tensor([unit(30)]))
    assert bank.table.rows[2].tolist() == pytest.approx(unit(30))


def test_opposite_entries_that_cancel_stay_finite() -> None:
    bank = MemoryBank(1, 2, momentum=0.5)
    bank.table.rows.copy_(torch.tensor([[1.0, 0.0]]))
    bank.write(torch.tensor([0]), torch.tensor([[-1.0, 0.0]]))
    assert bank.table.rows.isfinite().all()


@pytest.mark.parametrize("momentum", [-0.1, 1.0, math.nan])
def test_refuses_a_momentum_that_makes_no_sense(momentum: float) -> None:
    with pytest.raises(ValueError, match=r"momentum must be"):
        MemoryBank(3, 2, momentum=momentum)


def test_draws_are_entries_with_their_ids_and_differ_from_one_to_the_next() -> None:
    bank = MemoryBank(1000, 4)
    drawn = [bank.draw(300) for _ in range(3)]
    for entries, ids in drawn:
        assert torch.equal(entries, bank.read(ids))
        assert int(ids.min()) >= 0
        assert int(ids.max()) < 1000
    assert not torch.equal(drawn[0][1], drawn[1][1])
    everything = torch.cat([bank.draw(999)[1] for _ in range(30)])
    counts = torch.bincount(everything, minlength=1000)  # uniform: 29.97 each, standard deviation 5.5
    assert int(counts.min()) > 5
    assert int(counts.max()) < 60


def test_a_draw_as_large_as_the_bank_is_the_bank() -> None:
    bank = MemoryBank(10, 4)
    for count in (10, 4096):
        entries, ids = bank.draw(count)
        assert torch.equal(entries, bank.table.rows)
        assert ids.tolist() == list(range(10))


def test_draws_repeat_and_continue_after_a_reload() -> None:
    bank, twin, loaded = (MemoryBank(100, 4) for _ in range(3))
    for _ in range(3):
        assert torch.equal(bank.draw(20)[1], twin.draw(20)[1])
    bank.write(torch.tensor([5]), torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    loaded.load_state_dict({name: tensor.clone() for name, tensor in bank.state_dict().items()})
    for _ in range(3):
        (entries, ids), (entries_again, ids_again) = bank.draw(20), loaded.draw(20)
        assert torch.equal(ids, ids_again)
        assert torch.equal(entries, entries_again)


def steps_on_a_rank(rank: int, world_size: int) -> tuple[Tensor, list[Tensor]]:
    bank = MemoryBank(30, 4)
    return steps(bank, slice(3 * rank, 3 * rank + 3))


def steps(bank: MemoryBank, share: slice) -> tuple[Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = []
    for _ in range(3):
        ids = torch.randperm(30, generator=generator)[:6]
        embeddings = torch.nn.functional.normalize(torch.randn(6, 4, generator=generator), dim=1)
        drawn.append(bank.draw(8)[1])
        bank.write(ids[share], embeddings[share])
    return bank.table.rows, drawn


def test_two_ranks_hold_and_draw_what_one_does(two_ranks: Ranks) -> None:
    rows, drawn = steps(MemoryBank(30, 4), slice(6))
    for rows_of_rank, drawn_of_rank in two_ranks(steps_on_a_rank):
        assert torch.equal(rows_of_rank, rows)
        assert all(torch.equal(a, b) for a, b in zip(drawn, drawn_of_rank, strict=True))
