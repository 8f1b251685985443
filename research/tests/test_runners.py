"""Runners of their own: the toys' maths, what repeats, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from antipodes.functional.tensors import NotFinite
from antipodes.studies.definition import load_study
from antipodes.studies.runner import build, configuration
from research.ledger.reports import study_file
from research.runners.label_recovery import LabelRecovery, network, output_weights
from research.runners.mutual_information import (
    CORRELATION,
    INFORMATION,
    MutualInformation,
    band,
    density_ratio,
    draw,
    on_the_distribution,
)


def test_the_toy_has_the_papers_covariance_and_information() -> None:
    pairs = torch.stack(draw(200_000, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(torch.cov(pairs), torch.tensor([[2.0, 0.4], [0.4, 2.0]]), atol=0.03, rtol=0)
    assert pytest.approx(0.02041, abs=1e-5) == INFORMATION
    joint = torch.distributions.MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.4], [0.4, 2.0]]))
    one = torch.distributions.Normal(0.0, math.sqrt(2.0))
    x, y = torch.tensor([0.3, -2.0]), torch.tensor([1.1, 0.7])
    expected = joint.log_prob(torch.stack([x, y], dim=1)) - one.log_prob(x) - one.log_prob(y)
    torch.testing.assert_close(density_ratio(x, y), expected)
    assert CORRELATION == 0.2


def test_the_best_critic_has_the_information_and_less_in_a_ball() -> None:
    found = [on_the_distribution(density_ratio, low, 1.0) for low in (0.0, 0.1, 0.5, 0.95)]
    values = [information.value.item() for information in found]
    assert values[0] == pytest.approx(INFORMATION, abs=2e-4)
    assert values == sorted(values, reverse=True)
    assert all(information.valid for information in found)
    start = on_the_distribution(density_ratio, 0.0, 0.9)
    assert start.value.item() == pytest.approx(0.0517, abs=0.0015)
    assert not start.valid


def test_a_band_keeps_the_candidates_between_two_percentiles() -> None:
    negatives = torch.arange(10.0).flip(0).repeat(2, 1)
    before = negatives.clone()
    low, high = band(negatives, 0.5, 0.9, 10)
    assert (low.tolist(), high.tolist()) == ([4.5, 4.5], [8.5, 8.5])
    low, high = band(negatives, 0.0, 1.0, 10)
    assert (low.tolist(), high.tolist()) == ([-math.inf] * 2, [math.inf] * 2)
    assert negatives.equal(before)


def test_a_critic_is_trained_by_its_seed_and_touches_no_global_generator() -> None:
    state = torch.get_rng_state()
    runner = MutualInformation(points=600, epochs=12, learning_rate=0.01)
    first, again, other = runner.run(1), runner.run(1), runner.run(2)
    assert first == again
    assert first["estimate on its own points"] != other["estimate on its own points"]
    assert torch.get_rng_state().equal(state)
    assert 0.005 < first["estimate"] < INFORMATION
    assert first["bound valid"] == 1


def test_refined_labels_are_those_of_the_equation() -> None:
    runner = LabelRecovery(alpha=0.75, samples=4, crops=3, dimensions=5, width=6, steps=2)
    random = torch.Generator().manual_seed(0)
    centres = torch.nn.functional.normalize(torch.randn(4, 5, generator=random), dim=1)
    data = runner._crops(centres, 3, random)
    assert data.truth.tolist() == [-1] * 3 + [1] * 3 + [-1] * 3 + [1] * 3
    torch.testing.assert_close(data.crops.norm(dim=1), torch.ones(12))
    hidden = torch.randn(6, 5, generator=random)
    by_hand = [
        sum(
            v * math.tanh(sum(w * x for w, x in zip(row, crop, strict=True)))
            for v, row in zip(weights, rows, strict=True)
        )
        for weights, rows in ((output_weights(6).tolist(), hidden.tolist()),)
        for crop in data.positives.tolist()
    ]
    refined = runner._refined(hidden, data, -data.truth)
    expected = [-0.25 * label + 0.75 * f for label, f in zip(data.truth.tolist(), by_hand, strict=True)]
    torch.testing.assert_close(refined, torch.tensor(expected))
    torch.testing.assert_close(output_weights(6).norm(), torch.tensor(1.0))


def test_training_is_gradient_descent_on_the_squared_error() -> None:
    runner = LabelRecovery(samples=4, crops=3, dimensions=5, width=6, steps=1)
    random = torch.Generator().manual_seed(0)
    data = runner._crops(torch.nn.functional.normalize(torch.randn(4, 5, generator=random), dim=1), 3, random)
    before = LabelRecovery(samples=4, crops=3, dimensions=5, width=6, steps=0)._train(data, data.truth, 7)
    hidden = before.clone().requires_grad_()
    (0.5 * (data.truth - network(hidden, data.crops)) ** 2).sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    torch.testing.assert_close(runner._train(data, data.truth, 7), before - 4 / 24 * hidden.grad)


def test_refinery_recovers_labels_and_alpha_0_keeps_the_corrupted_ones() -> None:
    """20 % of the labels flipped: the shorter training of this test takes 80 to over 90 %."""
    plain = LabelRecovery(steps=150).run(0)
    refined = LabelRecovery(alpha=0.75, steps=400).run(0)
    assert [plain[f"refined labels, {rate} % flipped"] for rate in (10, 20, 30, 40)] == [90, 80, 70, 60]
    assert refined["refined labels, 20 % flipped"] > 90
    assert refined["network, test, 20 % flipped"] > 95


def test_a_network_that_diverges_says_so() -> None:
    with pytest.raises(NotFinite, match="lower step_size"):
        LabelRecovery(samples=4, crops=3, step_size=math.inf, steps=3).run(0)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("lottery", {}, "unknown runner 'lottery': give the dotted path"),
        ("research.runners.label_recovery.LabelRecovery", {"alfa": 1}, "alfa"),
        ("research.runners.label_recovery.LabelRecovery", {"steps": "many"}, "steps"),
        ("research.runners.label_recovery.LabelRecovery", {"alpha": 1.0}, r"alpha must be in \[0, 1\)"),
        ("research.runners.mutual_information.MutualInformation", {"low": 0.9, "high": 0.5}, "0 <= low < high <= 1"),
        (
            "research.runners.mutual_information.MutualInformation",
            {"low": 0.96},
            "100 negatives from a share of 0.04 need 2500 points, there are 2000",
        ),
    ],
)
def test_wrong_options_get_a_sentence(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(name, options)


def test_options_are_completed_by_the_defaults() -> None:
    complete = configuration(build("research.runners.mutual_information.MutualInformation", {"low": 0.5}))
    assert (complete["low"], complete["high"], complete["negatives"], complete["points"]) == (0.5, 1.0, 100, 2000)


def test_the_shipped_bands_are_the_papers() -> None:
    variants = load_study(study_file("mutual-information")).variants
    balls = [options["low"] for name, options in variants.items() if name.startswith("CNCE")]
    assert balls == [0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
    assert len(load_study(study_file("mutual-information")).trials(Path("out"))) == 50
    assert len(load_study(study_file("label-recovery")).trials(Path("out"))) == 35
