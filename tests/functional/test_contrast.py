import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize, softplus

from antipodes.functional import plan
from antipodes.functional.contrast import Sums, contrast
from antipodes.functional.rule import Group, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.methods.draws import drawn_sums
from tests.cases import every
from tests.functional.case import GUIDED, RULES, Case, assert_same
from tests.reference import contrast as reference


def circle(*degrees: float) -> Tensor:
    """Embeddings on the unit circle: the similarity of two is the cosine of the angle between them."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def both_ways(
    case: Case,
    rules: list[Rule],
    temperature: float | Tensor,
    block: int | None,
    candidate_grad: bool = True,
    **more: Any,
) -> tuple[list[Tensor], list[Tensor]]:
    """Sums and gradients of the kernel and of the reference, for an arbitrary function of the sums."""
    outcomes = []
    for function, extra in ((contrast, {"block": block, **more}), (reference.contrast, more)):
        anchors = case.anchors.clone().requires_grad_()
        candidates = None if case.candidates is None else case.candidates.clone().requires_grad_(candidate_grad)
        tau = temperature.clone().requires_grad_() if isinstance(temperature, Tensor) else temperature
        sums = function(  # type: ignore[operator]
            anchors,
            candidates,
            anchor_ids=case.anchor_ids,
            candidate_ids=case.candidate_ids,
            temperature=tau,
            rules=rules,
            **extra,
        )
        weight = torch.linspace(-1, 2, sums.kept.numel(), dtype=case.dtype).reshape(sums.kept.shape)
        (softplus(sums.log_sum).mul(weight).sum() + sums.pulled_sum.mul(weight.flip(1)).sum()).backward()
        leaves = [x for x in (anchors, candidates, tau) if isinstance(x, Tensor) and x.requires_grad]
        outcomes.append([*sums, *(leaf.grad if leaf.grad is not None else torch.zeros_like(leaf) for leaf in leaves)])
    return outcomes[0], outcomes[1]


@every("name", RULES)
def test_a_queue_takes_its_gradient_along_in_the_forward_pass(name: str) -> None:
    case = Case(2, symmetric=False)
    for temperature in (0.2, torch.tensor(0.3, dtype=torch.float64), case.bound(0.1, 0.5)):
        for block in (5, None):
            assert_same(*both_ways(case, case.rules(name), temperature, block, candidate_grad=False))


@every("symmetric", [True, False])
@every("ids", ["copies", "one", "empty"])
@every("name", ["none", "band", "group", "only", "ceiling pulled", "group pulled", "mixed", "ranks"])
def test_ids_that_repeat_or_are_empty(name: str, ids: str, symmetric: bool) -> None:
    case = Case(4, symmetric=symmetric, ids=ids)
    for block in (5, None):
        assert_same(*both_ways(case, case.rules(name), torch.tensor(0.2, dtype=torch.float64), block))


@every("symmetric", [True, False])
@every("ids", ["views", "copies", "one"])
@every("name", ["none", "group", "all joined, pulled"])
def test_ids_are_compared_like_groups_when_there_are_too_many_to_list(
    name: str, ids: str, symmetric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(7, symmetric=symmetric, ids=ids)
    monkeypatch.setattr(plan, "on_host", lambda tensor: False)
    assert_same(*both_ways(case, case.rules(name), torch.tensor(0.2, dtype=torch.float64), 5))


def test_every_negative_id_is_an_empty_slot_on_every_path() -> None:
    candidates = circle(10, 20, 30, 40, 50, 60)
    ids = {"anchor_ids": torch.tensor([9]), "candidate_ids": torch.tensor([0, -2, 1, -1, 2, -7])}
    every_rank = Rule(ranks=(Ranks(0.0, 1.0),))
    generator = torch.Generator().manual_seed(0)
    for rule in (Rule(), every_rank, every_rank & Rule(high=torch.ones(1, dtype=torch.float64))):
        for block in (2, None):
            sums = contrast(circle(0), candidates, **ids, temperature=0.1, rules=rule, block=block)
            assert sums.kept.item() == 3
        drawn = drawn_sums(
            circle(0), candidates, **ids, temperature=0.1, rules=[rule], samples=2, generator=generator
        )  # fmt: skip
        assert drawn.kept.item() == 3
    assert SameSample(*ids.values()).available.tolist() == [3]


@every("symmetric", [True, False])
@every("name", GUIDED)
def test_a_guide_is_a_second_space(name: str, symmetric: bool) -> None:
    case = Case(8, symmetric=symmetric)
    guide, tau = case.guide(), torch.tensor(0.3, dtype=torch.float64)
    for block in (4, 64, None):
        for candidate_grad in (True, False):
            assert_same(*both_ways(case, case.rules(name), tau, block, candidate_grad, guide=guide))


@every("symmetric", [True, False])
@every("name", ["none", "band", "all joined, pulled", "ranks", "mixed", "nothing left"])
def test_offsets_shift_logits_and_not_what_bounds_compare(name: str, symmetric: bool) -> None:
    case = Case(9, symmetric=symmetric)
    offsets, tau = torch.randn(case.others, generator=case.generator).double(), torch.tensor(0.3, dtype=torch.float64)
    for block in (4, 64, None):
        for candidate_grad in (True, False):
            assert_same(*both_ways(case, case.rules(name), tau, block, candidate_grad, offsets=offsets))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    symmetric=st.booleans(),
    ids=st.sampled_from(["views", "copies", "one", "empty"]),
    first=st.sampled_from(RULES),
    second=st.sampled_from(RULES),
    attract=st.booleans(),
    block=st.one_of(st.none(), st.integers(1, 20)),
    candidate_grad=st.booleans(),
)
def test_any_two_rules_joined_equal_the_reference(
    seed: int,
    symmetric: bool,
    ids: str,
    first: str,
    second: str,
    attract: bool,
    block: int | None,
    candidate_grad: bool,
) -> None:
    case = Case(seed, symmetric=symmetric, ids=ids)
    joined = case.rules(first)[0] & case.rules(second)[-1]
    rules = [joined.attract() if attract else joined, *case.rules(first)]
    assert_same(*both_ways(case, rules, torch.tensor(0.15, dtype=torch.float64), block, candidate_grad))


@every("symmetric", [True, False])
@every("name", RULES)
def test_float32_agrees_to_five_digits(name: str, symmetric: bool) -> None:
    case = Case(5, symmetric=symmetric, dtype=torch.float32)
    fast, slow = both_ways(case, case.rules(name), torch.tensor(0.1), 5)
    assert all(ours.dtype in (torch.float32, torch.int64) for ours in fast)
    assert_same(fast, slow, relative=1e-5)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("per_anchor", [True, False])
def test_gradcheck(symmetric: bool, per_anchor: bool) -> None:
    case = Case(6, symmetric=symmetric)
    rules = [*case.rules("group pulled"), *case.rules("ceiling"), *case.rules("none")]
    temperature = case.bound(0.3, 0.6) if per_anchor else torch.tensor(0.4, dtype=torch.float64)

    def sums(anchors: Tensor, temperature: Tensor, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        result = contrast(
            anchors,
            candidates,
            anchor_ids=case.anchor_ids,
            candidate_ids=case.candidate_ids,
            temperature=temperature,
            rules=rules,
            block=5,
        )
        return result.log_sum, result.pulled_sum

    inputs = [case.anchors, temperature] + ([] if case.candidates is None else [case.candidates])
    assert torch.autograd.gradcheck(sums, [x.clone().requires_grad_() for x in inputs])


def test_bands_on_a_circle_by_hand() -> None:
    """One anchor at 0 degrees, candidates at 30, 60, 90, 120 and 180: similarities .87, .5, 0, -.5, -1."""
    anchor, candidates = circle(0), circle(30, 60, 90, 120, 180)

    def sums(rule: Rule) -> Sums:
        return contrast(
            anchor,
            candidates,
            anchor_ids=torch.tensor([9]),
            candidate_ids=torch.arange(5),
            temperature=0.5,
            rules=rule,
        )

    def expected(*degrees: float) -> float:
        return math.log(sum(math.exp(cosine(degree) / 0.5) for degree in degrees))

    def bound(degrees: float) -> Tensor:
        return torch.tensor([cosine(degrees)], dtype=torch.float64)

    for rule, kept in (
        (Rule(), (30, 60, 90, 120, 180)),
        (Rule(ceiling=bound(45)), (60, 90, 120, 180)),
        (Rule(low=bound(100)), (30, 60, 90)),
        (Rule(low=bound(100), high=bound(45)), (60, 90)),
        (Rule(low=bound(100), high=bound(10), ceiling=bound(75)), (90,)),
    ):
        result = sums(rule)
        assert result.kept.item() == len(kept)
        assert result.log_sum.item() == pytest.approx(expected(*kept), rel=1e-12)
        assert result.pulled.item() == 0
        assert result.pulled_sum.item() == 0

    pulled = sums(Rule(ceiling=bound(75), high=bound(45), above="pull"))
    assert pulled.kept.item() == 4  # 30 degrees is ignored, 60 is pulled and stays in the denominator
    assert pulled.log_sum.item() == pytest.approx(expected(60, 90, 120, 180), rel=1e-12)
    assert pulled.pulled.item() == 1
    assert pulled.pulled_sum.item() == pytest.approx(0.5, rel=1e-12)


def test_groups_on_a_circle_by_hand() -> None:
    """Four samples, one view each; groups 0, 0, -1, -1: a negative number matches nothing, not even itself."""
    views, ids, numbers = circle(0, 60, 120, 240), torch.arange(4), torch.tensor([0, 0, -1, -1])
    drop, only, pull = (Rule(groups=(Group(numbers, numbers, same),)) for same in ("drop", "only", "pull"))
    result = contrast(views, anchor_ids=ids, temperature=1.0, rules=[drop, only, pull])
    assert result.kept.tolist() == [[2, 2, 3, 3], [1, 1, 0, 0], [3, 3, 3, 3]]
    assert result.pulled.tolist() == [[0] * 4, [0] * 4, [1, 1, 0, 0]]
    assert result.log_sum[0, 0].item() == pytest.approx(math.log(2 * math.exp(-0.5)))
    assert result.log_sum[1].tolist() == pytest.approx([0.5, 0.5, -math.inf, -math.inf])
    assert result.pulled_sum[2].tolist() == pytest.approx([0.5, 0.5, 0.0, 0.0])


def test_bounds_are_closed_and_do_not_bind_at_one() -> None:
    anchor = torch.tensor([[1.0, 0.0]])
    candidates = torch.tensor([[0.0, 1.0], [1.0 + 1e-6, 0.0], [-1.0 - 1e-6, 0.0]])

    def kept(**bounds: float) -> int:
        rule = Rule(**{name: torch.tensor([number]) for name, number in bounds.items()})  # type: ignore[arg-type]
        ids = {"anchor_ids": torch.tensor([9]), "candidate_ids": torch.arange(3)}
        return int(contrast(anchor, candidates, **ids, temperature=0.1, rules=rule).kept)

    assert kept(low=0.0, high=0.0) == kept(low=0.0, ceiling=0.0) == 1
    assert kept(low=-1.0, high=1.0) == kept(ceiling=1.0) == 3


@pytest.mark.parametrize("tau", [0.02, 0.01])
def test_small_temperatures_keep_their_digits(tau: float) -> None:
    """With easy positives the loss is tiny: a plain float32 cross entropy rounds it away, this form does not."""
    generator = torch.Generator().manual_seed(0)
    anchors = normalize(torch.randn(64, 16, generator=generator), dim=1)
    positives = normalize(anchors + 0.05 * torch.randn(64, 16, generator=generator), dim=1)
    ids = torch.arange(64)

    def loss(a: Tensor, p: Tensor) -> Tensor:
        sums = contrast(a, p, anchor_ids=ids, candidate_ids=ids, temperature=tau)
        return softplus(sums.log_sum[0] - (a * p).sum(1) / tau)

    exact = loss(anchors.double(), positives.double())
    ours = loss(anchors, positives)
    plain = torch.nn.functional.cross_entropy(anchors @ positives.T / tau, ids, reduction="none")
    assert ((ours - exact).abs() / exact).max() < 3e-7 / tau  # |s|/tau itself is known to this many digits
    assert (ours.double().sum() / exact.sum() - 1).abs() < 5e-6
    assert ((plain - exact).abs() / exact).max() > 0.4


def test_cold_float32_neither_overflows_nor_underflows() -> None:
    views = circle(0, 1, 179, 180).float().requires_grad_()
    far = Rule(ceiling=torch.full((4,), -0.99))  # keeps exp(-1 / tau) only
    result = contrast(views, anchor_ids=torch.arange(4), temperature=0.003, rules=[Rule(), far])
    assert result.log_sum.dtype == torch.float32
    assert result.log_sum.isfinite().all()
    assert result.log_sum[1].max() < -300
    result.log_sum.sum().backward()
    assert views.grad is not None
    assert views.grad.isfinite().all()
    assert views.grad.abs().max() > 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    views = normalize(torch.randn(300, 32, generator=generator), dim=1).to(dtype).requires_grad_()
    ids = torch.arange(150).repeat(2)
    result = contrast(views, anchor_ids=ids, temperature=0.1, block=64)
    exact = contrast(views.detach().double(), anchor_ids=ids, temperature=0.1)
    assert result.log_sum.dtype == torch.float32
    torch.testing.assert_close(result.log_sum.double(), exact.log_sum, rtol=1e-6, atol=0)
    result.log_sum.mean().backward()
    assert views.grad is not None
    assert views.grad.dtype == dtype
    assert views.grad.isfinite().all()


@pytest.mark.parametrize("candidate_grad", [True, False])
def test_nothing_left_gives_minus_infinity_and_no_gradient(candidate_grad: bool) -> None:
    anchors, candidates = circle(0, 90).requires_grad_(), circle(10, 20).requires_grad_(candidate_grad)
    tau = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    result = contrast(
        anchors,
        candidates,
        anchor_ids=torch.tensor([1, 2]),
        candidate_ids=torch.tensor([1, -1]),
        temperature=tau,
    )
    assert result.log_sum.tolist()[0][0] == -math.inf
    assert result.kept.tolist() == [[0, 1]]
    result.log_sum[0, 0].backward()
    for leaf in (anchors, tau, candidates) if candidate_grad else (anchors, tau):
        assert leaf.grad is not None
        assert (leaf.grad == 0).all()


def test_small_and_degenerate_inputs_are_finite() -> None:
    one = contrast(circle(0), anchor_ids=torch.tensor([0]), temperature=0.1)
    assert one.log_sum.item() == -math.inf
    assert one.kept.item() == 0
    none = contrast(
        circle(0).requires_grad_(),
        torch.empty(0, 2, dtype=torch.float64),
        anchor_ids=torch.tensor([0]),
        candidate_ids=torch.empty(0, dtype=torch.int64),
        temperature=0.1,
        rules=[Rule(), Rule(groups=(Group(torch.tensor([0]), torch.empty(0, dtype=torch.int64)),))],
    )
    assert none.log_sum.tolist() == [[-math.inf], [-math.inf]]
    assert none.kept.tolist() == [[0], [0]]
    empty = contrast(torch.empty(0, 2), anchor_ids=torch.empty(0, dtype=torch.int64), temperature=0.1)
    assert empty.log_sum.shape == (1, 0)
    zeros = torch.zeros(4, 2, requires_grad=True)
    result = contrast(zeros, anchor_ids=torch.arange(4), temperature=0.1)
    torch.testing.assert_close(result.log_sum, torch.full((1, 4), math.log(3)))
    result.log_sum.sum().backward()
    assert zeros.grad is not None
    assert (zeros.grad == 0).all()


def test_no_gradient_is_prepared_when_none_is_wanted() -> None:
    views = circle(0, 10, 20, 30).requires_grad_()
    with torch.no_grad():
        assert not contrast(views, anchor_ids=torch.arange(4), temperature=0.1).log_sum.requires_grad
    result = contrast(views, anchor_ids=torch.arange(4), temperature=0.1, block=2)
    (grad,) = torch.autograd.grad(result.log_sum.square().sum(), views, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        grad.sum().backward()


@every(
    ("change", "message"),
    [
        ({"anchors": torch.ones(4)}, r"\(A, D\) and \(C, D\)"),
        ({"anchors": torch.ones(4, 2, dtype=torch.int64)}, "floating dtype"),
        ({"anchors": torch.full((4, 2), torch.nan)}, "anchors hold NaN"),
        ({"candidates": torch.full((3, 2), torch.inf), "candidate_ids": torch.arange(3)}, "candidates hold NaN or inf"),
        ({"candidates": torch.ones(3, 5), "candidate_ids": torch.arange(3)}, r"\(A, D\) and \(C, D\)"),
        ({"candidates": torch.ones(3, 2)}, "must both be given"),
        ({"candidate_ids": torch.arange(4)}, "must both be given"),
        ({"anchor_ids": torch.arange(3)}, r"anchor_ids must be \(4,\)"),
        ({"anchor_ids": torch.ones(4)}, "integers"),
        ({"temperature": 0.0}, "positive"),
        ({"temperature": torch.tensor(torch.nan)}, "positive"),
        ({"temperature": torch.ones(3)}, r"one per anchor, \(4,\)"),
        ({"temperature": 1e-5}, "overflow"),
        ({"rules": []}, "at least one"),
        ({"rules": Rule(low=torch.zeros(3))}, r"Rule.low must hold one bound per anchor"),
        ({"rules": Rule(ceiling=torch.full((4,), torch.nan))}, "Rule.ceiling holds NaN"),
        ({"rules": Rule(above="push")}, "Rule.above"),  # type: ignore[arg-type]
        ({"rules": Rule(groups=(Group(torch.arange(4), torch.arange(3)),))}, r"Group.candidates must be \(4,\)"),
        ({"rules": Rule(groups=(Group(torch.arange(4), torch.arange(4), "push"),))}, "Group.same"),  # type: ignore[arg-type]
        ({"block": 0}, "block must be at least 1"),
    ],
)
def test_refuses_clearly(change: dict[str, object], message: str) -> None:
    arguments = {"anchors": torch.ones(4, 2) / 2, "anchor_ids": torch.arange(4), "temperature": 0.1} | change
    with pytest.raises(ValueError, match=message):
        contrast(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [None, 8], ids=["one tile", "tiles"])
@pytest.mark.parametrize("temperature", [0.01, 0.02])
def test_gradients_of_a_loss_near_zero_do_not_underflow(temperature: float, block: int | None) -> None:
    generator = torch.Generator().manual_seed(5)
    samples = torch.randn(24, 64, generator=generator)
    views = torch.nn.functional.normalize(samples.repeat(2, 1) + 0.05 * torch.randn(48, 64, generator=generator))
    ids, grads = torch.arange(24).repeat(2), []
    for dtype in (torch.float32, torch.float64):
        leaf = views.to(dtype).requires_grad_()
        sums = contrast(leaf, anchor_ids=ids, temperature=temperature, block=block)
        loss = torch.nn.functional.softplus(sums.log_sum - 0.99 / temperature, threshold=1e3).mean()
        assert float(loss.detach()) < 1e-6
        grads.append(torch.autograd.grad(loss, leaf)[0].double())
    ours, exact = grads
    assert float((ours - exact).norm() / exact.norm()) < 1e-4
