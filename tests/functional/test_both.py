"""Both directions from one product: against each by itself in float64, in value and gradient."""

from typing import Any

import pytest
import torch

from antipodes.functional.contrast import contrast_both
from antipodes.functional.rule import Rule
from tests.cases import every
from tests.functional.case import GUIDED, RULES, Case, assert_same
from tests.reference import contrast as reference


def scene(name: str, ids: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fourteen of one modality and nineteen of the other, each with rules of its own."""
    case, other = Case(1, symmetric=False, ids=ids), Case(2, symmetric=False)
    other.count, other.others = 19, 14
    assert case.candidates is not None
    leaves = {"first": case.anchors, "second": case.candidates, "temperature": torch.tensor(0.3).double()}
    rest = {
        "first_ids": case.anchor_ids.clone(),
        "second_ids": case.candidate_ids,
        "first_rules": case.rules(name),
        "second_rules": [*other.rules(name), Rule()],
        "guide": case.guide(),
    }
    if ids == "empty":
        rest["first_ids"][1] = -2
    return leaves, rest


def with_gradients(function: Any, leaves: dict[str, Any], rest: dict[str, Any]) -> list[torch.Tensor]:
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    total, results = torch.zeros((), dtype=torch.float64), []
    for sums in function(**leaves, **rest):
        weight = torch.linspace(-1, 2, sums.kept.numel()).double().reshape(sums.kept.shape)
        total = total + torch.nn.functional.softplus(sums[0]).mul(weight).sum() + sums[2].mul(weight.flip(1)).sum()
        results += list(sums)
    return [*results, *torch.autograd.grad(total, list(leaves.values()))]


@every("ids", ["views", "copies", "one", "empty"])
@every("name", ["none", "band", "group pulled", "listed and joined", "ranks", "guided and own"])
def test_ids(name: str, ids: str) -> None:
    leaves, rest = scene(name, ids)
    expected = with_gradients(reference.contrast_both, leaves, rest)
    for block in (4, 64, None):
        assert_same(with_gradients(contrast_both, leaves, {**rest, "block": block}), expected)


@every("name", RULES + GUIDED)
def test_rules(name: str) -> None:
    leaves, rest = scene(name, "views")
    expected = with_gradients(reference.contrast_both, leaves, rest)
    for block in (5, None):
        assert_same(with_gradients(contrast_both, leaves, {**rest, "block": block}), expected)


def test_one_temperature() -> None:
    ids = torch.arange(3)
    with pytest.raises(ValueError, match="both directions share one temperature"):
        contrast_both(torch.eye(3), torch.eye(3), first_ids=ids, second_ids=ids, temperature=torch.ones(3))
