"""Measures without labels against cases by hand and loops; the two commands that print them agree."""

from __future__ import annotations

import math

import pytest
import torch

from antipodes.evaluation.protocols.label_free import alignment, duplicate_recall, effective_rank, uniformity
from antipodes.pairs import normalise


def circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def test_alignment_and_uniformity_by_hand() -> None:
    first, second = circle(0, 90) * 5, circle(60, 90)
    assert alignment(first, second) == pytest.approx((2 - 2 * 0.5) / 2, abs=1e-6)
    assert alignment(first, first) == 0
    assert alignment(first, -first) == pytest.approx(4)
    cosines = [0.0, -1.0, 0.0]  # of 0, 90, 180 degrees
    expected = math.log(sum(math.exp(-2 * (2 - 2 * cosine)) for cosine in cosines) / 3)
    assert uniformity(circle(0, 90, 180) * 7) == pytest.approx(expected)
    assert uniformity(torch.ones(5, 3)) == pytest.approx(0.0, abs=1e-9)
    many = torch.randn(3000, 16, generator=torch.Generator().manual_seed(0))
    assert uniformity(many) == pytest.approx(uniformity(many, most=2048), abs=0.02)


def test_the_effective_rank_counts_directions() -> None:
    generator = torch.Generator().manual_seed(0)
    plane = torch.randn(500, 2, generator=generator) @ torch.randn(2, 30, generator=generator)
    assert 1.5 < effective_rank(plane) <= 2.0 + 1e-6
    assert effective_rank(torch.randn(2000, 20, generator=generator)) > 19
    assert effective_rank(torch.ones(4, 3)) == pytest.approx(1.0)
    assert effective_rank(torch.zeros(3, 3)) == 1
    scaled = plane * torch.rand(500, 1, generator=generator)
    assert effective_rank(scaled) == pytest.approx(effective_rank(plane))  # lengths do not matter to a cosine


def test_duplicates_are_recalled_as_loops_find_them() -> None:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(30, 4, generator=generator)
    second = first + 0.8 * torch.randn(30, 4, generator=generator)
    both = normalise(torch.cat((first, second)))
    found = 0
    for view in range(60):
        others = (other for other in range(60) if other != view)
        nearest = sorted(others, key=lambda other: -float(both[view] @ both[other]))
        found += (view + 30) % 60 in nearest[:5]
    assert duplicate_recall(both, torch.arange(30).repeat(2)) == pytest.approx(found / 60)
    assert 0 < found < 60


def test_groups_of_several_and_samples_without_a_group() -> None:
    vectors = circle(0, 1, 90, 180, 270, 91)
    groups = torch.tensor([0, 0, 1, 1, -1, -1])  # the pair at 90 and 180 is not close
    assert duplicate_recall(vectors, groups, k=1) == 0.5
    assert math.isnan(duplicate_recall(vectors, torch.full((6,), -1)))
    assert math.isnan(duplicate_recall(vectors, torch.arange(6)))
    assert duplicate_recall(torch.ones(10, 2), torch.arange(5).repeat(2)) == 0  # a collapsed encoder finds nothing


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    groups = torch.arange(40) // 3
    whole = duplicate_recall(vectors, groups)
    monkeypatch.setattr("antipodes.evaluation.protocols.label_free.BLOCK_ELEMENTS", 90)
    assert duplicate_recall(vectors, groups) == whole


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="second"):
        alignment(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ValueError, match="embeddings"):
        uniformity(torch.ones(1, 3))
