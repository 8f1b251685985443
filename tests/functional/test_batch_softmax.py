"""The softmax of a small batch with itself: against loops in float64, in value and gradient, and in odd cases."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from antipodes import GloFND, InfoNCE, Oracle, Policy, Ring
from antipodes.functional.dense import BatchLosses, Views, batch_softmax, fits_batch_softmax
from antipodes.functional.normalise import measure, paired_similarity
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
from tests.reference.contrast import contrast as reference


def scene(ids: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    views = torch.randn(2 * len(ids), 5, generator=generator, dtype=torch.float64)  # of any length
    return views.to(dtype).requires_grad_(), torch.tensor(ids).repeat(2)


def direct(views: Tensor, same_sample: SameSample, temperature: float, rule: Rule) -> BatchLosses:
    measured = measure(views)
    product = measured.unit @ measured.unit.T
    return batch_softmax(Views(*views.chunk(2), measured), product, same_sample, temperature, rule)


@pytest.mark.parametrize(
    ("ids", "halves"),
    [([4, 7, 1, 9, 2], True), ([4, 7, 1, 9, 2], False), ([4, 7, 4, 9, 9], False)],
    ids=["known to differ", "distinct", "repeated"],
)
@pytest.mark.parametrize("ceiling", [None, 0.3, -2.0, 1.0])
@pytest.mark.parametrize("temperature", [0.01, 0.05, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-8)])
def test_losses_and_gradients_equal_the_reference(
    ids: list[int], halves: bool, ceiling: float | None, temperature: float, dtype: torch.dtype, tolerance: float
) -> None:
    views, every = scene(ids, dtype)
    bounds = None if ceiling is None else torch.linspace(ceiling, ceiling + 0.2, 10, dtype=dtype)
    rule = Rule(ceiling=bounds)
    assert fits_batch_softmax(views, temperature)
    found = direct(views, SameSample(every, halves=halves), temperature, rule)

    raw = views.detach().double().requires_grad_()
    exact = torch.nn.functional.normalize(raw)
    wide = Rule(ceiling=None if bounds is None else bounds.double())
    sums = reference(exact, anchor_ids=every, temperature=temperature, rules=[wide])
    margins = sums.log_sum[0] - paired_similarity(exact) / temperature
    losses = torch.nn.functional.softplus(margins, threshold=1e3)

    torch.testing.assert_close(found.losses.double(), losses, atol=tolerance, rtol=tolerance)
    kept = SameSample(every).available if found.kept is None else found.kept
    assert kept.tolist() == sums.kept[0].tolist()
    weights = torch.linspace(0.5, 1.5, 10, dtype=torch.float64)
    ours = torch.autograd.grad((found.losses * weights.to(dtype)).sum(), views)[0]
    theirs = torch.autograd.grad((losses * weights).sum(), raw)[0]
    assert bool(ours.isfinite().all())
    torch.testing.assert_close(ours.double(), theirs, atol=20 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("policy", [None, "glofnd"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("last", [3, 7], ids=["repeated", "distinct"])
def test_the_direct_way_is_the_way_of_the_kernel(policy: str | None, reduction: str, last: int) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([3, 11, 8, 5, 0, last])
    first, second = (torch.randn(6, 7, generator=generator, requires_grad=True) for _ in range(2))
    answers = []
    for way in (None, lambda step, views: None):
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
    loss = direct(views, SameSample(every), 0.2, Rule()).losses.sum()
    first = torch.autograd.grad(loss, views, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, views)[0], first)


def test_what_does_not_fit() -> None:
    views = scene([0, 1], torch.float32)[0]
    assert fits_batch_softmax(views, 0.1)
    assert not fits_batch_softmax(torch.zeros(2000, 2), 0.1)
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
