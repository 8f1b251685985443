"""Every kernel that takes a rule looks at the guide's space: against loops in float64, in value and gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import BCL, HCL, Debiased, Guided, InfoNCE
from antipodes.functional.contrast import contrast
from antipodes.functional.masks import flagged_block, judge_block
from antipodes.functional.refine import refine
from antipodes.functional.rule import Bounds, Rule
from antipodes.functional.select import bounded
from antipodes.methods.draws import drawn_sums
from antipodes.negatives import Policy
from antipodes.negatives.flags import find_flags
from antipodes.pairs import Guide, Pairs, normalise
from tests.cases import every
from tests.functional.case import GUIDED, Case, assert_same
from tests.reference import contrast as reference
from tests.reference.draws import drawn_log_sums

TAU = 0.3


def whole(guide: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    return guide[0], guide[0] if guide[1] is None else guide[1]


@pytest.mark.parametrize("ids", ["views", "empty"])
@pytest.mark.parametrize("name", GUIDED)
def test_draws_come_from_what_the_guide_leaves(name: str, ids: str) -> None:
    case = Case(4, symmetric=False, ids=ids)
    rules, guide = case.rules(name), whole(case.guide())
    assert case.candidates is not None
    assert case.candidate_ids is not None
    rest = (case.candidates, case.anchor_ids, case.candidate_ids)
    ours, theirs = case.anchors.clone().requires_grad_(), case.anchors.clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    sums = drawn_sums(
        ours, rest[0], anchor_ids=rest[1], candidate_ids=rest[2], temperature=TAU, rules=rules, samples=6,
        generator=generator, guide=guide,
    )  # fmt: skip
    numbers = torch.rand(len(rules), case.count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, kept = drawn_log_sums(theirs, *rest, TAU, rules, numbers, guide)
    assert torch.equal(sums.kept, kept)
    assert 0 < int(kept.sum()) < kept.numel() * case.others
    torch.testing.assert_close(sums.log_sum, expected)
    some = kept > 0
    weight = torch.linspace(-1, 1, kept.numel(), dtype=torch.float64).view_as(kept)
    gradients = [
        torch.autograd.grad((weight * result.masked_fill(~some, 0.0)).sum(), leaf)[0]
        for result, leaf in ((sums.log_sum, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients)


def test_draws_without_the_guide_are_refused() -> None:
    case = Case(4, symmetric=False)
    assert case.candidates is not None
    assert case.candidate_ids is not None
    arguments: dict[str, Any] = {
        "anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids, "temperature": TAU, "samples": 3,
        "generator": torch.Generator(), "rules": case.rules("guided"),
    }  # fmt: skip
    with pytest.raises(ValueError, match="a rule looks at the guide's space: give guide="):
        drawn_sums(case.anchors, case.candidates, **arguments)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("block", [5, 64])
@pytest.mark.parametrize("name", [name for name in GUIDED if "ranks" not in name and "all joined" not in name])
def test_refining_weighs_what_the_guide_flags(name: str, block: int, symmetric: bool) -> None:
    case = Case(5, symmetric=symmetric)
    rules = [rule.attract() for rule in case.rules(name)]
    teachers = case.embeddings(case.count)
    arguments: dict[str, Any] = {
        "teachers": teachers, "anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids, "temperature": TAU,
        "teacher_temperature": 0.2, "rules": rules, "guide": case.guide(),
    }  # fmt: skip

    def with_gradients(function: Any, **extra: Any) -> list[Tensor]:
        leaves = [None if z is None else z.clone().requires_grad_() for z in (case.anchors, case.candidates)]
        weight, weighted = function(*leaves, **arguments, **extra)
        scale = torch.linspace(-1, 2, weighted.numel(), dtype=torch.float64).view_as(weighted)
        return [weight, weighted, *torch.autograd.grad((scale * weighted).sum(), [z for z in leaves if z is not None])]

    ours = with_gradients(refine, block=block)
    assert bool(ours[0].any()) == (name != "guided band")
    assert_same(ours, with_gradients(reference.refine))


@every("symmetric", [False, True])
@every("name", GUIDED)
def test_looking_at_single_pairs_finds_what_the_kernel_counts(name: str, symmetric: bool) -> None:
    case = Case(6, symmetric=symmetric)
    guide = whole(case.guide())
    keys = case.anchors if case.candidates is None else case.candidates
    key_ids = case.anchor_ids if case.candidate_ids is None else case.candidate_ids
    rules = bounded(case.rules(name), case.anchors, keys, case.anchor_ids, key_ids, guide=guide)
    own = case.anchor_ids[:, None] == key_ids
    sums = contrast(
        case.anchors, keys, anchor_ids=case.anchor_ids, candidate_ids=key_ids, temperature=TAU, rules=rules, guide=guide
    )
    similarities, seen = case.anchors @ keys.T, guide[0] @ guide[1].T
    for number, rule in enumerate(rules):
        judged = judge_block(rule, similarities, guide_similarities=seen)
        assert torch.equal((judged.kept & ~own).sum(1), sums.kept[number])
        assert torch.equal((judged.pulled & ~own).sum(1), sums.pulled[number])
    other = Guide(guide[0], seen[:, 0], guide[1])
    pairs = Pairs(case.anchors, case.anchor_ids, torch.ones(case.count), keys, key_ids, guide=other)
    flags = find_flags(pairs, rules)
    flagged = torch.stack([flagged_block(rule, similarities, guide_similarities=seen) & ~own for rule in rules])
    assert len(flags.anchors) == int(flagged.sum())
    assert bool(flagged[flags.rules, flags.anchors, flags.candidates].all())


@pytest.mark.parametrize("policy", [Debiased(0.05), HCL(0.05, beta=0.5)], ids=["debiased", "hcl"])
def test_a_corrected_sum_is_that_of_what_the_guide_keeps(policy: Policy) -> None:
    """Leaving the candidates out by hand gives the value and the gradient of leaving them out by the guide."""
    generator = torch.Generator().manual_seed(0)
    query, positive = normalise(torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)).unbind(0)
    keys, seen = (torch.randn(9, width, generator=generator, dtype=torch.float64) for width in (4, 3))
    guide = torch.tensor([[1.0, 0.0, 0.0]]).double(), torch.tensor([[0.8, 0.6, 0.0]]).double()
    kept = normalise(seen)[:, 0] <= 0.5
    assert 2 <= int(kept.sum()) <= 7
    ids = torch.tensor([99])
    losses, gradients = [], []
    for chosen, negatives, more in (
        (torch.ones(9, dtype=torch.bool), Guided(margin=0.3) & policy, {"guide": guide, "candidate_guide": seen}),
        (kept, policy, {}),
    ):
        leaf = query.clone().requires_grad_()
        given: dict[str, Any] = {"candidates": keys[chosen], "candidate_ids": torch.arange(9)[chosen], **more}
        loss = InfoNCE(TAU, negatives)(leaf, positive, ids, **given)
        losses.append(loss.detach())
        gradients.append(torch.autograd.grad(loss, leaf)[0])
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)


def test_weights_by_rank_are_those_among_all_candidates() -> None:
    generator = torch.Generator().manual_seed(1)
    query, positive = normalise(torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)).unbind(0)
    keys, seen = (normalise(torch.randn(9, width, generator=generator, dtype=torch.float64)) for width in (4, 3))
    guide = torch.tensor([[1.0, 0.0, 0.0]]).double(), torch.tensor([[0.8, 0.6, 0.0]]).double()
    policy = BCL(0.05, 0.8, 0.7, bands=9)
    ours, theirs = query.clone().requires_grad_(), query.clone().requires_grad_()
    loss = InfoNCE(TAU, Guided(margin=0.3) & policy)(
        ours, positive, torch.tensor([99]), guide=guide,
        candidates=keys, candidate_ids=torch.arange(9), candidate_guide=seen,
    )  # fmt: skip
    similarities = (normalise(theirs) @ keys.T)[0]
    order = similarities.detach().argsort(descending=True).tolist()
    terms = [
        policy.weight(1 - (rank + 0.5) / 9) * (similarities[key] / TAU).exp()
        for rank, key in enumerate(order)
        if seen[key, 0] <= 0.5
    ]
    assert 2 <= len(terms) <= 7
    own = (normalise(theirs) * positive).sum() / TAU
    expected = (own.exp() + torch.stack(terms).sum()).log() - own
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, ours), torch.autograd.grad(expected, theirs))


def test_bounds_of_the_guide_that_leave_nothing_stay_finite() -> None:
    case = Case(7, symmetric=False)
    assert case.candidates is not None
    assert case.candidate_ids is not None
    rule = Rule(guide=Bounds(ceiling=torch.full((case.count,), -2.0)))
    arguments: dict[str, Any] = {"anchor_ids": case.anchor_ids, "candidate_ids": case.candidate_ids, "temperature": TAU}
    leaf = case.anchors.clone().requires_grad_()
    guide, generator = whole(case.guide()), torch.Generator()
    for sums in (
        contrast(leaf, case.candidates, **arguments, rules=rule, guide=guide),
        drawn_sums(leaf, case.candidates, **arguments, rules=[rule], guide=guide, samples=4, generator=generator),
    ):
        assert not int(sums.kept.sum())
        (gradient,) = torch.autograd.grad(torch.nn.functional.softplus(sums.log_sum).sum(), leaf)
        assert not gradient.any()
