"""The contract of the kernels: every function, dense and streaming, equals loops in float64 in value and gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from antipodes.functional import stream
from antipodes.functional.contrast import contrast, contrast_both, count_above, sigmoid_sums
from antipodes.functional.refine import refine
from antipodes.functional.rule import Rule
from tests.cases import every
from tests.functional.case import GUIDED, RULES, Case, assert_same
from tests.reference import contrast as reference

TILE = 5 * 5 * 8  # bytes
# which kernel, and how much memory may hold tiles for the backward pass: all of them, none, or the first two
KERNELS: list[tuple[dict[str, Any], int]] = [
    ({"kernel": "dense"}, 0),
    ({"kernel": "stream"}, 2**20),
    ({"kernel": "stream", "block": 5}, 0),
    ({"kernel": "stream", "block": 5}, 2 * TILE),
    ({"kernel": "stream", "block": 5}, 2**20),
]
FUNCTIONS = ["softmax", "offsets", "a temperature per anchor", "sigmoid", "soft sigmoid", "refine"]
Loss = Callable[..., list[Tensor]]


class Kernels:
    """The choices of a kernel, one after the other; tiles are stored as `KERNELS` says while each is used."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for options, stored in KERNELS:
            self._patch.setattr(stream, "STORED_BYTES", stored)
            yield options


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return Kernels(monkeypatch)


def arguments(case: Case, name: str, function: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The leaves that take a gradient, and the other arguments."""
    leaves = {"anchors": case.anchors, "temperature": torch.tensor(0.3, dtype=case.dtype)}
    if case.candidates is not None:
        leaves["candidates"] = case.candidates
    rest: dict[str, Any] = {"anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids}
    rest["rules"] = case.rules(name)
    if name in GUIDED:
        rest["guide"] = case.guide()
    if function == "offsets":
        rest["offsets"] = torch.randn(case.others, generator=case.generator).to(case.dtype)
    elif function == "a temperature per anchor":
        leaves["temperature"] = case.bound(0.1, 0.5)
    elif function == "refine":
        rest |= {"teachers": case.embeddings(case.count), "teacher_temperature": 0.2, "temperature": 0.3}
        del leaves["temperature"]
        rest["rules"] = [rule.attract() for rule in rest["rules"]]
    elif "sigmoid" in function:
        leaves["bias"] = torch.tensor(-1.0, dtype=case.dtype)
        rest["soft"] = function == "soft sigmoid"
    return leaves, rest


def outcome(function: Callable[..., Any], leaves: dict[str, Tensor], rest: dict[str, Any]) -> list[Tensor]:
    """What the function returns, and the gradients of an arbitrary function of it."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
    sums = list(function(**{"candidates": None, **leaves, **rest}))
    total = torch.zeros((), dtype=torch.float64)
    for place, each in enumerate(sums):
        if each.requires_grad:
            weight = torch.linspace(-1, 2 + place, each.numel(), dtype=torch.float64).reshape(each.shape)
            total = total + (softplus(each) * weight).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [
        *sums,
        *(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), grads, strict=True)),
    ]


@every("symmetric", [True, False], ids=["batch", "candidates"])
@every("name", RULES + GUIDED)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_sums_and_gradients_equal_the_loops(function: str, name: str, symmetric: bool, kernels: Kernels) -> None:
    case = Case(11, symmetric=symmetric)
    leaves, rest = arguments(case, name, function)
    ours, loops = {
        "refine": (refine, reference.refine),
        "sigmoid": (sigmoid_sums, reference.sigmoid_sums),
        "soft sigmoid": (sigmoid_sums, reference.sigmoid_sums),
    }.get(function, (contrast, reference.contrast))
    expected = outcome(loops, leaves, rest)
    for kernel in kernels:
        assert_same(outcome(ours, leaves, rest | kernel), expected)


@every("tau", [0.3, 0.001], ids=["no shift", "peaks"])
@every("ids", ["views", "copies", "one", "empty"])
@every("symmetric", [True, False], ids=["batch", "candidates"])
def test_the_kernels_equal_each_other_at_every_temperature(
    symmetric: bool, ids: str, tau: float, kernels: Kernels
) -> None:
    case = Case(12, symmetric=symmetric, ids=ids)
    leaves, rest = arguments(case, "mixed", "softmax")
    leaves["temperature"] = torch.tensor(tau, dtype=case.dtype)
    dense, *streamed = (outcome(contrast, leaves, rest | kernel) for kernel in kernels)
    for each in streamed:
        assert_same(each, dense)


@pytest.mark.parametrize("name", ["none", "all joined, pulled", "guided and own"])
def test_two_directions_equal_the_loops(name: str, kernels: Kernels) -> None:
    case, other = Case(1, symmetric=False), Case(2, symmetric=False)
    other.count, other.others = case.others, case.count
    assert case.candidates is not None
    leaves = {"first": case.anchors, "second": case.candidates, "temperature": torch.tensor(0.3).double()}
    rest = {"first_ids": case.anchor_ids, "second_ids": case.candidate_ids, "guide": case.guide()}
    rest |= {"first_rules": case.rules(name), "second_rules": [*other.rules(name), Rule()]}

    def flat(function: Callable[..., Any]) -> Loss:
        return lambda candidates, **given: [sum for each in function(**given) for sum in each]

    expected = outcome(flat(reference.contrast_both), leaves, rest)
    for kernel in kernels:
        assert_same(outcome(flat(contrast_both), leaves, rest | kernel), expected)


@pytest.mark.parametrize("symmetric", [True, False], ids=["batch", "candidates"])
def test_counts_equal_a_comparison(symmetric: bool, kernels: Kernels) -> None:
    case = Case(3, symmetric=symmetric)
    keys = case.anchors if case.candidates is None else case.candidates
    key_ids = case.anchor_ids if case.candidate_ids is None else case.candidate_ids
    thresholds = case.bound(-0.5, 0.5)
    expected = ((case.anchors @ keys.T > thresholds[:, None]) & (case.anchor_ids[:, None] != key_ids)).sum(1)
    ids = {"anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids}
    for kernel in kernels:
        assert count_above(case.anchors, case.candidates, thresholds, **ids, **kernel).tolist() == expected.tolist()


def test_the_choice_of_a_kernel() -> None:
    case = Case(1, symmetric=True)
    call = {"anchor_ids": case.anchor_ids, "temperature": 0.3}
    with pytest.raises(ValueError, match="kernel must be one of auto, dense, stream"):
        contrast(case.anchors, **call, kernel="sparse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block is the edge of the tiles"):
        contrast(case.anchors, **call, kernel="dense", block=4)
