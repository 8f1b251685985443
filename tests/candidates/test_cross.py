"""The other modality as candidates: on one rank, and gathered on two; rows and guides go along."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.candidates import MemoryBank, Queue, cross_pairs
from antipodes.pairs import normalise
from tests.ranks import Ranks

IDS = torch.tensor([7, 2, 2, 4])


def scene() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    first, second = normalise(torch.randn(2, 4, 3, generator=draws))
    guide_first, guide_second = normalise(torch.randn(2, 4, 5, generator=draws))
    return first, second, guide_first, guide_second


def test_row_i_of_the_second_is_the_positive_of_anchor_i() -> None:
    first, second, g1, g2 = scene()
    pairs = cross_pairs(first, second, IDS, torch.arange(4) + 10, (g1, g2), torch.linspace(0, 1, 4))
    assert pairs.candidates is second
    torch.testing.assert_close(pairs.positives, torch.stack([first[i] @ second[i] for i in range(4)]))
    assert pairs.available().tolist() == [3, 2, 2, 3]  # 2 and 2 are one sample
    assert [part.tolist() for part in pairs.rows()] == [[10, 11, 12, 13]] * 2
    assert pairs.guide is not None
    torch.testing.assert_close(pairs.guide.positives, (g1 * g2).sum(1))
    assert cross_pairs(first, second, IDS).rows()[0] is IDS


def pairs_on_a_rank(rank: int, world_size: int) -> tuple[Tensor, ...]:
    share = slice(2 * rank, 2 * rank + 2)
    first, second, g1, g2 = (part[share] for part in scene())
    pairs = cross_pairs(first, second, IDS[share], torch.arange(4)[share], (g1, g2), torch.linspace(0, 1, 4)[share])
    assert pairs.guide is not None
    assert pairs.log_weights is not None
    return *pairs.keys(), pairs.rows()[1], pairs.guide.keys(), pairs.log_weights


def test_two_ranks_see_the_candidates_of_one(two_ranks: Ranks) -> None:
    _, second, _, g2 = scene()
    expected = (second, IDS, torch.arange(4), g2, torch.linspace(0, 1, 4))
    for found in two_ranks(pairs_on_a_rank):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_a_queue_keeps_rows_beside_ids() -> None:
    queue = Queue(3, 2)
    queue.push(torch.eye(2), torch.tensor([5, 5]), torch.tensor([50, 51]))
    assert queue.ids.tolist() == [5, 5, -1]
    assert queue.rows.tolist() == [50, 51, -1]
    queue.push(torch.eye(2), torch.tensor([8, 9]))
    assert queue.ids.tolist() == [9, 5, 8]
    assert queue.rows.tolist() == [9, 51, 8]


def test_a_bank_knows_whom_its_rows_show() -> None:
    rows = torch.tensor([2, 0])
    assert torch.equal(MemoryBank(3, 2).identities(rows), rows)
    assert MemoryBank(3, 2, identities=torch.tensor([7, 7, 8])).identities(rows).tolist() == [8, 7]
