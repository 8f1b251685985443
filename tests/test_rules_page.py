"""The table of docs/rules.md: every paper's line is built, called, trained on and asked once more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import antipodes
from antipodes import HardPairs
from antipodes.objectives import LossModule

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text().partition("## Papers as rules")[2]
LINES = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(.+)` \|$", PAGE, flags=re.MULTILINE)
N, B = 24, 12


def test_there_are_at_least_25_papers() -> None:
    assert len({paper for paper, _ in LINES}) >= 25


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
@pytest.mark.parametrize(("paper", "code"), LINES, ids=[paper for paper, _ in LINES])
def test_the_line_of_a_paper_trains(paper: str, code: str) -> None:
    names = {name: getattr(antipodes, name) for name in antipodes.__all__}
    names |= {"n": N, "labels": torch.arange(N) % 3, "groups": torch.arange(N) // 4}
    loss_fn: Any = eval(code, names)
    assert isinstance(loss_fn, LossModule)
    draws = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, B, 6, generator=draws).requires_grad_()
    g1, g2 = torch.randn(2, B, 4, generator=draws)
    ids = torch.randperm(N, generator=draws)[:B]
    for policy in loss_fn.policies():
        if policy.fits:
            policy.fit(torch.randn(N, 6, generator=draws), 0.5)
    more = {} if isinstance(loss_fn, HardPairs) else {"progress": 0.9, "guide": (g1, g2)}
    for _ in range(2):
        loss = loss_fn(z1, z2, ids, **more)
        gradients = torch.autograd.grad(loss, (z1, z2))
        assert loss.isfinite()
        assert all(gradient.isfinite().all() and gradient.any() for gradient in gradients)
