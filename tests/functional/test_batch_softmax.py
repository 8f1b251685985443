"""The softmax losses as one operation: against loops in float64, in value and gradient, and in odd cases."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from antipodes import GloFND, InfoNCE, Oracle, Policy, Ring
from antipodes.functional.normalise import measure, paired_similarity
from antipodes.functional.plan import Inputs
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.softmax_losses import SoftmaxLosses, Views, softmax_losses
from tests.cases import every
from tests.reference.contrast import contrast as reference


def scene(ids: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    views = torch.randn(2 * len(ids), 5, generator=generator, dtype=torch.float64)  # of any length
    return views.to(dtype).requires_grad_(), torch.tensor(ids).repeat(2)


FORMS = {"batch": (True, 1), "one way": (False, 1), "two ways": (False, 2)}


def direct(
    raw: Tensor, same: SameSample, temperature: float | Tensor, rule: Rule, form: str = "batch", product: bool = True
) -> list[SoftmaxLosses]:
    """The losses of rows as they were given; without the product by the general plan."""
    shared, directions = FORMS[form]
    measured = measure(raw)
    unit, half = measured.unit, len(raw) // 2
    anchors, candidates = (unit, None) if shared else (unit[:half], unit[half:])
    others = unit if candidates is None else candidates
    inputs = Inputs(
        anchors, candidates, same.anchor_ids, None if shared else same.candidate_ids, temperature, rule,
        rule if directions == 2 else None, same_sample=same, product=anchors @ others.T if product else None,
    )  # fmt: skip
    return softmax_losses(Views(*raw.chunk(2), measured), inputs)


@every(
    ("ids", "known"),
    [([4, 7, 1, 9, 2], True), ([4, 7, 1, 9, 2], False), ([4, 7, 4, 9, 9], False)],
    ids=["known to differ", "distinct", "repeated"],
)
@every("ceiling", [None, 0.3, -2.0, 1.0])
@every(
    ("temperature", "dtype", "tolerance"),
    [(0.01, torch.float64, 1e-8), (0.01, torch.float32, 1e-5), (0.5, torch.float32, 1e-5)],
)
def test_losses_and_gradients_equal_the_reference(
    ids: list[int], known: bool, ceiling: float | None, temperature: float, dtype: torch.dtype, tolerance: float
) -> None:
    for form in FORMS:
        for product in (True, False):  # planned in few steps, or as any call of the kernels
            check_losses(form, product, ids, known, ceiling, temperature, dtype, tolerance)


def check_losses(
    form: str, product: bool, ids: list[int], known: bool, ceiling: float | None, temperature: float,
    dtype: torch.dtype, tolerance: float,
) -> None:  # fmt: skip
    """Compare value, numbers kept and gradients of one form with loops in float64."""
    raw, both = scene(ids, dtype)
    shared = FORMS[form][0]
    every = both if shared else both[: len(ids)]
    count = len(every)
    bounds = None if ceiling is None else torch.linspace(ceiling, ceiling + 0.2, count, dtype=dtype)
    same = SameSample(every, None if shared else every, views=(2 if shared else 1) if known else 0)
    tau = torch.tensor(temperature, dtype=dtype, requires_grad=True)
    found = direct(raw, same, tau, Rule(ceiling=bounds), form, product)

    exact, exact_tau = raw.detach().double().requires_grad_(), tau.detach().double().requires_grad_()
    rows = torch.nn.functional.normalize(exact)
    anchors, others = (rows, None) if shared else rows.chunk(2)
    positives = paired_similarity(rows)[:count]
    wide = Rule(ceiling=None if bounds is None else bounds.double())
    total = ours = torch.zeros((), dtype=torch.float64)
    weights = torch.linspace(0.5, 1.5, count, dtype=torch.float64)
    for place, (losses, kept) in enumerate(found):
        ends = (anchors, others) if place == 0 else (others, anchors)
        sums = reference(
            ends[0], ends[1], anchor_ids=every, candidate_ids=None if shared else every, temperature=exact_tau,
            rules=[wide],
        )  # fmt: skip
        expected = torch.nn.functional.softplus(sums.log_sum[0] - positives / exact_tau, threshold=1e3)
        torch.testing.assert_close(losses[0].double(), expected, atol=tolerance, rtol=tolerance)
        assert kept[0].tolist() == sums.kept[0].tolist()
        total, ours = total + (expected * weights).sum(), ours + (losses[0].double() * weights).sum()
    inputs, exact_inputs = (raw, tau), (exact, exact_tau)
    for one, other in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(total, exact_inputs), strict=True):
        assert bool(one.isfinite().all())
        torch.testing.assert_close(one.double(), other, atol=20 * tolerance / temperature, rtol=20 * tolerance)


def test_only_what_wants_a_gradient_gets_one() -> None:
    for first, second in ((True, False), (False, True)):
        for product in (True, False):
            raw, ids = scene([4, 7, 1], torch.float64)
            parts = [part.detach().requires_grad_(on) for part, on in zip(raw.chunk(2), (first, second), strict=True)]
            measured = measure(torch.cat(parts))
            units = measured.unit.chunk(2)
            inputs = Inputs(
                *units, ids[:3], ids[:3], 0.1, Rule(), product=units[0] @ units[1].T if product else None,
                same_sample=SameSample(ids[:3], ids[:3]),
            )  # fmt: skip
            softmax_losses(Views(*parts, measured), inputs)[0].losses.sum().backward()
            whole = torch.autograd.grad(
                direct(raw, SameSample(ids[:3], ids[:3]), 0.1, Rule(), "one way")[0][0].sum(), raw
            )
            for part, expected in zip(parts, whole[0].chunk(2), strict=True):
                assert (part.grad is not None) == part.requires_grad
                if part.grad is not None:
                    torch.testing.assert_close(part.grad, expected)


@every("policy", [None, "glofnd"])
@every("reduction", ["mean", "none"])
@every("last", [3, 7], ids=["repeated", "distinct"])
def test_the_direct_way_is_the_way_of_the_kernel(policy: str | None, reduction: str, last: int) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([3, 11, 8, 5, 0, last])
    first, second = (torch.randn(6, 7, generator=generator, requires_grad=True) for _ in range(2))
    answers = []
    for way in (None, lambda steps, views: None):
        policies = None if policy is None else GloFND(12, alpha=0.3, initial="quantile")
        loss_fn = InfoNCE(0.2, policies, reduction=reduction)  # type: ignore[arg-type]
        if way is not None:
            loss_fn.direct = way  # type: ignore[method-assign]
        for _ in range(3):
            loss = loss_fn(first, second, ids, progress=0.5)
        answers.append((loss, *torch.autograd.grad(loss.sum(), (first, second)), loss_fn.stats))
    for ours, theirs in zip(answers[0][:3], answers[1][:3], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert answers[0][3] == pytest.approx(answers[1][3], abs=1e-6)


def test_a_graph_that_is_kept_gives_its_gradient_twice() -> None:
    views, every = scene([4, 7, 1], torch.float32)
    loss = direct(views, SameSample(every), 0.2, Rule())[0].losses.sum()
    first = torch.autograd.grad(loss, views, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, views)[0], first)


def test_what_a_ceiling_alone_is() -> None:
    assert Rule().ceiling_alone
    assert not Rule(low=torch.zeros(4)).ceiling_alone
    assert not Rule(ceiling=torch.zeros(4), above="pull").ceiling_alone


@pytest.mark.parametrize("policy", [Ring(), Oracle([0, 0, 1, 1, 2, 2])], ids=["ring", "oracle"])
def test_a_policy_that_says_more_than_a_ceiling_gets_the_kernel(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randn(6, 7, generator=generator, requires_grad=True) for _ in range(2))
    answers = []
    for small in (True, False):
        loss_fn = InfoNCE(0.2, policy)
        if not small:
            loss_fn.goes_direct = lambda *_: False  # type: ignore[method-assign]
        loss = loss_fn(first, second, torch.arange(6), progress=0.5)
        answers.append((loss, *torch.autograd.grad(loss, (first, second)), loss_fn.stats))
    for ours, theirs in zip(answers[0][:3], answers[1][:3], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert answers[0][3] == pytest.approx(answers[1][3], abs=1e-6)


def test_statistics_hold_no_graph() -> None:
    first, second = (torch.randn(6, 7, requires_grad=True) for _ in range(2))
    loss_fn = InfoNCE(0.2, GloFND(10, alpha=0.2))
    before = _with_a_graph()
    loss_fn(first, second, torch.arange(6))
    assert _with_a_graph() == before
    assert loss_fn.stats["kept_per_anchor"] <= 10


def _with_a_graph() -> int:
    gc.collect()
    return sum(isinstance(each, Tensor) and each.grad_fn is not None for each in gc.get_objects())


def test_similarity_of_two_views_and_its_gradient() -> None:
    views = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain = (views[:3] * views[3:]).sum(1).repeat(2)
    torch.testing.assert_close(paired_similarity(views), plain)
    assert torch.autograd.gradcheck(paired_similarity, (views,))


def test_lengths_before_normalising() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]])
    assert measure(rows).length.squeeze(1).tolist() == pytest.approx([5.0, 0.0, 5e30])
    assert measure(rows).span == pytest.approx((0.0, 5e30))
    assert not bool(measure(torch.tensor([[float("inf"), 1.0]])).length.isfinite())
    assert bool(measure(torch.tensor([[float("nan"), 1.0]])).length.isnan())
