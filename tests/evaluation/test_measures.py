"""Measures against cases by hand, loops and scikit-learn."""

from __future__ import annotations

import pytest
import torch

from antipodes.evaluation.accuracy import accuracy, average_precision
from antipodes.evaluation.protocols.false_negatives import pair_rates
from antipodes.functional.feature_quality import first_ranks, recalls


def test_accuracies_by_hand() -> None:
    logits = torch.tensor([[9.0, 1, 2, 3, 4, 5], [9.0, 8, 7, 6, 5, 4], [1.0, 2, 3, 4, 5, 6]])
    found = accuracy(logits, torch.tensor([0, 5, 0]))
    assert found.top1 == pytest.approx(1 / 3)
    assert found.top5 == pytest.approx(1 / 3)
    assert found.mean_per_class == pytest.approx((1 / 2 + 0) / 2)
    assert set(found.named("x")) == {"x top-1", "x top-5", "x mean per class"}


def test_average_precision_equals_scikit_learn_and_vocs_eleven_points() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    truth = (torch.rand(60, generator=generator) < 0.3).long()
    scores = torch.rand(60, generator=generator) + 0.5 * truth
    expected = metrics.average_precision_score(truth.numpy(), scores.numpy())
    assert average_precision(scores, truth, points=None) == pytest.approx(expected)
    assert average_precision(scores, torch.where(scores < scores.median(), -1, truth), points=None) != expected
    # right at the 1st and 3rd of 3: precision 1 up to recall .5 (levels 0 to .5), then 2/3 (.6 to 1)
    eleven = average_precision(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 1]))
    assert eleven == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    assert average_precision(torch.tensor([1.0]), torch.tensor([0])) == 0


def rates_by_loops(labels: list[int], clusters: list[int]) -> tuple[float, float]:
    positive, negative = [], []
    for i in range(len(labels)):
        others = [k for k in range(len(labels)) if k != i]
        same = [k for k in others if labels[k] == labels[i] and labels[i] >= 0]
        flagged = [k for k in others if clusters[k] == clusters[i] and clusters[i] >= 0]
        if same:
            positive.append(len(set(same) & set(flagged)) / len(same))
        if len(others) > len(same):
            apart = set(others) - set(same)
            negative.append(len(apart - set(flagged)) / len(apart))
    return sum(positive) / len(positive), sum(negative) / len(negative)


def test_rates_of_pseudo_labels_equal_a_loop_over_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(-1, 5, (70,), generator=generator)
    clusters = torch.randint(-1, 8, (70,), generator=generator)
    assert pair_rates(labels, clusters) == pytest.approx(rates_by_loops(labels.tolist(), clusters.tolist()))
    assert pair_rates(labels.clamp(min=0), torch.full((70,), -1)) == (0.0, 1.0)  # nothing accepted: SimCLR
    known = torch.arange(70) % 5
    assert pair_rates(known, known) == (1.0, 1.0)


def five_captions() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three images on a circle, five captions each, placed by hand in degrees."""
    images = [0.0, 90.0, 180.0]
    texts = [
        *(80.0, 70.0, 5.0, 60.0, 50.0),  # of image 0: the third is nearest to it, 80 and 70, 60, 50 nearer to image 1
        *(100.0, 110.0, 120.0, 95.0, 130.0),  # of image 1: 95 is nearest to it
        *(92.0, 91.0, 89.0, 88.0, 140.0),  # of image 2: only 140 is near, and it is nearer to 180 than to 90
    ]
    owners = torch.arange(3).repeat_interleave(5)
    return _circle(images), _circle(texts), owners


def _circle(degrees: list[float]) -> torch.Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), 1).double()


def test_any_of_five_captions_counts() -> None:
    images, texts, owners = five_captions()
    own = torch.arange(3)
    # image 0 (0 degrees): nearest text is 5 degrees, its own. Image 1 (90): 91 and 89 (1 off), 92 and 88 (2 off) are of
    # image 2, then 95, its own: rank 4. Image 2 (180): 140 is its own and nearest.
    assert first_ranks(images, texts, own, owners).tolist() == [0, 4, 0]
    # texts of image 0: 80, 70, 60, 50 are nearer to image 1 but not to image 2: rank 1, but 5 has rank 0; those of
    # image 1 all rank 0; of image 2: 92, 91: image 1 first, then 2: rank 1; 89, 88: images 1 and 0 first: rank 2
    expected = [1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 2, 2, 0]
    assert first_ranks(texts, images, owners, own).tolist() == expected
    assert recalls(first_ranks(images, texts, own, owners)) == pytest.approx({1: 2 / 3, 5: 1.0, 10: 1.0})


def test_ties_are_no_finds_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    same = torch.ones(4, 3)
    ids = torch.arange(4)
    assert first_ranks(same, same, ids, ids).tolist() == [3, 3, 3, 3]  # a collapsed encoder finds nothing
    images, texts, owners = five_captions()
    whole = first_ranks(texts, images, owners, torch.arange(3))
    monkeypatch.setattr("antipodes.functional.feature_quality.BLOCK_ELEMENTS", 7)
    assert torch.equal(first_ranks(texts, images, owners, torch.arange(3)), whole)
    with pytest.raises(ValueError, match="1 of 4 queries have nothing to find, first number 3"):
        first_ranks(same, same, ids, torch.tensor([0, 1, 2, 2]))
