"""The queue: first in, first out, by hand; its ids keep an anchor's own stale keys out of the loss."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from antipodes import InfoNCE, Oracle
from antipodes.candidates import Queue
from tests.ranks import Ranks


def push(queue: Queue, *ids: int) -> None:
    """Push keys whose entries are their ids."""
    queue.push(torch.tensor(ids, dtype=torch.float32)[:, None].expand(-1, queue.keys.shape[1]), torch.tensor(ids))


def test_a_new_queue_is_empty() -> None:
    queue = Queue(3, 2)
    assert queue.ids.tolist() == [-1, -1, -1]
    assert queue.keys.tolist() == [[0.0, 0.0]] * 3


def test_first_in_first_out_with_wrap_around() -> None:
    queue = Queue(5, 2)
    push(queue, 10, 11)
    assert queue.ids.tolist() == [10, 11, -1, -1, -1]
    push(queue, 12, 13)
    assert queue.ids.tolist() == [10, 11, 12, 13, -1]
    push(queue, 14, 15)  # the sixth key replaces the first
    assert queue.ids.tolist() == [15, 11, 12, 13, 14]
    push(queue, 16)
    assert queue.ids.tolist() == [15, 16, 12, 13, 14]
    assert queue.keys[:, 1].tolist() == [15.0, 16.0, 12.0, 13.0, 14.0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=8))
def test_holds_the_last_keys_whatever_the_batch_sizes(size: int, batches: list[int]) -> None:
    queue = Queue(size, 1)
    pushed: list[int] = []
    for batch in batches:
        new = list(range(len(pushed), len(pushed) + batch))
        queue.push(torch.tensor(new, dtype=torch.float32)[:, None], torch.tensor(new, dtype=torch.int64))
        pushed += new
    held = sorted(pushed[-size:])
    assert sorted(one for one in queue.ids.tolist() if one >= 0) == held
    for key, one in zip(queue.keys[:, 0].tolist(), queue.ids.tolist(), strict=True):
        assert one == -1 or key == one


def test_a_batch_larger_than_the_queue_leaves_its_last_keys() -> None:
    queue = Queue(3, 1)
    push(queue, 10)
    push(queue, 11, 12, 13, 14, 15)
    assert sorted(queue.ids.tolist()) == [13, 14, 15]
    push(queue, 16)  # the oldest of the three goes
    assert sorted(queue.ids.tolist()) == [14, 15, 16]


def test_keys_carry_no_graph() -> None:
    queue = Queue(2, 1)
    queue.push(torch.ones(1, 1, requires_grad=True) * 2, torch.tensor([0]))
    assert not queue.keys.requires_grad


def test_save_load_continue_is_bit_equal() -> None:
    queue, copy = Queue(5, 2), Queue(5, 2)
    push(queue, 1, 2, 3)
    copy.load_state_dict(queue.state_dict())
    for one in (queue, copy):
        push(one, 4, 5, 6)
    for name, tensor in queue.state_dict().items():
        assert torch.equal(tensor, copy.state_dict()[name])


def test_refuses_a_queue_without_slots() -> None:
    with pytest.raises(ValueError, match="size must be"):
        Queue(0, 2)


@pytest.mark.parametrize("negatives", [None, Oracle(torch.arange(12) % 3)])
def test_own_stale_copies_and_empty_slots_are_never_negatives(negatives: Oracle | None) -> None:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, 1, 8, generator=generator)
    keys = torch.randn(10, 8, generator=generator)
    ids = torch.tensor([3])
    key_ids = torch.tensor([0, 3, 1, -1, 3, 7, 11, -1, 4, 3])
    others = (key_ids != 3) & (key_ids >= 0)
    results = []
    for columns in (torch.ones(10, dtype=torch.bool), others):
        z = z1.clone().requires_grad_()
        loss_fn = InfoNCE(temperature=0.2, negatives=negatives)
        loss = loss_fn(z, z2, ids, candidates=keys[columns], candidate_ids=key_ids[columns])
        loss.backward()
        results.append((loss.detach(), z.grad, loss_fn.stats))
    torch.testing.assert_close(results[0], results[1])
    assert results[0][2]["kept_per_anchor"] == (5 if negatives is None else 4)  # id 0 shares the label of 3


def push_on_a_rank(rank: int, world_size: int) -> tuple[list[int], Tensor]:
    queue = Queue(7, 2)
    for step in range(2):
        ids = torch.arange(2) + 10 * step + 2 * rank
        queue.push(normalize(torch.stack((ids + 1.0, torch.ones(2)), dim=1), dim=1), ids)
    return queue.ids.tolist(), queue.keys


def test_two_ranks_push_in_rank_order(two_ranks: Ranks) -> None:
    one = Queue(7, 2)
    for step in range(2):
        ids = torch.arange(4) + 10 * step
        one.push(normalize(torch.stack((ids + 1.0, torch.ones(4)), dim=1), dim=1), ids)
    assert one.ids.tolist() == [13, 1, 2, 3, 10, 11, 12]
    for ids_of_rank, keys in two_ranks(push_on_a_rank):
        assert ids_of_rank == one.ids.tolist()
        assert torch.equal(keys, one.keys)
