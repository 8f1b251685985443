"""Theorem 3.2's toy: gradients against autograd, variances against an enumeration, and the theorem itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antipodes.study.runners.gradient_variance import GradientVariance, estimates, features, normal_grid


def test_the_gradient_is_that_of_autograd() -> None:
    runner = GradientVariance()
    coefficients = runner.coefficients(0).requires_grad_(True)
    u, v, negatives = torch.tensor(0.3).double(), torch.tensor(-0.5).double(), normal_grid(12).view(3, 4)
    z, gradient = estimates(u, v, negatives, coefficients)
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
    z, gradient = estimates(u, u, inside[:, None], coefficients)
    assert scores["estimate"] == pytest.approx(float(z.mean()), abs=0.01)
    assert scores["variance of Z"] == pytest.approx(float(z.var(correction=0)), rel=0.05)
    assert scores["variance of the gradient"] == pytest.approx(float(gradient.var(0, correction=0).sum()), rel=0.05)


def test_harder_negatives_trade_bias_for_variance_where_the_condition_holds() -> None:
    small: dict[str, Any] = {"anchors": 30, "draws": 100}
    bands: list[dict[str, Any]] = [{}, {"low": 0.9, "high": 0.99}, {"high": 0.9}]
    uniform, ring, start = (GradientVariance(**small, **band).run(0) for band in bands)
    assert ring["condition met, %"] == 100
    assert ring["variance of Z"] < 0.5 * uniform["variance of Z"]
    assert ring["bias"] > uniform["bias"] + 0.3
    assert start["bias"] < 0  # where the paper's anneal begins the estimate exceeds the information: no bound


def test_bands_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="0 <= low < high <= 1"):
        GradientVariance(low=0.5, high=0.5)
    with pytest.raises(ValueError, match="the band not empty"):
        GradientVariance(low=0.99, high=0.991, candidates=10)
