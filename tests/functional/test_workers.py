"""Tiles shared out among threads: the same sums and gradients as one thread's, the same every time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from antipodes.functional.contrast import contrast, contrast_both, count_above, sigmoid_sums
from antipodes.functional.refine import refine
from antipodes.functional.rule import Rule
from antipodes.functional.stream import share_out
from tests.cases import every

COUNT = 90
IDS = torch.arange(COUNT // 2).repeat(2)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def views(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(COUNT, 6, generator=generator, dtype=torch.float64), dim=1)


def pulling(first: Tensor, _: Tensor, tau: float) -> list[Tensor]:
    return [*contrast(first, anchor_ids=IDS, temperature=tau, rules=_ceiling().attract(), block=16)]


def dropping(first: Tensor, _: Tensor, tau: float) -> list[Tensor]:
    return [*contrast(first, anchor_ids=IDS, temperature=tau, rules=[Rule(), _ceiling()], block=16)]


def queue(first: Tensor, second: Tensor, tau: float) -> list[Tensor]:
    ids = torch.arange(COUNT) + 20
    keys = second.detach()
    return [
        *contrast(first, keys, anchor_ids=IDS, candidate_ids=ids, temperature=tau, rules=_ceiling().attract(), block=16)
    ]


def both(first: Tensor, second: Tensor, tau: float) -> list[Tensor]:
    ids = torch.arange(COUNT)
    one, other = contrast_both(
        first, second, first_ids=ids, second_ids=ids, temperature=tau, first_rules=_ceiling(), block=16
    )
    return [*one, *other]


def sigmoid(first: Tensor, _: Tensor, tau: float) -> list[Tensor]:
    return [*sigmoid_sums(first, anchor_ids=IDS, temperature=tau, bias=-2.0, rules=_ceiling(), block=16)]


def refined(first: Tensor, second: Tensor, tau: float) -> list[Tensor]:
    found = refine(
        first, second, teachers=first.detach(), anchor_ids=IDS, candidate_ids=torch.arange(COUNT) + 20,
        temperature=tau, teacher_temperature=tau, rules=_ceiling().attract(), block=16,
    )  # fmt: skip
    return [*found]


def counted(first: Tensor, _: Tensor, __: float) -> list[Tensor]:
    return [count_above(first.detach(), None, torch.full((COUNT,), 0.3), anchor_ids=IDS, block=16)]


Kernel = Callable[[Tensor, Tensor, float], list[Tensor]]


def run(kernel: Kernel, tau: float, count: int) -> list[Tensor]:
    torch.set_num_threads(count)
    first, second = views().requires_grad_(), views(1).requires_grad_()
    outputs = kernel(first, second, tau)
    assert torch.get_num_threads() == count
    weights = torch.linspace(0.5, 1.5, COUNT, dtype=torch.float64)
    total = sum((weights * each).sum() for each in outputs if each.requires_grad)
    if isinstance(total, Tensor):
        grads = torch.autograd.grad(total, (first, second), allow_unused=True)
        outputs += [each for each in grads if each is not None]
    return [each.detach() for each in outputs]


@every("tau", [0.2, 0.001], ids=["warm", "cold"])
@every("kernel", [pulling, dropping, queue, both, sigmoid, refined, counted])
def test_several_threads_are_one(kernel: Kernel, tau: float) -> None:
    alone = run(kernel, tau, 1)
    for count in (2, 3):
        batch_neighbours = run(kernel, tau, count)
        for ours, theirs in zip(batch_neighbours, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        for again, once in zip(run(kernel, tau, count), batch_neighbours, strict=True):
            assert torch.equal(again, once)


def test_what_goes_wrong_in_a_worker_is_told() -> None:
    torch.set_num_threads(2)

    def part(tiles: object) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        share_out([_tile(), _tile()], torch.device("cpu"), part)
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own() -> None:
    expected = run(counted, 0.2, 2)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(run(counted, 0.2, 2)[0], expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def _ceiling() -> Rule:
    return Rule(ceiling=torch.linspace(-0.2, 0.6, COUNT, dtype=torch.float64))


def _tile() -> object:
    from antipodes.functional.masks import Tile

    return Tile(0, slice(0, 1), slice(0, 1), (1, 1), False, None)
