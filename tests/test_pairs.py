"""Pairs and normalisation: counts against loops, gradients at the edges of floating point."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from antipodes.pairs import Pairs, normalise


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
