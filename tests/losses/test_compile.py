"""torch.compile around a user's step: it runs, with one graph break a loss, and is not compiled anew at every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from antipodes import GlobalContrastive, GloFND, InfoNCE, Ring, Sigmoid, TwoWay
from antipodes.losses import LossModule

LOSSES: dict[str, Callable[[], LossModule]] = {
    "plain": lambda: InfoNCE(0.1),
    "glofnd": lambda: InfoNCE(0.1, GloFND(50, alpha=0.1, start=0.2)),
    "ring": lambda: InfoNCE(0.1, Ring()),
    "global": lambda: GlobalContrastive(50, negatives=GloFND(50)),
    "two-way": lambda: TwoWay(Sigmoid()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_step_is_the_step(name: str) -> None:
    def steps(compiled: bool) -> list[float]:
        torch.manual_seed(0)
        encoder, loss_fn = nn.Linear(6, 5), LOSSES[name]()

        def step(first: Tensor, second: Tensor, ids: Tensor, progress: float) -> Tensor:
            loss: Tensor = loss_fn(encoder(first).tanh(), encoder(second).tanh(), ids, progress=progress)
            return 2 * loss

        run = torch.compile(step, backend="eager") if compiled else step
        losses = []
        for number in range(6):
            ids = torch.randperm(50)[:8]
            loss = run(*torch.randn(2, 8, 6), ids, number / 6)
            loss.backward()
            losses.append(loss.item())
        return losses

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    expected = steps(compiled=False)
    assert steps(compiled=True) == pytest.approx(expected, rel=1e-6)
    # before and after the loss; the changing progress is one more of the first at most
    assert counters["stats"]["unique_graphs"] <= 4


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_one_graph_break(name: str) -> None:
    encoder, loss_fn = nn.Linear(6, 5), LOSSES[name]()

    def step(first: Tensor, second: Tensor, ids: Tensor) -> Tensor:
        loss: Tensor = loss_fn(encoder(first).tanh(), encoder(second).tanh(), ids, progress=0.5)
        return 2 * loss

    torch._dynamo.reset()
    explained = torch._dynamo.explain(step)(*torch.randn(2, 8, 6), torch.arange(8))  # type: ignore[no-untyped-call]
    assert (explained.graph_count, explained.graph_break_count) == (2, 1)
