"""Draws against loops in float64, in value and gradient; their mean; empty sets, ranks and memory."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from antipodes.functional import select
from antipodes.functional.contrast import Sums, contrast
from antipodes.functional.rule import Group, Ranks, Rule
from antipodes.methods import draws
from antipodes.methods.draws import drawn_sums, expected_sums
from antipodes.pairs import normalise
from tests.cases import every
from tests.functional.test_select import Largest
from tests.reference.draws import drawn_log_sums

TAU = 0.1
COUNT, KEYS = 70, 130  # more than one block of anchors


def scene(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    anchors = normalise(torch.randn(COUNT, 6, generator=generator).double()).to(dtype)
    candidates = normalise(torch.randn(KEYS, 6, generator=generator).double()).to(dtype)
    anchor_ids, candidate_ids = torch.arange(COUNT), torch.randint(0, 100, (KEYS,), generator=generator)
    candidate_ids[[3, 50]] = -1
    return anchors, candidates, anchor_ids, candidate_ids


def rules() -> dict[str, list[Rule]]:
    generator = torch.Generator().manual_seed(1)
    low, high = -torch.rand(COUNT, generator=generator).double(), torch.rand(COUNT, generator=generator).double()
    own = torch.randint(-1, 4, (COUNT,), generator=generator)
    others = torch.randint(-1, 4, (KEYS,), generator=generator)
    ring, ceiling = Rule(low=low, high=high), Rule(ceiling=high)
    ranks = Rule(ranks=(Ranks(torch.arange(COUNT) % 9, torch.arange(COUNT) + 3),))
    drop, only = Rule(groups=(Group(own, others, "drop"),)), Rule(groups=(Group(own, others, "only"),))
    return {
        "everything": [Rule()],
        "ring": [ring],
        "ceiling": [ceiling],
        "drop": [drop],
        "only": [only],
        "bounds that cannot bind": [Rule(low=torch.full((COUNT,), -1.0), high=torch.ones(COUNT))],
        "joined": [ring & drop & Rule(ceiling=high - 0.2)],
        "several": [ring, drop, only, ceiling],
        "ranks": [ranks, ranks & drop & ceiling],
        "attract": [(ring & drop & Rule(ceiling=high - 0.2)).attract(), drop.attract()],
    }


def sums_of(inputs: tuple[Tensor, ...], chosen: list[Rule], samples: int, seed: int = 0, **place: int) -> Sums:
    anchors, candidates, anchor_ids, candidate_ids = inputs
    generator = torch.Generator().manual_seed(seed)
    return drawn_sums(
        anchors, candidates, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=TAU, rules=chosen,
        samples=samples, generator=generator, **place,
    )  # fmt: skip


@every("name", rules())
def test_values_and_gradients_equal_the_loops(name: str) -> None:
    chosen, (anchors, *rest) = rules()[name], scene()
    ours, theirs = anchors.clone().requires_grad_(), anchors.clone().requires_grad_()
    sums = sums_of((ours, *rest), chosen, 9)
    numbers = torch.rand(len(chosen), COUNT, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected, kept = drawn_log_sums(theirs, *rest, TAU, chosen, numbers)
    torch.testing.assert_close(sums.log_sum, expected)
    assert torch.equal(sums.kept, kept)
    weight = torch.linspace(-1, 1, expected.numel()).double().view_as(expected).masked_fill(kept == 0, 0.0)
    for result, leaf in ((sums.log_sum, ours), (expected, theirs)):
        (result.masked_fill(kept == 0, 0.0) * weight).sum().backward()
        assert leaf.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_is_pulled_comes_from_all_candidates() -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene()
    ours, theirs = anchors.clone().requires_grad_(), anchors.clone().requires_grad_()
    chosen = rules()["attract"]
    sums = sums_of((ours, candidates, anchor_ids, candidate_ids), chosen, 5)
    everything = contrast(
        theirs, candidates, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=TAU, rules=chosen
    )
    assert int(sums.pulled.sum()) > 0
    assert torch.equal(sums.pulled, everything.pulled)
    assert torch.equal(sums.kept, everything.kept)
    for result in (sums.pulled_sum, everything.pulled_sum):
        result.pow(2).sum().backward()
    torch.testing.assert_close(sums.pulled_sum, everything.pulled_sum)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_the_mean_over_draws_is_what_is_expected() -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene()
    chosen = rules()["several"]
    everything = contrast(
        anchors, candidates, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=TAU, rules=chosen
    )
    expected = expected_sums(everything, 40).log_sum.exp()
    draws = torch.stack([sums_of(scene(), chosen, 40, seed).log_sum.exp() for seed in range(200)])
    deviation = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - expected).abs() <= 5 * deviation + 1e-9 * expected).all()
    assert torch.equal(expected == 0, everything.kept == 0)


def test_single_precision_a_low_temperature_and_no_candidates_stay_finite() -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene(torch.float32)
    anchors.requires_grad_()
    for temperature in (0.1, 1e-3):  # e^1000 is no number
        sums = drawn_sums(
            anchors, candidates, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=temperature,
            rules=rules()["ring"], samples=20, generator=torch.Generator(),
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(torch.nn.functional.softplus(sums.log_sum).sum(), anchors)
        assert gradient.isfinite().all()
        assert not sums.log_sum.isnan().any()
    for keys, ids in ((candidates[:0], candidate_ids[:0]), (candidates, torch.full_like(candidate_ids, -1))):
        sums = sums_of((anchors, keys, anchor_ids, ids), [Rule()], 3)
        assert bool((sums.log_sum == -torch.inf).all())
        assert int(sums.kept.sum()) == 0


def test_two_ranks_draw_what_one_draws() -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene()
    low = torch.linspace(-0.9, 0.2, COUNT).double()
    both = sums_of(scene(), [Rule(low=low), Rule(high=low)], 7).log_sum
    for rank in range(2):
        mine = slice(35 * rank, 35 * (rank + 1))
        chosen = [Rule(low=low[mine]), Rule(high=low[mine])]
        part = sums_of((anchors[mine], candidates, anchor_ids[mine], candidate_ids), chosen, 7, rank=rank, world_size=2)
        torch.testing.assert_close(part.log_sum, both[:, mine])


def test_nothing_is_larger_than_a_block_or_the_random_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = (normalise(torch.randn(count, 4, generator=generator)) for count in (600, 500))
    with Largest() as largest:
        sums_of((anchors, candidates, torch.arange(600), torch.arange(500)), [Rule()], 100)
    assert largest.entries <= max(2 * select.ROWS * 500, select.CELLS, 600 * 100)


def test_refuses_no_draws() -> None:
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        sums_of(scene(), [Rule()], 0)


def test_rows_and_counts_draw_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    similarities, numbers = torch.randn(9, 50, generator=generator), torch.rand(9, 200, generator=generator).double()
    low, high = torch.linspace(-3, 3, 9), torch.linspace(-2, 2.5, 9)  # the last band is empty
    inside = (similarities >= low[:, None]) & (similarities <= high[:, None])
    by_counts, sizes = draws._draw_by_counts(inside, numbers)
    by_rows, same_sizes = draws._draw_by_rows(inside, numbers)
    assert torch.equal(by_counts, by_rows)
    assert torch.equal(sizes, same_sizes)
    assert bool((by_counts[-1] == -1).all())
    assert bool((by_counts[4] >= 0).all())
