"""Low temperatures: float32 down to .005 on every path, against float64 in value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from antipodes.functional.contrast import contrast, contrast_both, sigmoid_sums
from antipodes.functional.refine import refine
from antipodes.functional.rule import Bounds, Group, Listed, Ranks, Rule
from antipodes.losses.soft_cross_entropy import soft_cross_entropy
from tests.cases import every

COUNT, KEYS, DIMENSIONS = 48, 60, 32
ODD = ["nobody", "the first is opposite to all", "the last is opposite to all", "the last are twins"]


def embeddings(count: int, seed: int) -> Tensor:
    """Vectors in clusters, so that similarities go from -.5 to .95."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, DIMENSIONS, generator=torch.Generator().manual_seed(7))
    which = torch.randint(0, 6, (count,), generator=generator)
    return normalize(centres[which] + 0.4 * torch.randn(count, DIMENSIONS, generator=generator), dim=1)


def rule(name: str, keys: int) -> Rule:
    generator = torch.Generator().manual_seed(3)
    low, high = torch.full((COUNT,), -0.3), torch.full((COUNT,), 0.5)  # no similarity is within rounding of these
    groups = torch.randint(0, 4, (COUNT,), generator=generator), torch.randint(0, 4, (keys,), generator=generator)
    places = torch.randint(0, COUNT, (40,), generator=generator), torch.randint(0, keys, (40,), generator=generator)
    return {
        "plain": Rule(),
        "band": Rule(low=low, high=high),
        "ceiling pulled": Rule(ceiling=high, above="pull"),
        "groups": Rule(groups=(Group(*groups),)),
        "lists": Rule(lists=(Listed(*places),)),
        "ranks": Rule(ranks=(Ranks(5, 30),)),
        "far ranks": Rule(ranks=(Ranks(30, 40),)),
        "guide": Rule(guide=Bounds(ceiling=high)),
    }[name]


def both_precisions(function: Any, leaves: dict[str, Tensor]) -> list[list[Tensor]]:
    """Results and gradients of the leaves in float32 and, of the very same numbers, in float64."""
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        inputs = {name: leaf.to(dtype).requires_grad_() for name, leaf in leaves.items()}
        loss, results = function(**inputs)
        assert all(result.dtype in (dtype, torch.int64) for result in results)
        outcomes.append([*results, *torch.autograd.grad(loss, list(inputs.values()))])
    return outcomes


def assert_close(outcomes: list[list[Tensor]]) -> None:
    """The error of a tensor, relative to its length."""
    for ours, exact in zip(*outcomes, strict=True):
        ours, exact = ours.double(), exact.double()
        assert torch.equal(ours == -torch.inf, exact == -torch.inf)
        ours, exact = (x.masked_fill(x == -torch.inf, 0.0) for x in (ours, exact))
        assert bool(ours.isfinite().all())
        length = max(float(torch.linalg.vector_norm(exact)), 1e-30)
        assert float(torch.linalg.vector_norm(ours - exact)) < 1e-5 * length


def as_dtype(given: Rule, dtype: torch.dtype) -> Rule:
    cast = {name: bound.to(dtype) for name, bound in given.bounds.named}
    return Rule(**cast, above=given.above, groups=given.groups, lists=given.lists, ranks=given.ranks, guide=given.guide)


