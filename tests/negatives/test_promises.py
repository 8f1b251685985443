"""What every policy promises: no loss is infinite, whatever it flags, and there is no state but what it declares.

That two ranks equal one, and that a saved run continues bit-equal, is tested for every policy on SimCLR in
tests/methods/test_promises.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from antipodes import (
    BCL,
    FNC,
    HCL,
    IFND,
    Cave,
    Chance,
    DatasetNeighbours,
    Debiased,
    GlobalContrastive,
    GloFND,
    Guided,
    Hardest,
    InfoNCE,
    Known,
    Oracle,
    Policy,
    PositiveAware,
    Ring,
)
from antipodes.negatives import Clustered
from antipodes.negatives.debiased import debias
from tests.cases import every

B = 4
ONE_LABEL = torch.zeros(B, dtype=torch.int64)
EVERY_PAIR = torch.tensor([(i, k) for i in range(B) for k in range(i)])


def fitted(policy: Clustered | DatasetNeighbours) -> Policy:
    policy.fit(torch.eye(B) + 0.1, 0.5)
    return policy


# name -> a policy that flags or ignores as much as it can, and how many of the 2 (B - 1) candidates then stay
FLAG_ALL: dict[str, tuple[Callable[[], Policy], int | None]] = {
    "oracle": (lambda: Oracle(ONE_LABEL), 0),
    "known": (lambda: Known(ONE_LABEL), 0),
    "known pairs": (lambda: Known(pairs=EVERY_PAIR), 0),
    "fnc": (lambda: FNC(0.99), 0),
    "glofnd": (lambda: GloFND(B, alpha=0.99, initial="one", lr=2.0), 0),
    "glofnd's quantile": (lambda: GloFND(B, alpha=0.99), None),
    "ifnd": (lambda: fitted(IFND(B, (1,), acceptance="constant")), 0),
    "neighbours": (lambda: fitted(DatasetNeighbours(B, k=B - 1)), 0),
    "positive-aware": (lambda: PositiveAware(5.0, relative=False), 0),
    "guided": (lambda: Guided(5.0), 0),
    "chance": (lambda: Chance(1 - 1e-9), None),
    "both": (lambda: Oracle(ONE_LABEL) & GloFND(B, alpha=0.5), 0),
    "cave": (lambda: fitted(Cave(B, (B,))), 0),
    "ring": (lambda: Ring(outer=(0.01, 0.01)), 1),
    "hardest": (lambda: Hardest(1000), 2 * (B - 1)),
    "debiased": (lambda: Oracle(ONE_LABEL) & Debiased(0.3), 0),
    "hcl": (lambda: Oracle(ONE_LABEL) & HCL(0.3, 1.0), 0),
    "hardest hcl": (lambda: HCL(0.0, 3.0), 2 * (B - 1)),
    "bcl": (lambda: BCL() & FNC(0.99), 0),
}


@pytest.mark.filterwarnings("ignore")  # of anchors without negatives; test_fnc.py has the warning
@every("name", FLAG_ALL)
def test_everything_flagged_stays_finite(name: str) -> None:
    make, kept = FLAG_ALL[name]
    attracts = name not in ("cave", "ring", "hardest")  # they ignore pairs and flag none
    for treatment in ("eliminate", "attract") if attracts else ("eliminate",):
        for temperature in (0.02, 0.5):
            for loss_fn in (
                InfoNCE(temperature, make(), treatment),  # type: ignore[arg-type]
                GlobalContrastive(B, temperature, negatives=make(), treatment=treatment),  # type: ignore[arg-type]
            ):
                for alike in (True, False):
                    z = torch.randn(2, B, 5, generator=torch.Generator().manual_seed(0))
                    z1, z2 = z[0].clone().requires_grad_(), (z[0] if alike else z[1]).clone().requires_grad_()
                    loss = loss_fn(z1, z2, torch.arange(B), guide=(z[0], z[1]), progress=1.0)
                    assert loss.isfinite()
                    assert all(each.isfinite().all() for each in torch.autograd.grad(loss, (z1, z2)))
                if kept is not None and isinstance(loss_fn, InfoNCE) and treatment == "eliminate":
                    assert loss_fn.stats["kept_per_anchor"] == kept
                assert ("flagged_share" in loss_fn.stats) == attracts


@pytest.mark.filterwarnings("ignore")
@every("name", FLAG_ALL)
def test_one_sample_and_an_empty_queue_stay_finite(name: str) -> None:
    loss_fn = InfoNCE(0.1, FLAG_ALL[name][0]())
    z1, z2 = torch.randn(2, 1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    empty = {"candidates": torch.zeros(3, 5), "candidate_ids": torch.full((3,), -1)}
    guide = (torch.ones(1, 2), torch.ones(1, 2))
    losses: list[Tensor] = [loss_fn(z1, z2, torch.arange(1), guide=guide, progress=1.0)]
    losses.append(
        loss_fn(z1, z2, torch.arange(1), guide=guide, progress=1.0, candidate_guide=torch.zeros(3, 2), **empty)
    )
    for loss in losses:
        assert loss.isfinite()
        assert all(each.isfinite().all() for each in torch.autograd.grad(loss, (z1, z2)))


def test_policies_without_tables_have_nothing_to_save() -> None:
    for policy in (FNC(0.1), Ring(), Hardest(2), Debiased(), HCL(), BCL(), Guided(), PositiveAware()):
        assert not policy.state_dict()


def test_a_sum_without_terms_is_minus_infinity() -> None:
    sums = debias(torch.tensor([[-torch.inf]]), torch.tensor([[0]]), torch.tensor([0.9]), 0.1, 0.5)
    assert sums.item() == -torch.inf
