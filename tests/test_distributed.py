"""The gather: order, gradients and layouts, on two real processes; the identity on one."""

import torch
from torch import Tensor

from antipodes.distributed import gather, rank, world_size
from tests.ranks import Ranks


def test_one_process_is_rank_zero_of_one_and_gathers_nothing() -> None:
    tensor = torch.randn(3, 2)
    assert (rank(), world_size()) == (0, 1)
    assert gather(tensor) is tensor


def gather_on_a_rank(this: int, world: int) -> tuple[int, int, Tensor, Tensor]:
    tensor = (torch.arange(4.0).view(2, 2) + 10 * this).requires_grad_()
    gathered = gather(tensor)
    # each rank weighs row j of all ranks by (rank + 1) * j
    ((this + 1) * torch.arange(4.0)[:, None] * gathered).sum().backward()
    assert tensor.grad is not None
    return rank(), world_size(), gathered.detach(), tensor.grad


def test_rows_come_in_rank_order_and_gradients_of_all_ranks_add_up(two_ranks: Ranks) -> None:
    for this, (number, world, gathered, grad) in enumerate(two_ranks(gather_on_a_rank)):
        assert (number, world) == (this, 2)
        assert gathered.tolist() == [[0.0, 1.0], [2.0, 3.0], [10.0, 11.0], [12.0, 13.0]]
        assert grad.tolist() == [[3.0 * j, 3.0 * j] for j in (2 * this, 2 * this + 1)]


def gather_layouts(this: int, world: int) -> list[list[object]]:
    transposed = (torch.arange(6.0).view(3, 2) + 10 * this).T  # (2, 3), dense but not contiguous
    expanded = torch.full((1, 2), float(this)).expand(2, 2)
    return [gather(x).tolist() for x in (transposed, expanded, torch.tensor([this]), torch.tensor([this == 0]))]


def test_layouts_and_dtypes(two_ranks: Ranks) -> None:
    for transposed, expanded, whole, truth in two_ranks(gather_layouts):
        assert transposed == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0], [10.0, 12.0, 14.0], [11.0, 13.0, 15.0]]
        assert expanded == [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]
        assert whole == [0, 1]
        assert truth == [True, False]
