"""The softmax of a small batch with itself: against loops in float64, in value and gradient, and in odd cases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from antipodes import GloFND, InfoNCE
from antipodes.functional.batch_softmax import batch_softmax, fits_batch_softmax
from antipodes.functional.normalise import measured, normalise
from antipodes.functional.positives import paired_similarity
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
from tests.reference.contrast import contrast as reference


def scene(ids: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    views = normalise(torch.randn(2 * len(ids), 5, generator=generator, dtype=torch.float64))
    return views.to(dtype).requires_grad_(), torch.tensor(ids).repeat(2)


@pytest.mark.parametrize("ids", [[4, 7, 1, 9, 2], [4, 7, 4, 9, 9]], ids=["distinct", "repeated"])
@pytest.mark.parametrize("ceiling", [None, 0.3, -2.0, 1.0])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-8)])
def test_losses_and_gradients_equal_the_reference(
    ids: list[int], ceiling: float | None, temperature: float, dtype: torch.dtype, tolerance: float
) -> None:
    views, every = scene(ids, dtype)
    bounds = None if ceiling is None else torch.linspace(ceiling, ceiling + 0.2, 10, dtype=dtype)
    rule = Rule(ceiling=bounds)
    assert fits_batch_softmax(views, temperature, (rule,))
    found = batch_softmax(views, None, SameSample(every).different.to(dtype), temperature, rule)

    exact = views.detach().double().requires_grad_()
    wide = Rule(ceiling=None if bounds is None else bounds.double())
    sums = reference(exact, anchor_ids=every, temperature=temperature, rules=[wide])
    margins = sums.log_sum[0] - paired_similarity(exact) / temperature
    losses = torch.nn.functional.softplus(margins, threshold=1e3)

    torch.testing.assert_close(found.losses.double(), losses, atol=tolerance, rtol=tolerance)
    assert found.kept.tolist() == sums.kept[0].tolist()
    weights = torch.linspace(0.5, 1.5, 10, dtype=torch.float64)
    ours = torch.autograd.grad((found.losses * weights.to(dtype)).sum(), views)[0]
    theirs = torch.autograd.grad((losses * weights).sum(), exact)[0]
    assert bool(ours.isfinite().all())
    torch.testing.assert_close(ours.double(), theirs, atol=20 * tolerance, rtol=tolerance)


@pytest.mark.parametrize("policy", [None, "glofnd"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_the_direct_way_is_the_way_of_the_kernel(policy: str | None, reduction: str) -> None:
    generator = torch.Generator().manual_seed(1)
    ids = torch.tensor([3, 11, 8, 3, 5, 0])
    first, second = (torch.randn(6, 7, generator=generator, requires_grad=True) for _ in range(2))
    answers = []
    for way in (None, lambda step: None):
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
    loss = batch_softmax(views, None, SameSample(every).different, 0.2, Rule()).losses.sum()
    first = torch.autograd.grad(loss, views, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, views)[0], first)


def test_what_does_not_fit() -> None:
    views = scene([0, 1], torch.float32)[0]
    assert fits_batch_softmax(views, 0.1, (Rule(),))
    assert not fits_batch_softmax(views, 0.01, (Rule(),))  # colder than exponentials can be without a shift
    assert not fits_batch_softmax(views, torch.tensor(0.1), (Rule(),))
    assert not fits_batch_softmax(views, 0.1, (Rule(), Rule()))
    assert not fits_batch_softmax(views, 0.1, (Rule(low=torch.zeros(4)),))
    assert not fits_batch_softmax(views, 0.1, (Rule(ceiling=torch.zeros(4), above="pull"),))
    assert not fits_batch_softmax(torch.zeros(2000, 2), 0.1, (Rule(),))


def test_similarity_of_two_views_and_its_gradient() -> None:
    views = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain = (views[:3] * views[3:]).sum(1).repeat(2)
    torch.testing.assert_close(paired_similarity(views), plain)
    assert torch.autograd.gradcheck(paired_similarity, (views,))


def test_lengths_before_normalising() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]])
    assert measured(rows)[1].squeeze(1).tolist() == pytest.approx([5.0, 0.0, 5e30])
    assert not bool(measured(torch.tensor([[float("inf"), 1.0]]))[1].isfinite())
    assert bool(measured(torch.tensor([[float("nan"), 1.0]]))[1].isnan())
