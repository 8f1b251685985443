"""Sigmoid sums: against two loops in float64 in value and gradient, by hand, and at the edges."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes.functional.contrast import contrast, sigmoid_both, sigmoid_sums
from antipodes.functional.rule import Rule
from tests.cases import every
from tests.functional.case import Case, assert_same
from tests.reference import contrast as reference


def with_gradients(function: Any, case: Case, rules: list[Rule], tau: float, bias: float, **more: Any) -> list[Tensor]:
    leaves = {"anchors": case.anchors, "temperature": torch.tensor(tau).double(), "bias": torch.tensor(bias).double()}
    if case.candidates is not None:
        leaves["candidates"] = case.candidates
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    ids = {"anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids}
    sums = function(**leaves, **ids, rules=rules, **more)
    weight = torch.linspace(-1, 2, sums.kept.numel()).double().reshape(sums.kept.shape)
    total = (sums.loss_sum * weight).sum() + (sums.pulled_loss * weight.flip(1)).sum()
    return [*sums, *torch.autograd.grad(total, list(leaves.values()))]


@every("symmetric", [True, False])
@every("ids", ["copies", "one", "empty"])
@every("name", ["none", "ceiling pulled", "mixed"])
def test_ids_that_repeat_or_are_empty(name: str, ids: str, symmetric: bool) -> None:
    case = Case(4, symmetric=symmetric, ids=ids)
    rules = case.rules(name)
    expected = with_gradients(reference.sigmoid_sums, case, rules, 0.1, -10.0)
    for block in (5, None):
        assert_same(with_gradients(sigmoid_sums, case, rules, 0.1, -10.0, block=block), expected)


def test_both_directions_equal_each_by_itself() -> None:
    case, turned = Case(1, symmetric=False), Case(2, symmetric=False)
    turned.count, turned.others = 19, 14
    assert case.candidates is not None
    first_rules, second_rules = case.rules("all joined, pulled"), turned.rules("mixed")
    options = {"temperature": 0.2, "bias": -2.0}
    one, other = sigmoid_both(
        case.anchors, case.candidates, first_ids=case.anchor_ids, second_ids=case.candidate_ids,
        first_rules=first_rules, second_rules=second_rules, **options,
    )  # fmt: skip
    ids = {"anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids}
    assert_same(list(one), list(sigmoid_sums(case.anchors, case.candidates, **ids, rules=first_rules, **options)))
    ids = {"anchor_ids": case.candidate_ids, "candidate_ids": case.anchor_ids}
    assert_same(list(other), list(sigmoid_sums(case.candidates, case.anchors, **ids, rules=second_rules, **options)))


def test_pulled_pairs_leave_the_negatives_and_stay_in_the_softmax() -> None:
    case = Case(3, symmetric=True)
    rules = case.rules("group pulled")
    shared = {"anchor_ids": case.anchor_ids, "temperature": 0.2, "rules": rules}
    sigmoid, softmax = sigmoid_sums(case.anchors, bias=0.0, **shared), contrast(case.anchors, **shared)
    assert torch.equal(sigmoid.kept, softmax.kept)
    assert torch.equal(sigmoid.pulled, softmax.pulled)


@pytest.mark.parametrize("symmetric", [True, False])
def test_cold_float32_is_exact(symmetric: bool) -> None:
    """At a temperature of .005 logits reach 200: e^200 is no float32, softplus(200) and softplus(-200) are."""
    case = Case(5, symmetric=symmetric, dtype=torch.float32)
    rules = case.rules("ceiling pulled")
    expected = with_gradients(reference.sigmoid_sums, case, rules, 0.005, -10.0)
    assert_same(with_gradients(sigmoid_sums, case, rules, 0.005, -10.0, block=5), expected, relative=1e-5)


def test_by_hand_and_at_the_edges() -> None:
    sums = sigmoid_sums(torch.eye(2), anchor_ids=torch.arange(2), temperature=0.5, bias=-1.0)
    assert sums.loss_sum.tolist()[0] == pytest.approx([math.log1p(math.exp(-1))] * 2)
    none = Rule(low=torch.full((2,), 0.5))
    anchors = torch.eye(2).requires_grad_()
    sums = sigmoid_sums(anchors, anchor_ids=torch.zeros(2).long(), temperature=0.5, rules=[Rule(), none])
    assert sums.loss_sum.tolist() == [[0, 0], [0, 0]]
    sums.loss_sum.sum().backward()
    assert anchors.grad is not None
    assert not anchors.grad.any()
    with pytest.raises(ValueError, match="one bias for all pairs"):
        sigmoid_sums(torch.eye(2), anchor_ids=torch.arange(2), temperature=0.5, bias=torch.zeros(2))
