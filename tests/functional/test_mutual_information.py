"""The information bound: values by loops, its theorems as properties on finite distributions, and where it breaks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from antipodes.functional.mutual_information import cnce, nce
from antipodes.functional.select import band_by_rank
from antipodes.functional.tensors import NotFinite
from tests.cases import every
from tests.reference.mutual_information import estimate, expected, moments, mutual_information

CORRELATION = 0.2  # of the toy of Ring's appendix B: (X, Y) = Z + noise has covariance [[2, 0.4], [0.4, 2]]
INFORMATION = -0.5 * math.log(1 - CORRELATION**2)
ROUNDING = 1e-12


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_values_errors_and_gradients_equal_loops() -> None:
    positives, negatives = numbers(0, 5).requires_grad_(), numbers(1, 5, 7).requires_grad_()
    low, high = torch.tensor([-9.0, -0.5, 0.0, 0.5, 3.0]), 1.2
    found = cnce(positives, negatives, low, high, temperature=0.5)
    kept = [[v / 0.5 for v in row if bound <= v <= high] for row, bound in zip(negatives.tolist(), low, strict=True)]
    expected_ = [estimate(p / 0.5, row) for p, row in zip(positives.tolist(), kept, strict=True)]
    assert found.per_anchor.tolist() == pytest.approx(expected_, abs=1e-12)
    assert found.kept.tolist() == [len(row) for row in kept]
    assert found.kept[4] == 0
    assert found.per_anchor[4] == 0
    assert found.value.item() == pytest.approx(sum(expected_) / 5, abs=1e-12)
    assert found.error.item() == pytest.approx(torch.tensor(expected_, dtype=torch.float64).std().item() / math.sqrt(5))
    assert torch.autograd.gradcheck(
        lambda p, n: cnce(p, n, low, high, temperature=0.5).value,  # type: ignore[no-untyped-call]
        (positives, negatives),
    )


def test_nce_is_cnce_without_a_band_and_skips_what_does_not_count() -> None:
    positives, negatives = numbers(2, 4), numbers(3, 4, 6)
    assert nce(positives, negatives).per_anchor.equal(cnce(positives, negatives).per_anchor)
    holes = torch.cat([negatives, torch.full((4, 2), -math.inf, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(nce(positives, holes).per_anchor, nce(positives, negatives).per_anchor)
    assert nce(positives, holes).kept.tolist() == [6] * 4
    assert nce(positives, holes).valid
    nothing = nce(positives, torch.full((4, 2), -math.inf))
    assert nothing.value == 0
    assert nothing.valid


def test_a_critic_that_tells_everything_apart_reaches_the_logarithm_of_k() -> None:
    assert nce(torch.full((3,), 80.0), torch.full((3, 9), -80.0)).value.item() == pytest.approx(math.log(10))
    huge = nce(torch.full((3,), 1.0), torch.full((3, 9), -1.0), temperature=1e-4)
    assert huge.value.item() == pytest.approx(math.log(10))


def test_validity_by_hand() -> None:
    positives, negatives = torch.zeros(1), torch.tensor([[0.0, 1.0, 2.0, 3.0]])  # mean of e^f is 7.8, e^2.05
    assert nce(positives, negatives).valid  # it leaves out nothing, though not all is above the mean
    assert not nce(positives, negatives).above_mean.any()
    assert cnce(positives, negatives, low=0.5).valid  # a ball: nothing above is left out
    assert not cnce(positives, negatives, low=1.5, high=2.5).valid  # e^2 is below the mean
    assert cnce(positives, negatives, low=2.5, high=3.5).above_mean.all()
    assert not cnce(positives, negatives, high=2.5).valid
    more = torch.tensor([[0.0, 2.9, 3.0, 1.0]])  # mean 10.5, e^2.35
    ring_ = cnce(positives, more, low=2.5, high=2.95)
    assert (ring_.valid, ring_.complete_above.item()) == (True, False)
    both = cnce(torch.zeros(2), torch.cat([negatives, more]), low=torch.tensor([1.5, 2.5]), high=2.95)
    assert both.above_mean.tolist() == [False, True]
    assert not both.valid  # every anchor has to


@every(
    ("arguments", "sentence"),
    [
        ({"positives": torch.zeros(3)}, "need the same anchors"),
        ({"negatives": torch.zeros(2, 0)}, "at least one of each"),
        ({"negatives": torch.zeros(2, 4).long()}, "must be floating"),
        ({"positives": torch.tensor([0.0, math.inf])}, "hold NaN or infinite"),
        ({"negatives": torch.full((2, 4), math.nan)}, "hold NaN or infinite"),
        ({"low": torch.zeros(3)}, "low must be one number or one per anchor"),
        ({"high": math.nan}, "high must be one number"),
        ({"temperature": 0.0}, "temperature must be positive"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        cnce(**({"positives": torch.zeros(2), "negatives": torch.zeros(2, 4)} | arguments))
    assert issubclass(NotFinite, ValueError)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[list[float]], list[list[float]], int]:
    """A joint distribution of a few u and v, a critic, and a number of negatives."""
    rows, columns = draw(st.integers(2, 3)), draw(st.integers(2, 5))
    masses = [[draw(st.floats(0.01, 1)) for _ in range(columns)] for _ in range(rows)]
    total = sum(map(sum, masses))
    critic = [[draw(st.floats(-3, 3)) for _ in range(columns)] for _ in range(rows)]
    return [[mass / total for mass in row] for row in masses], critic, draw(st.integers(1, 3))


def marginal(joint: list[list[float]]) -> list[float]:
    return [sum(row[v] for row in joint) for v in range(len(joint[0]))]


@settings(max_examples=60)
@given(problem=problems(), data=st.data())
def test_theorem_1_a_band_above_the_mean_gives_a_looser_bound(problem: Any, data: st.DataObject) -> None:
    joint, critic, draws = problem
    kept = []
    for row in critic:
        mean = sum(weight * math.exp(f) for weight, f in zip(marginal(joint), row, strict=True))
        above = [v for v, f in enumerate(row) if math.exp(f) > mean]
        assume(above)
        kept.append(set(data.draw(st.lists(st.sampled_from(above), min_size=1))))  # any part of them, not only bands
    all_of_it, conditional = expected(joint, critic, draws), expected(joint, critic, draws, kept)
    assert conditional <= all_of_it + ROUNDING
    assert all_of_it <= mutual_information(joint) + ROUNDING


@settings(max_examples=60)
@given(problem=problems(), place=st.floats(0, 1))
def test_a_ball_gives_a_looser_bound_wherever_the_mean_is(problem: Any, place: float) -> None:
    """The second condition of antipodes.functional.mutual_information, which the paper does not have."""
    joint, critic, draws = problem
    kept = [{v for v, f in enumerate(row) if f >= min(row) + place * (max(row) - min(row))} for row in critic]
    assume(all(kept))
    assert expected(joint, critic, draws, kept) <= expected(joint, critic, draws) + ROUNDING


@settings(max_examples=80)
@given(problem=problems(), bounds=st.tuples(st.floats(-3, 3), st.floats(-3, 3)))
def test_what_is_called_valid_is_valid(problem: Any, bounds: tuple[float, float]) -> None:
    """With every candidate as often as it is drawn, valid bands never exceed NCE or the information."""
    joint, critic, draws = problem
    uniform = [[1 / (len(joint) * len(row))] * len(row) for row in joint]  # then the candidates are the marginal
    low, high = min(bounds), max(bounds)
    kept = [{v for v, f in enumerate(row) if low <= f <= high} for row in critic]
    assume(all(kept))
    tensor = torch.tensor(critic, dtype=torch.float64)
    if cnce(tensor[:, 0], tensor, low, high).valid:
        conditional = expected(uniform, critic, draws, kept)
        assert conditional <= expected(uniform, critic, draws) + ROUNDING
        assert conditional <= mutual_information(uniform) + ROUNDING


@settings(max_examples=80)
@given(problem=problems(), positive=st.floats(-3, 3), data=st.data())
def test_theorem_2_a_part_that_varies_less_than_the_rest_has_less_variance(
    problem: Any, positive: float, data: st.DataObject
) -> None:
    """For a fixed pair; the rest is every tuple of negatives that does not lie in the part as a whole."""
    joint, critic, draws = problem
    weights, row = marginal(joint), critic[0]
    part = set(data.draw(st.lists(st.sampled_from(range(len(row))), min_size=1, max_size=len(row) - 1)))
    assume(len(part) < len(row))
    _, inside = moments(positive, row, weights, draws, part.issuperset)
    _, outside = moments(positive, row, weights, draws, lambda drawn: not part.issuperset(drawn))
    _, everything = moments(positive, row, weights, draws, lambda drawn: True)
    if inside <= outside:
        assert inside <= everything + ROUNDING


def toy(steps: int, candidates: int) -> tuple[Tensor, Tensor]:
    """The best critic, log p(y | x) / p(y), of the Gaussian toy on a grid of equal masses: (steps^2,) and (.., K)."""

    def normal(count: int) -> Tensor:
        return torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)

    def critic(x: Tensor, y: Tensor) -> Tensor:
        return INFORMATION - (y - CORRELATION * x) ** 2 / (2 * (1 - CORRELATION**2)) + y**2 / 2

    x, noise = normal(steps).repeat_interleave(steps), normal(steps).repeat(steps)
    y = CORRELATION * x + math.sqrt(1 - CORRELATION**2) * noise
    return critic(x, y), critic(x[:, None], normal(candidates))


def test_the_official_starting_ring_exceeds_the_information_and_says_so() -> None:
    positives, negatives = toy(60, 300)
    assert pytest.approx(0.02041, abs=1e-5) == INFORMATION
    everything = nce(positives, negatives)
    assert everything.valid
    assert everything.value.item() == pytest.approx(INFORMATION, abs=0.0005)

    start = cnce(positives, negatives, high=negatives.quantile(0.9, dim=1))  # percentiles 0 to 90
    assert not start.valid
    assert start.value.item() == pytest.approx(0.0517, abs=0.001)  # more than twice the information

    end = cnce(positives, negatives, negatives.quantile(0.9, dim=1), negatives.quantile(0.99, dim=1))
    assert end.valid
    assert end.above_mean.all()
    assert not end.complete_above.any()
    assert end.value < everything.value


def test_bands_come_from_ranks() -> None:
    """In the units of the similarities, whatever the temperature."""
    views = torch.nn.functional.normalize(numbers(8, 30, 4), dim=1)
    ids = torch.arange(30)
    low, high = band_by_rank(views[:6], views, ids[:6], ids, 0.1 * 0.5, 0.5)
    similarities = views[:6] @ views.T
    similarities[ids[:6], ids[:6]] = -math.inf  # the anchor itself
    found = cnce(torch.ones(6, dtype=torch.float64), similarities, low, high, temperature=0.1)
    assert found.kept.tolist() == [14 - 1] * 6  # ranks floor(0.05 * 29) = 1 to floor(0.5 * 29) = 14
