"""Refining: against two loops in float64 in value and gradient, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.functional.refine import refine
from antipodes.functional.rule import Group, Rule
from tests.cases import every
from tests.reference import contrast as reference


def unit(count: int, generator: torch.Generator) -> Tensor:
    return normalize(torch.randn(count, 3, generator=generator, dtype=torch.float64), dim=1)


def scene(seed: int, own_candidates: bool, copies: bool) -> dict[str, Any]:
    """Twelve anchors with their teachers; candidates with stale copies of the anchors and empty slots."""
    generator = torch.Generator().manual_seed(seed)
    anchors, teachers = unit(12, generator), unit(12, generator)
    arguments = {
        "anchors": anchors,
        "teachers": teachers,
        "anchor_ids": torch.arange(6).repeat(2) // (3 if copies else 1),
    }
    if not own_candidates:
        arguments["candidates"] = unit(17, generator)
        arguments["candidate_ids"] = torch.randint(-1, 1 if copies else 9, (17,), generator=generator)
    count = 12 if own_candidates else 17
    ceiling, high = torch.rand(2, 12, generator=generator, dtype=torch.float64)
    group = Group(
        torch.randint(-1, 3, (12,), generator=generator), torch.randint(-1, 3, (count,), generator=generator), "pull"
    )
    pulled = Rule(ceiling=ceiling - 0.3, above="pull")
    rules = [pulled, Rule(), Rule(groups=(group,)), pulled & Rule(high=high) & Rule(groups=(group,)), Rule(high=high)]
    return {**arguments, "rules": rules, "temperature": 0.2, "teacher_temperature": 0.13}


def with_gradients(function: Any, arguments: dict[str, Any], **extra: Any) -> list[Tensor]:
    leaves = {name: arguments[name].clone().requires_grad_() for name in ("anchors", "candidates") if name in arguments}
    weight, weighted_sum = function(**{**arguments, **leaves}, **extra)
    scale = torch.linspace(-1, 2, weighted_sum.numel(), dtype=torch.float64).reshape(weighted_sum.shape)
    return [weight, weighted_sum, *torch.autograd.grad((scale * weighted_sum).sum(), list(leaves.values()))]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.sampled_from([1, 5, 64]))
def test_values_and_gradients_equal_two_loops(seed: int, own_candidates: bool, copies: bool, block: int) -> None:
    arguments = scene(seed, own_candidates, copies)
    ours = with_gradients(refine, arguments, block=block)
    for one, other in zip(ours, with_gradients(reference.refine, arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@every("own_candidates", [False, True])
@every("block", [1, 5, 64])
def test_teachers_in_a_space_of_their_own_equal_two_loops(own_candidates: bool, block: int) -> None:
    arguments = scene(7, own_candidates, False)
    generator = torch.Generator().manual_seed(3)
    seen = normalize(torch.randn(12 + 17, 5, generator=generator, dtype=torch.float64), dim=1)
    keys = seen[:12] if own_candidates else seen[12:]
    arguments |= {"teachers": seen[:12], "teacher_keys": keys}
    ours = with_gradients(refine, arguments, block=block)
    for one, other in zip(ours, with_gradients(reference.refine, arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match=r"teachers and teacher_keys must be \(12, G\) and"):
        refine(**{**arguments, "teacher_keys": keys[:, :2]})


@pytest.mark.parametrize("block", [1, 5, 64])
def test_who_is_not_known_pulls_nothing(block: int) -> None:
    arguments = scene(7, False, False)
    seen = normalize(torch.randn(12 + 17, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64), dim=1)
    seen[:3], seen[12:20] = 0.0, 0.0
    arguments |= {"teachers": seen[:12], "teacher_keys": seen[12:]}
    ours = with_gradients(refine, arguments, block=block)
    assert ours[0].any()
    assert not ours[0][:, :3].any()
    for one, other in zip(ours, with_gradients(reference.refine, arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_nothing_pulled_weighs_nothing() -> None:
    arguments = scene(0, True, False) | {"rules": [Rule(), Rule(ceiling=torch.zeros(12))]}
    refined = refine(**arguments)
    assert not refined.weight.any()
    assert not refined.weighted_sum.any()
    assert refined.weight.shape == (2, 12)


def test_a_cold_teacher_stays_finite_in_half_precision() -> None:
    arguments = scene(1, False, False) | {"teacher_temperature": 1e-4, "temperature": 0.01}
    halves = {name: arguments[name].bfloat16() for name in ("anchors", "teachers", "candidates")}
    refined = refine(**{**arguments, **halves})
    assert refined.weight.dtype == torch.float32
    assert bool(refined.weight.isfinite().all())


def test_refusals() -> None:
    arguments = scene(2, False, False)
    with pytest.raises(ValueError, match=r"one embedding per anchor, got \(3, 3\) for \(12, 3\)"):
        refine(**{**arguments, "teachers": arguments["teachers"][:3]})
    with pytest.raises(ValueError, match="teacher_temperature must be positive, got 0"):
        refine(**{**arguments, "teacher_temperature": 0.0})
    with pytest.raises(ValueError, match="must both be given"):
        refine(**{**arguments, "candidate_ids": None})
