"""Theorem 3.2's toy: gradients against autograd, variances against an enumeration, and the theorem itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipodes.studies.statistics import one_sided, paired_p
from research.runners.bank import trained_bank
from research.runners.gradient_variance import GradientVariance, estimates, features, normal_grid


def test_the_gradient_is_that_of_autograd() -> None:
    runner = GradientVariance()
    coefficients = runner.coefficients(0).requires_grad_(True)
    u, v, negatives = torch.tensor(0.3).double(), torch.tensor(-0.5).double(), normal_grid(12).view(3, 4)
    z, gradient = estimates(features(u, v), features(u, negatives), coefficients)
    for row in range(3):
        (expected,) = torch.autograd.grad(z[row], coefficients, retain_graph=True)
        torch.testing.assert_close(gradient[row], expected)


def test_the_best_critic_is_the_density_ratio_and_finds_the_information() -> None:
    runner = GradientVariance(correlation=0.6, negatives=400, anchors=300, draws=10)
    u, v = normal_grid(7)[:, None], normal_grid(5)
    joint = torch.distributions.MultivariateNormal(torch.zeros(2).double(), torch.tensor([[1, 0.6], [0.6, 1]]).double())
    one = torch.distributions.Normal(torch.tensor(0.0).double(), 1.0)
    both = torch.stack((u.expand(7, 5), v.expand(7, 5)), -1)
    expected = joint.log_prob(both) - one.log_prob(u) - one.log_prob(v)
    found = torch.stack([features(one_u, v) @ runner.coefficients(0) for one_u in u])
    torch.testing.assert_close(found, expected)
    assert sum(runner.run(seed)["bias"] for seed in range(5)) / 5 == pytest.approx(0, abs=0.03)


def test_variances_are_those_of_an_enumeration() -> None:
    runner = GradientVariance(low=0.5, negatives=1, anchors=1, candidates=40, draws=20_000)
    scores = runner.run(0)
    coefficients, grid, u = runner.coefficients(0), normal_grid(40), torch.tensor(0.0).double()
    inside = runner.band(grid[(features(u, grid) @ coefficients).argsort()])
    assert len(inside) == 20
    z, gradient = estimates(features(u, u), features(u, inside)[:, None], coefficients)
    assert scores["estimate"] == pytest.approx(float(z.mean()), abs=0.01)
    assert scores["variance of Z"] == pytest.approx(float(z.var(correction=0)), rel=0.05)
    assert scores["variance of the gradient"] == pytest.approx(float(gradient.var(0, correction=0).sum()), rel=0.05)


def enumerated(phi: torch.Tensor, positive: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
    """Z of every single negative (n, P) there is: its whole distribution when one is drawn."""
    return estimates(positive, phi[:, None], coefficients)[0]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 28), st.integers(1, 29))
def test_the_theorem_holds_exactly_wherever_its_condition_does(seed: int, first: int, length: int) -> None:
    """With one negative, Var_p = w Var_q + (1 - w) Var_outside + w (1 - w) (mean_q - mean_outside)^2."""
    draws = torch.Generator().manual_seed(seed)
    candidates, positive, coefficients = (torch.randn(shape, generator=draws).double() for shape in ((30, 3), 3, 3))
    ordered = candidates[(candidates @ coefficients).argsort()]
    last = min(30, first + length)
    inside, outside = ordered[first:last], torch.cat((ordered[:first], ordered[last:]))
    if not len(outside):
        return
    p, q, rest = (enumerated(part, positive, coefficients) for part in (ordered, inside, outside))
    if q.var(correction=0) <= rest.var(correction=0):  # the condition of Theorem 3.2
        assert q.var(correction=0) <= p.var(correction=0) + 1e-12
    if (inside @ coefficients).exp().min() >= (ordered @ coefficients).exp().mean():  # that of Theorem 3.1
        assert q.mean() <= p.mean() + 1e-12  # less is found: the bias is larger


def test_the_runner_finds_less_variance_in_the_ring_and_more_bias() -> None:
    """By a paired t-test over seeds, at one in a thousand, with many negatives a draw."""
    small: dict[str, Any] = {"anchors": 20, "draws": 60}
    found = {
        name: [GradientVariance(**small, **band).run(seed) for seed in range(6)]
        for name, band in {"uniform": {}, "ring": {"low": 0.9, "high": 0.99}, "start": {"high": 0.9}}.items()
    }
    assert all(scores["condition met, %"] == 100 for scores in found["ring"])

    def smaller(score: str, one: str, other: str) -> bool:
        ours, theirs = ([scores[score] for scores in found[name]] for name in (one, other))
        p = paired_p(ours, theirs)
        assert p is not None
        return one_sided(p, sum(theirs) - sum(ours)) < 0.001

    assert smaller("variance of Z", "ring", "uniform")
    assert smaller("bias", "uniform", "ring")
    assert smaller("bias", "start", "uniform")  # where the paper's anneal begins the bound need not hold


def test_a_bank_is_trained_once_and_its_gradient_is_that_of_autograd() -> None:
    common: dict[str, Any] = {"data": "shapes", "images": 64, "epochs": 1, "anchors": 4, "draws": 8, "negatives": 5}
    uniform = GradientVariance(critic="bank", **common)
    scores = uniform.run(0)
    assert set(scores) == {"estimate", "variance of Z", "variance of the gradient", "noise of the gradient"}
    found = trained_bank("shapes", 64, 1, 0)
    assert trained_bank("shapes", 64, 1, 0) is found
    assert (found.anchors.shape, found.bank.shape) == ((64, 128), (64, 128))
    torch.testing.assert_close(found.bank.norm(dim=1), torch.ones(64).double(), atol=1e-6, rtol=0)
    anchor = next(uniform._bank_anchors(0))
    assert anchor.candidates.shape == (63, 128)  # not the anchor's own entry
    coefficients = anchor.coefficients.clone().requires_grad_(True)
    f = torch.cat((anchor.positive[None], anchor.candidates[:5])) @ coefficients
    (f[0] - f.logsumexp(0)).backward()
    _, gradient = estimates(anchor.positive, anchor.candidates[None, :5], anchor.coefficients)
    assert coefficients.grad is not None
    torch.testing.assert_close(gradient[0], coefficients.grad)
    assert GradientVariance(critic="bank", low=0.5, **common).run(0)["condition met, %"] >= 0
    with pytest.raises(ValueError, match="the run that makes the bank failed: data 'nowhere'"):
        trained_bank("nowhere", 64, 1, 0)


def test_bands_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="0 <= low < high <= 1"):
        GradientVariance(low=0.5, high=0.5)
    with pytest.raises(ValueError, match="the band not empty"):
        GradientVariance(low=0.99, high=0.991, candidates=10)
