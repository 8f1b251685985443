"""The share of false negatives without labels: clusters whose share is known, by hand and by chance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from antipodes.negatives import estimate_alpha
from tests.cases import every


def clusters(classes: int, each: int, noise: float, seed: int = 0, dim: int = 32) -> tuple[Tensor, Tensor, float]:
    """Two views of every sample, both as far from their class's centre as class mates are, and the true share."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator).repeat_interleave(each, 0)
    first, second = (centres + noise * torch.randn(centres.shape, generator=generator) for _ in range(2))
    return first, second, (each - 1) / (classes * each - 1)


def test_four_pairs_by_hand() -> None:
    """Samples at 0, 10, 90 and 100 degrees; twins are 10, 20, 20 and 30 degrees apart, median 20."""
    degrees, other = torch.tensor([[0, 10, 90, 100], [10, 30, 110, 70]]).double()
    z, twins = (torch.stack((angle.deg2rad().cos(), angle.deg2rad().sin()), 1) for angle in (degrees, other))
    found = estimate_alpha(z, twins=twins)
    # of 12 ordered pairs 4 are within 20 degrees, and 3 of the 4 twins
    assert found.twins == pytest.approx((4 / 12) / (3 / 4))
    assert found.mixture <= found.twins
    assert math.isnan(found.guide)


@every(("classes", "each"), [(2, 100), (10, 40), (40, 8)])
@every("noise", [0.1, 0.3])
def test_separate_clusters_are_recovered(classes: int, each: int, noise: float) -> None:
    first, second, share = clusters(classes, each, noise)
    noisy = first + 3 * torch.randn(first.shape, generator=torch.Generator().manual_seed(9))
    found = estimate_alpha(noisy, guide=(first, second))
    assert found.guide == pytest.approx(share, rel=0.2)
    assert found.mixture == pytest.approx(share, rel=0.2)
    found = estimate_alpha(first, twins=second)
    assert found.twins == pytest.approx(share, rel=0.2)
    assert found.mixture == pytest.approx(share, rel=0.2)


def test_overlapping_clusters_are_recovered_within_a_factor() -> None:
    """Where classes overlap, the mixture looks at the end where true negatives are rare."""
    first, second, share = clusters(10, 40, 1.0)
    found = estimate_alpha(first, twins=second)
    assert share / 2 < found.mixture < 2 * share


def test_fewer_samples_and_everything_alike() -> None:
    first, second, share = clusters(5, 100, 0.2)
    assert estimate_alpha(first, twins=second, most=200).twins == pytest.approx(share, rel=0.3)
    alike = torch.ones(5, 3)
    assert estimate_alpha(alike, (alike, alike), alike) == (1.0, 1.0, 1.0)


def test_every_sample_has_an_estimate_by_hand() -> None:
    """Samples at 0, 5, 10, 60 and 180 degrees; all twins are 6 degrees apart."""
    z, twins = (
        torch.stack((angle.deg2rad().cos(), angle.deg2rad().sin()), 1)
        for angle in torch.tensor([[0, 5, 10, 60, 180], [6, 11, 16, 66, 186]]).double()
    )
    found = estimate_alpha(z, twins=twins, guide=(z, twins), per_sample=True)
    expected = torch.tensor([1, 2, 1, 0, 0]) / 4  # of the four others those within 6 degrees
    for estimate in found:
        torch.testing.assert_close(estimate.float(), expected)
    assert estimate_alpha(z, twins=twins).twins == pytest.approx(float(expected.mean()))
    assert bool(estimate_alpha(z, guide=(z, twins), per_sample=True).twins.isnan().all())


def test_samples_of_large_classes_have_more_false_negatives() -> None:
    first, second, _ = clusters(8, 30, 0.2)
    kept = torch.cat((torch.arange(30), torch.arange(30, 240, 3)))  # one class of thirty, seven of ten
    found = estimate_alpha(first[kept], twins=second[kept], per_sample=True).twins
    assert float(found[:30].mean()) == pytest.approx(29 / 99, rel=0.2)
    assert float(found[30:].mean()) == pytest.approx(9 / 99, rel=0.2)
    fewer = estimate_alpha(first[kept], twins=second[kept], most=50, per_sample=True).twins
    assert fewer.shape == (100,)
    assert float(fewer[:30].mean()) == pytest.approx(29 / 99, rel=0.3)


def test_wrong_arguments_get_one_sentence() -> None:
    z = torch.eye(4)
    with pytest.raises(ValueError, match="give twins or a guide"):
        estimate_alpha(z)
    with pytest.raises(ValueError, match="at least three samples"):
        estimate_alpha(z[:2], twins=z[:2])
    with pytest.raises(ValueError, match="twins must be like"):
        estimate_alpha(z, twins=z[:3])
    with pytest.raises(ValueError, match=r"guide must be two \(4, G\)"):
        estimate_alpha(z, guide=(z, z[:2]))
    with pytest.raises(ValueError, match="quantile must be in"):
        estimate_alpha(z, twins=z, quantile=1.0)
