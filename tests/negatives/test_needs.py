"""`Needs`: what a policy says about itself, joined in one place, and old flags that are refused."""

from __future__ import annotations

import pytest
import torch

from antipodes import FNC, Cave, Debiased, GloFND, Guided, InfoNCE, Policy, PositiveAware, Ring
from antipodes.negatives.policy import Needs
from antipodes.pairs import Pairs, Rule


def test_needs_are_joined_in_one_place() -> None:
    joined = (FNC(0.1, supports=2) & Guided() & Cave(8, (2,))).needs
    assert joined == Needs(guide=True, positive=True, learn=True, supports=2, fits=True, space="seen")
    assert (Ring(anneal="loss") & FNC(0.1)).needs.receives == "loss"
    assert not (Ring(anneal="loss") & FNC(0.1)).needs.rows
    with pytest.raises(ValueError, match="reweigh"):
        Debiased() & Debiased()
    with pytest.raises(ValueError, match="receives"):
        Ring(anneal="loss") & Ring(anneal="validation")


@pytest.mark.parametrize("old", ["by_row", "hear"])
def test_an_old_flag_says_its_new_name(old: str) -> None:
    with pytest.raises(TypeError, match=r"Mine\.\w+ is now"):
        type("Mine", (Policy,), {old: None})


def test_a_policy_that_needs_learn_is_told() -> None:
    asked = []

    class Asking(Policy):
        needs = Needs(rows=False, learn=True)

        def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Rule:
            asked.append(learn)
            return Rule()

    loss_fn, z = InfoNCE(negatives=Asking() & PositiveAware()), torch.eye(4)
    loss_fn(z, z)
    with torch.no_grad():
        loss_fn(z, z)
    loss_fn.eval()(z, z)
    assert asked == [True, False, False]


def test_dot_products_refuse_each_policy_with_cosines() -> None:
    for policy in (GloFND(4), Debiased(), Ring(anneal="collapse"), FNC(0.1) & GloFND(4)):
        with pytest.raises(ValueError, match=r"\[-1, 1\]"):
            InfoNCE(negatives=policy, similarity="dot")
    assert InfoNCE(negatives=FNC(0.1) & PositiveAware(), similarity="dot")(torch.eye(4), torch.eye(4)).isfinite()
