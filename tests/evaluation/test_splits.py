import pytest
import torch

from antipodes.evaluation.features import class_balanced_subset, stratified_split

LABELS = torch.tensor([2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0])  # ten of 0, four of 1, one of 2


@pytest.mark.parametrize(("fraction", "counts"), [(0.01, [1, 1, 1]), (0.3, [3, 1, 1]), (0.5, [5, 2, 1])])
def test_subset_has_the_share_of_each_class_and_at_least_one(fraction: float, counts: list[int]) -> None:
    ids = class_balanced_subset(LABELS, fraction, seed=0)
    assert LABELS[ids].bincount().tolist() == counts
    assert ids.tolist() == sorted(set(ids.tolist()))


def test_subset_of_everything_is_everything() -> None:
    assert torch.equal(class_balanced_subset(LABELS, 1.0, seed=0), torch.arange(len(LABELS)))


def test_smaller_subsets_are_part_of_larger_ones() -> None:
    labels = torch.arange(1000) % 10
    one, ten = (set(class_balanced_subset(labels, share, seed=1).tolist()) for share in (0.01, 0.1))
    assert len(one) == 10
    assert one < ten


def test_draws_follow_the_seed_and_leave_the_global_generator_alone() -> None:
    labels = torch.arange(1000) % 10
    state = torch.random.get_rng_state()
    first = class_balanced_subset(labels, 0.1, seed=1)
    assert torch.equal(first, class_balanced_subset(labels, 0.1, seed=1))
    assert not torch.equal(first, class_balanced_subset(labels, 0.1, seed=2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_every_sample_is_drawn_equally_often() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1])
    drawn = torch.zeros(8)
    for seed in range(400):
        drawn[class_balanced_subset(labels, 0.5, seed)] += 1
    assert ((drawn / 400 - 0.5).abs() < 0.12).all()  # 4.8 standard deviations


def test_split_is_a_partition_with_something_of_each_class_on_both_sides() -> None:
    kept, held = stratified_split(LABELS, 0.2, seed=0)
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(LABELS)))
    assert LABELS[held].bincount().tolist() == [2, 1]  # the class of one sample is only kept
    assert LABELS[kept].bincount().tolist() == [8, 3, 1]


def test_split_never_takes_the_last_sample_of_a_class() -> None:
    kept, held = stratified_split(torch.tensor([0, 0, 1, 1]), 0.99, seed=0)
    assert (len(kept), len(held)) == (2, 2)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_split_refuses_a_fraction_outside_its_range(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\)"):
        stratified_split(LABELS, fraction, seed=0)


def test_subset_refuses_a_fraction_outside_its_range() -> None:
    with pytest.raises(ValueError, match=r"fraction must be in \(0, 1\]"):
        class_balanced_subset(LABELS, 0.0, seed=0)


def test_split_refuses_classes_of_one_sample_only() -> None:
    with pytest.raises(ValueError, match="at least one class needs two samples"):
        stratified_split(torch.arange(5), 0.2, seed=0)