@every("tau", [0.01, 0.005])
@every("block", [16, None])
@pytest.mark.parametrize("kind", ["symmetric", "pairs", "queue", "per anchor"])
@every("name", ["plain", "band", "ceiling pulled", "groups", "lists", "ranks", "far ranks", "guide"])
def test_contrast(name: str, kind: str, block: int | None, tau: float) -> None:
    symmetric = kind == "symmetric"
    anchors, keys = embeddings(COUNT, 0), embeddings(KEYS, 1)
    ids, key_ids = torch.arange(COUNT // 2).repeat(2), torch.arange(KEYS)
    guides = embeddings(COUNT, 4), embeddings(COUNT if symmetric else KEYS, 4 if symmetric else 5)
    leaves = {"anchors": anchors}
    if kind in ("pairs", "per anchor"):
        leaves["candidates"] = keys
    temperatures = torch.linspace(tau, 2 * tau, COUNT) if kind == "per anchor" else tau

    def loss(anchors: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        others = None if symmetric else keys.to(anchors) if candidates is None else candidates
        temperature = temperatures.to(anchors) if isinstance(temperatures, Tensor) else temperatures
        sums = contrast(
            anchors,
            others,
            anchor_ids=ids,
            candidate_ids=None if symmetric else key_ids,
            temperature=temperature,
            rules=as_dtype(rule(name, COUNT if symmetric else KEYS), anchors.dtype),
            guide=(guides[0], None if symmetric else guides[1]),
            block=block,
        )
        weighted = sums.log_sum.masked_fill(sums.kept == 0, 0.0) * torch.linspace(0.5, 1, COUNT).to(anchors)
        return weighted.sum() + sums.pulled_sum.sum(), list(sums)

    assert_close(both_precisions(loss, leaves))


@pytest.mark.parametrize("tau", [0.01, 0.005])
@pytest.mark.parametrize("block", [16, None])
def test_both_directions_and_a_learned_temperature(block: int | None, tau: float) -> None:
    ids = torch.arange(COUNT)

    def loss(first: Tensor, second: Tensor, temperature: Tensor) -> tuple[Tensor, list[Tensor]]:
        ceiling = Rule(ceiling=torch.full((COUNT,), 0.5).to(first))
        one, other = contrast_both(
            first, second, first_ids=ids, second_ids=ids, temperature=temperature,
            first_rules=ceiling, second_rules=Rule(), block=block,
        )  # fmt: skip
        return softplus(one.log_sum).sum() + softplus(other.log_sum).mean(), [*one, *other]

    leaves = {"first": embeddings(COUNT, 0), "second": embeddings(COUNT, 1), "temperature": torch.tensor(tau)}
    assert_close(both_precisions(loss, leaves))


@pytest.mark.parametrize("kind", ["batch", "two directions"])
@every("name", ["plain", "ceiling", "groups", "nothing kept"])
@every("odd", ODD)
@every("block", [16, None])
def test_sums_of_anchors_may_be_far_apart(kind: str, name: str, odd: str, block: int | None) -> None:
    """One anchor is opposite to all others or has a twin; another has all of its pairs flagged."""
    first, second = alike_but(odd)
    ceilings = torch.full((COUNT,), 0.5)
    if name == "nothing kept":
        ceilings[3] = -1.0
    groups = torch.arange(COUNT) % 5
    only = Rule(groups=(Group(groups, groups),)) if name == "groups" else Rule()

    def loss(first: Tensor, second: Tensor, temperature: Tensor) -> tuple[Tensor, list[Tensor]]:
        rules = Rule(ceiling=ceilings.to(first)) if name in ("ceiling", "nothing kept") else only
        if kind == "batch":
            ids = {"anchor_ids": torch.arange(COUNT)}
            sums = [*contrast(first + 0 * second, **ids, temperature=temperature, rules=rules, block=block)]
        else:
            ids = {"first_ids": torch.arange(COUNT), "second_ids": torch.arange(COUNT)}
            both = contrast_both(
                first, second, **ids, temperature=temperature, first_rules=rules, second_rules=rules, block=block
            )
            sums = [*both[0], *both[1]]
        total = sum(softplus(log_sum).sum() for log_sum in sums[::4])
        return total, sums

    assert_close(both_precisions(loss, {"first": first, "second": second, "temperature": torch.tensor(0.005)}))


def alike_but(odd: str) -> tuple[Tensor, Tensor]:
    """Two views of samples whose nearest ones are about equally near, but for odd ones."""
    generator = torch.Generator().manual_seed(0)
    first = normalize(torch.randn(COUNT, DIMENSIONS, generator=generator), dim=1)
    if "opposite" in odd:
        first = normalize(first[:1] + 0.5 * first, dim=1)
        lonely = 0 if "first" in odd else -1
        first[lonely] = -first[1]
    second = normalize(first + 0.02 * torch.randn(COUNT, DIMENSIONS, generator=generator), dim=1)
    if odd == "the last are twins":
        first[-2], second[-2] = first[-1], second[-1]
    return first, second


def test_where_everything_is_flagged_nothing_is_summed_and_nothing_is_handed_on() -> None:
    """Also where an anchor that keeps nothing lies in tiles of both kinds."""
    anchors = embeddings(COUNT, 0).requires_grad_()
    every = Rule(ceiling=torch.full((COUNT,), -1.0))
    sums = contrast(anchors, anchor_ids=torch.arange(COUNT), temperature=0.005, rules=every, block=16)
    assert not sums.kept.any()
    assert bool((sums.log_sum == -torch.inf).all())
    first = torch.zeros(16, 4)
    first[:, 0], first[1:, 1] = 1.0, 0.01
    second = torch.zeros(16, 4)
    second[:8, 0], second[:8, 2], second[8:, 0] = -0.6, 0.8, 1.0
    first, second = (normalize(each, dim=1).requires_grad_() for each in (first, second))
    ceilings, ids = torch.full((16,), 2.0), torch.arange(16)
    ceilings[0] = -1.0
    one, other = contrast_both(
        first, second, first_ids=ids, second_ids=ids + 100, temperature=0.005,
        first_rules=Rule(ceiling=ceilings), second_rules=Rule(), block=8,
    )  # fmt: skip
    assert one.log_sum[0, 0] == -torch.inf
    loss = softplus(one.log_sum[0, 1:]).sum() + softplus(other.log_sum).sum()
    assert all(bool(each.isfinite().all()) for each in torch.autograd.grad(loss, (first, second)))


@pytest.mark.parametrize("tau", [0.1, 0.005])
def test_a_temperature_learns_also_where_the_embeddings_are_frozen(tau: float) -> None:
    def loss(temperature: Tensor) -> tuple[Tensor, list[Tensor]]:
        anchors = embeddings(COUNT, 0).to(temperature)
        sums = contrast(anchors, anchor_ids=torch.arange(COUNT), temperature=temperature, block=16)
        return sums.log_sum.sum(), list(sums)

    assert_close(both_precisions(loss, {"temperature": torch.tensor(tau)}))
    leaves = {"anchors": embeddings(COUNT, 0), "temperature": torch.tensor(tau)}
    learned = [
        torch.autograd.grad(
            contrast(anchors, anchor_ids=torch.arange(COUNT), temperature=leaves["temperature"], block=16)
            .log_sum.sum(), leaves["temperature"],
        )[0]
        for anchors in (leaves["anchors"], leaves["anchors"].requires_grad_())
        if leaves["temperature"].requires_grad_()
    ]  # fmt: skip
    torch.testing.assert_close(learned[0], learned[1])


def test_a_cold_graph_that_is_kept_gives_the_same_gradient_twice() -> None:
    anchors = embeddings(COUNT, 0).requires_grad_()
    sums = contrast(anchors, anchor_ids=torch.arange(COUNT), temperature=0.005, block=16)
    loss = softplus(sums.log_sum - 100).sum()
    first = torch.autograd.grad(loss, anchors, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, anchors)[0])


def test_the_sigmoid() -> None:
    def loss(anchors: Tensor, temperature: Tensor, bias: Tensor) -> tuple[Tensor, list[Tensor]]:
        pull = Rule(ceiling=torch.full((COUNT,), 0.5).to(anchors), above="pull")
        sums = sigmoid_sums(
            anchors, anchor_ids=torch.arange(COUNT), temperature=temperature, bias=bias, rules=pull, block=16
        )
        return sums.loss_sum.sum() + sums.pulled_loss.sum(), list(sums)

    leaves = {"anchors": embeddings(COUNT, 0), "temperature": torch.tensor(0.005), "bias": torch.tensor(-10.0)}
    assert_close(both_precisions(loss, leaves))


def test_refine_and_soft_labels() -> None:
    teachers = embeddings(COUNT, 2)

    def refined(anchors: Tensor) -> tuple[Tensor, list[Tensor]]:
        pull = Rule(ceiling=torch.full((COUNT,), 0.5).to(anchors), above="pull")
        result = refine(
            anchors, teachers=teachers.to(anchors), anchor_ids=torch.arange(COUNT), temperature=0.005,
            teacher_temperature=0.05, rules=pull,
        )  # fmt: skip
        return result.weighted_sum.sum(), list(result)

    def soft(students: Tensor, keys: Tensor) -> tuple[Tensor, list[Tensor]]:
        result = soft_cross_entropy(
            students, teachers.to(students), keys, torch.arange(COUNT), temperature=0.005, teacher_temperature=0.02
        )
        return (result.onehot + result.p + result.q).sum(), [result.onehot, result.p, result.q]

    assert_close(both_precisions(refined, {"anchors": embeddings(COUNT, 0)}))
    assert_close(both_precisions(soft, {"students": embeddings(COUNT, 0), "keys": embeddings(KEYS, 1)}))
