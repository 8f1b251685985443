from __future__ import annotations

import math

import pytest
import torch

from antipodes.audit.measures import alignment, duplicate_recall, effective_rank, two_view_retrieval, uniformity


def circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_retrieval_by_hand() -> None:
    first, second = circle(0, 90, 180), circle(10, 170, 200)  # 90 is nearest to 10 and 170 alike, 180 to 170
    assert two_view_retrieval(first, second[[0, 2, 1]]) == pytest.approx(2 / 3)
    assert two_view_retrieval(first, second, k=3) == 1.0


def test_alignment_and_uniformity_by_hand() -> None:
    first, second = circle(0, 90) * 5, circle(60, 90)
    assert alignment(first, second) == pytest.approx((2 - 2 * 0.5) / 2, abs=1e-6)
    cosines = [0.0, -1.0, 0.0]  # of 0, 90, 180 degrees
    expected = math.log(sum(math.exp(-2 * (2 - 2 * cosine)) for cosine in cosines) / 3)
    assert uniformity(circle(0, 90, 180)) == pytest.approx(expected)
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0.0, abs=1e-9)
    many = torch.randn(3000, 16, generator=torch.Generator().manual_seed(0))
    assert uniformity(many) == pytest.approx(uniformity(many[:2048]), abs=0.02)


def test_the_effective_rank_counts_directions() -> None:
    plane = torch.randn(500, 2, generator=torch.Generator().manual_seed(0)) @ torch.randn(2, 30)
    assert 1.5 < effective_rank(plane) <= 2.0 + 1e-6
    assert effective_rank(torch.randn(2000, 20, generator=torch.Generator().manual_seed(1))) > 19
    assert effective_rank(torch.ones(4, 3)) == pytest.approx(1.0)


def test_duplicates_are_recalled() -> None:
    vectors = circle(0, 1, 90, 180, 270, 91)
    groups = torch.tensor([0, 0, 1, 1, -1, -1])  # the pair at 90 and 180 is not close
    assert duplicate_recall(vectors, groups, k=1) == 0.5
    assert math.isnan(duplicate_recall(vectors, torch.full((6,), -1)))


def test_views_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="one shape"):
        alignment(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ValueError, match="two vectors"):
        uniformity(torch.ones(1, 3))
