"""A loss can be saved as a whole and copied after a call, and goes on as it would have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from antipodes import FNC, GlobalContrastive, GloFND, HardPairs, InfoNCE, Ring, Sigmoid, Temperature, TwoWay
from antipodes.losses import LossModule
from tests.cases import every

LOSSES: dict[str, Callable[[], LossModule]] = {
    "plain": InfoNCE,
    "glofnd": lambda: InfoNCE(Temperature(0.1, learnable=True), GloFND(9, alpha=0.2), "attract"),
    "ring": lambda: InfoNCE(0.1, Ring((0.9, 0.5)) & FNC(0.1), total_steps=5),
    "global": lambda: GlobalContrastive(9, negatives=GloFND(9, alpha=0.2)),
    "sigmoid": Sigmoid,
    "two": lambda: TwoWay(InfoNCE(0.1, GloFND(9, alpha=0.2))),
    "hard": HardPairs,
}


def call(loss_fn: LossModule, seed: int) -> Tensor:
    z1, z2 = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    loss: Tensor = loss_fn(z1, z2, torch.arange(6))
    return loss


@every("name", LOSSES)
def test_saved_and_copied_after_a_call(name: str, tmp_path: Path) -> None:
    loss_fn = LOSSES[name]()
    call(loss_fn, 0)
    torch.save(loss_fn, tmp_path / "loss.pt")
    again = torch.load(tmp_path / "loss.pt", weights_only=False)
    twin = copy.deepcopy(loss_fn)
    assert again.stats == twin.stats == loss_fn.stats != {}
    expected = call(loss_fn, 1)
    assert torch.equal(call(again, 1), expected)
    assert torch.equal(call(twin, 1), expected)
