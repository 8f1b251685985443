"""Pairs and normalisation: counts against loops, gradients at the edges of floating point."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from antipodes.functional.same_sample import Excluded
from antipodes.pairs import PairFacts, Pairs, Rule, normalise


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=10),
    st.lists(st.integers(-1, 12), max_size=20),
)
def test_available_counts_filled_slots_of_other_samples(anchor_ids: list[int], candidate_ids: list[int]) -> None:
    pairs = Pairs(
        torch.zeros(len(anchor_ids), 2),
        torch.tensor(anchor_ids),
        torch.zeros(len(anchor_ids)),
        torch.zeros(len(candidate_ids), 2),
        torch.tensor(candidate_ids, dtype=torch.int64),
    )
    expected = [sum(other not in (-1, own) for other in candidate_ids) for own in anchor_ids]
    assert pairs.available().tolist() == expected


def test_without_candidates_the_keys_are_the_anchors() -> None:
    anchors, ids = torch.eye(4), torch.tensor([3, 5, 3, 5])
    pairs = Pairs(anchors, ids, torch.zeros(4))
    assert pairs.keys()[0] is anchors
    assert pairs.keys()[1] is ids
    assert pairs.available().tolist() == [2, 2, 2, 2]


def test_normalise_is_the_textbook_formula_with_its_gradient() -> None:
    x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul_(3).requires_grad_()
    torch.testing.assert_close(normalise(x), F.normalize(x, dim=1))
    assert torch.autograd.gradcheck(normalise, (x,))


@pytest.mark.parametrize(
    ("given", "computed"), [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64,) * 2]
)
def test_normalise_computes_in_single_precision_or_better(given: torch.dtype, computed: torch.dtype) -> None:
    out = normalise(torch.tensor([[3.0, 4.0]], dtype=given))
    assert out.dtype == computed
    torch.testing.assert_close(out, torch.tensor([[0.6, 0.8]], dtype=computed))


def test_a_zero_row_stays_zero_and_gets_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    out = normalise(x)
    (out * torch.tensor([1.0, -1.0])).sum().backward()
    assert out[0].tolist() == [0.0, 0.0]
    assert x.grad is not None
    assert x.grad[0].tolist() == [0.0, 0.0]
    assert x.grad[1].any()


@pytest.mark.parametrize("scale", [1e-17, 1e-10, 1e10, 1e18, 1e30])
def test_a_row_of_any_usual_length_gets_length_one(scale: float) -> None:
    x = (torch.tensor([[3.0, 4.0]]) * scale).requires_grad_()
    out = normalise(x)
    out[0, 0].backward()
    torch.testing.assert_close(out.detach(), torch.tensor([[0.6, 0.8]]))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_normalise_does_not_hide_what_is_not_finite(bad: float) -> None:
    assert not bool(normalise(torch.tensor([[bad, 1.0], [1.0, 1.0]])).isfinite().all())


def test_pairs_cannot_be_changed() -> None:
    pairs = Pairs(torch.eye(2), torch.arange(2), torch.zeros(2))
    with pytest.raises(AttributeError):
        pairs.positives = Tensor()  # type: ignore[misc]


def test_pairs_are_plain_data() -> None:
    """Nothing can be attached to pairs from outside, and what was measured about them travels as a field."""
    pairs = Pairs(torch.eye(3), torch.tensor([4, 5, 6]), torch.zeros(3))
    assert not hasattr(pairs, "__dict__")
    measured, (seven,) = pairs.measured(torch.tensor(7.0))
    assert seven == 7.0
    assert measured.facts.row_span == (4, 6)
    assert measured.facts.extent is not None
    assert measured.facts.extent.lowest == 4
    assert pairs.facts.extent is None
    assert measured.detached().facts is measured.facts


@pytest.mark.parametrize("count", [5, 700])
def test_candidates_of_their_own_equal_one_anchor_at_a_time(count: int) -> None:
    """Counts, sums and gradients where every anchor has three candidates that are no other anchor's."""
    generator = torch.Generator().manual_seed(0)
    anchors = normalise(torch.randn(count, 4, generator=generator, dtype=torch.float64)).requires_grad_()
    keys = normalise(torch.randn(3 * count, 4, generator=generator, dtype=torch.float64)).requires_grad_()
    ids, key_ids = torch.arange(count), torch.randint(-1, count, (3 * count,), generator=generator)
    number = torch.arange(count)
    related = Excluded(ids, key_ids, owners=(number, number.repeat_interleave(3)))
    pairs = Pairs(anchors, ids, torch.zeros(count), keys, key_ids, facts=PairFacts(same_sample=related))
    thresholds = torch.linspace(-0.5, 0.5, count, dtype=torch.float64)
    own = (anchors[:, None] * keys.view(count, 3, 4)).sum(2)
    counts = (key_ids.view(count, 3) != ids[:, None]) & (key_ids.view(count, 3) >= 0)
    assert pairs.available().tolist() == counts.sum(1).tolist()
    above = (own.detach() > thresholds[:, None]) & counts
    assert pairs.count_above(thresholds).tolist() == above.sum(1).tolist()
    sums = pairs.contrast(0.3, [Rule(), Rule(ceiling=thresholds)])
    for place, keep in enumerate((counts, counts & ~above)):
        expected = (own / 0.3).masked_fill(~keep, -torch.inf).logsumexp(1)
        torch.testing.assert_close(sums.log_sum[place], expected)
        some = keep.any(1)
        ours, theirs = (
            torch.autograd.grad(each[some].sum(), [anchors, keys], retain_graph=True)
            for each in (sums.log_sum[place], expected)
        )
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other)
