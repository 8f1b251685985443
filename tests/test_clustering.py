"""Spherical k-means: against loops, warm and cold, degenerate rows, two ranks, and what it refuses."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from antipodes import clustering
from antipodes.clustering import Clustering, spherical_kmeans
from antipodes.pairs import normalise
from tests.ranks import Ranks
from tests.reference.clustering import kmeans_from_labels


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def blobs(groups: int = 8, each: int = 50, width: int = 16, spread: float = 0.1) -> tuple[Tensor, Tensor]:
    """Rows of any length around orthogonal directions, in mixed order, and their groups."""
    order = torch.randperm(groups * each, generator=torch.Generator().manual_seed(1))
    group = torch.arange(groups).repeat_interleave(each)[order]
    rows = torch.eye(width)[group] + spread * noise(groups * each, width)
    return rows * (1 + 3 * noise(groups * each, 1).abs()), group


def at(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def test_equals_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    for iterations in [1, 3]:
        monkeypatch.setattr(clustering, "BLOCK", 7)
        features = noise(60, 5).double()
        starts = [torch.arange(60) % k for k in (3, 5)]
        results = spherical_kmeans(features, (3, 5), labels=starts, iterations=iterations, tolerance=0)
        for k, start, result in zip((3, 5), starts, results, strict=True):
            labels, centroids = kmeans_from_labels(features, start.tolist(), k, iterations)
            assert result.labels.tolist() == labels
            torch.testing.assert_close(result.centroids, torch.tensor(centroids, dtype=torch.float64))
            own = (normalise(features) * torch.tensor(centroids, dtype=torch.float64)[labels]).sum(1)
            torch.testing.assert_close(result.similarity, own)
            assert result.inertia == pytest.approx(1 - own.mean().item())


def test_by_hand_on_the_circle() -> None:
    features = at(0, 20, 70, 100, 190) * torch.tensor([[1.0], [5.0], [0.1], [1.0], [2.0]])
    start = torch.tensor([0, 0, 0, 1, 2])
    (result,) = spherical_kmeans(features, (3,), labels=[start], iterations=1)
    mean = at(0, 20, 70).sum(0)
    middle = math.degrees(math.atan2(mean[1], mean[0]))  # about 29: 70 degrees is nearer to 100
    assert result.labels.tolist() == [0, 0, 1, 1, 2]
    torch.testing.assert_close(result.centroids, at(middle, 100, 190))
    expected = [middle, middle - 20, 30, 0, 0]
    torch.testing.assert_close(result.similarity, (torch.tensor(expected).double() * math.pi / 180).cos())
    (settled,) = spherical_kmeans(features, (3,), labels=[start])
    torch.testing.assert_close(settled.centroids, at(10, 85, 190))


def test_cold_start_finds_separate_groups() -> None:
    features, group = blobs()
    for seed in range(5):
        coarse, fine, one = spherical_kmeans(features, (8, 20, 1), seed=seed)
        assert torch.unique(group * 8 + coarse.labels).numel() == 8
        assert torch.unique(fine.labels).numel() == 20
        assert fine.inertia < coarse.inertia < one.inertia
        assert not one.labels.any()
        torch.testing.assert_close(one.centroids[0], normalise(normalise(features).sum(0)))


def test_labels_are_the_nearest_centroids_and_centroids_the_means_of_a_settled_run() -> None:
    features = noise(300, 6).double()
    (result,) = spherical_kmeans(features, (7,), iterations=500)
    similarities = normalise(features) @ result.centroids.T
    assert torch.equal(similarities.argmax(1), result.labels)
    torch.testing.assert_close(similarities.amax(1), result.similarity)
    for number in range(7):
        mean = normalise(normalise(features)[result.labels == number].sum(0))
        torch.testing.assert_close(result.centroids[number], mean)


def test_every_iteration_lowers_the_inertia() -> None:
    features = noise(500, 6)
    values = [spherical_kmeans(features, (9,), iterations=count)[0].inertia for count in range(1, 12)]
    assert all(late <= early + 1e-7 for early, late in pairwise(values))
    assert values[-1] < 0.95 * values[0]


def test_several_numbers_at_once_equal_each_by_itself() -> None:
    features = noise(200, 6).double()
    for batch_neighbours, k in zip(spherical_kmeans(features, (3, 11), iterations=4), (3, 11), strict=True):
        (alone,) = spherical_kmeans(features, (k,), iterations=4)
        assert torch.equal(batch_neighbours.labels, alone.labels)
        torch.testing.assert_close(batch_neighbours.centroids, alone.centroids)


def test_warm_start_keeps_the_numbers_of_drifted_clusters() -> None:
    features, _ = blobs()
    (old,) = spherical_kmeans(features, (8,))
    turned = features @ torch.linalg.qr(noise(16, 16)).Q  # the whole space turned: centroids would be useless
    (new,) = spherical_kmeans(turned + 0.02 * noise(400, 16, seed=2), (8,), labels=[old.labels])
    assert torch.equal(new.labels, old.labels)


def test_warm_start_of_drifted_features_is_as_good_as_a_cold_one() -> None:
    features = noise(2000, 12)
    old = spherical_kmeans(features, (10, 30))
    drifted = normalise(features) + 0.33 * normalise(noise(2000, 12, seed=2))  # mean cosine .95
    warm = spherical_kmeans(drifted, (10, 30), labels=[result.labels for result in old])
    cold = spherical_kmeans(drifted, (10, 30))
    assert all(a.inertia < 1.02 * b.inertia for a, b in zip(warm, cold, strict=True))


def test_stops_when_labels_settle() -> None:
    features, group = blobs()
    shares: list[float] = []
    spherical_kmeans(features, (8,), labels=[group], iterations=10, progress=shares.append)
    assert shares == [0.1, 1.0]


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    spherical_kmeans(noise(3000, 6), (5,), iterations=3, progress=shares.append)
    assert len(shares) == 3 * 3 + 1
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_same_seed_same_clusters_and_the_global_generator_is_left_alone() -> None:
    features = noise(200, 6)
    state = torch.get_rng_state()
    first, again, other = (spherical_kmeans(features, (9,), seed=seed, iterations=2)[0] for seed in (3, 3, 4))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.centroids, again.centroids)
    assert not torch.equal(first.centroids, other.centroids)
    assert torch.equal(state, torch.get_rng_state())


def test_an_empty_cluster_takes_the_least_similar_row() -> None:
    features = at(0, 10, 20, 80, -10)
    (once,) = spherical_kmeans(features, (2,), labels=[torch.zeros(5, dtype=torch.int64)], iterations=1)
    assert once.labels.tolist() == [0, 0, 0, 1, 0]
    torch.testing.assert_close(once.centroids[1], at(80)[0])
    assert once.similarity[3] == 1
    (settled,) = spherical_kmeans(features, (2,), labels=[torch.zeros(5, dtype=torch.int64)])
    torch.testing.assert_close(settled.centroids, at(5, 80))


def test_more_clusters_than_directions() -> None:
    for warm in [True, False]:
        features = torch.ones(10, 3)
        labels = [torch.zeros(10, dtype=torch.int64)] if warm else None
        (result,) = spherical_kmeans(features, (4,), labels=labels)
        assert result.labels.unique().tolist() == [0, 1, 2, 3]
        torch.testing.assert_close(result.centroids, normalise(torch.ones(4, 3)))
        assert result.inertia == pytest.approx(0, abs=1e-6)


def test_as_many_clusters_as_rows() -> None:
    (result,) = spherical_kmeans(noise(12, 3), (12,))
    assert result.labels.unique().numel() == 12
    assert result.inertia == pytest.approx(0, abs=1e-6)


def test_zero_rows_have_cosine_zero_and_leave_the_others_alone() -> None:
    features, group = blobs(groups=4)
    features[::10] = 0
    (result,) = spherical_kmeans(features, (4,))
    there = features.any(1)
    assert torch.unique((group * 4 + result.labels)[there]).numel() == 4
    assert not result.similarity[~there].any()
    (none,) = spherical_kmeans(torch.zeros(6, 3), (2,))
    assert none.inertia == 1
    assert not none.centroids.any()


def test_an_empty_cluster_does_not_take_a_zero_row() -> None:
    features = torch.cat((torch.zeros(3, 2).double(), at(0, 10, 90)))
    (result,) = spherical_kmeans(features, (2,), labels=[torch.zeros(6, dtype=torch.int64)])
    torch.testing.assert_close(result.centroids, at(5, 90))


def test_the_cold_start_draws_no_zero_rows() -> None:
    features = torch.cat((torch.zeros(60, 2).double(), at(0, 90)))
    for seed in range(10):
        (result,) = spherical_kmeans(features, (2,), seed=seed)
        assert result.labels[60] != result.labels[61]
        torch.testing.assert_close(result.similarity[60:], torch.ones(2).double())


def test_nobody_joins_a_cluster_without_a_direction() -> None:
    """The zero vector is nearer than a centroid on the other side, but it is not a place."""
    (result,) = spherical_kmeans(at(0, 10, -10, 180), (3,), labels=[torch.zeros(4, dtype=torch.int64)], iterations=1)
    assert result.labels[3] == 1
    torch.testing.assert_close(result.centroids[1], at(180)[0])


def test_members_that_cancel_out_stay_finite() -> None:
    (result,) = spherical_kmeans(at(0, 180), (1,))
    assert result.labels.tolist() == [0, 0]
    assert result.centroids.isfinite().all()
    assert result.similarity.isfinite().all()


def test_length_does_not_matter() -> None:
    for factor in [1e-30, 1e30]:
        features = noise(100, 6)
        (plain,), (scaled,) = (spherical_kmeans(rows, (5,)) for rows in (features, features * factor))
        assert torch.equal(plain.labels, scaled.labels)


def test_half_precision_and_gradients_come_in() -> None:
    features, group = blobs()
    (result,) = spherical_kmeans(features.bfloat16().requires_grad_(), (8,))
    assert torch.unique(group * 8 + result.labels).numel() == 8
    assert result.centroids.dtype == torch.float32
    assert not result.centroids.requires_grad


def clustered(rank: int, world_size: int, kind: str) -> list[Clustering]:
    """One rank's share of unequal shares; `empty` starts with clusters that have no member."""
    features, start = noise(101, 6).double(), torch.arange(101) % 4
    if kind == "scarce":  # less rows on the first rank than clusters to fill
        part = slice(0, 2) if rank == 0 and world_size == 2 else slice(2 if world_size == 2 else 0, 101)
    else:
        part = slice(101 * rank // world_size, 101 * (rank + 1) // world_size)
    labels = None if kind == "cold" else [start[part], start[part]]
    return spherical_kmeans(features[part], (4, 9), labels=labels, iterations=5, seed=1)


@pytest.mark.parametrize("kind", ["cold", "empty", "scarce"])
def test_two_ranks_equal_one(kind: str, two_ranks: Ranks) -> None:
    first, second = two_ranks(clustered, kind)
    for whole, a, b in zip(clustered(0, 1, kind), first, second, strict=True):
        assert torch.equal(torch.cat((a.labels, b.labels)), whole.labels)
        torch.testing.assert_close(torch.cat((a.similarity, b.similarity)), whole.similarity)
        torch.testing.assert_close(a.centroids, whole.centroids)
        assert torch.equal(a.centroids, b.centroids)
        assert a.inertia == b.inertia == pytest.approx(whole.inertia)


def refused(rank: int, world_size: int) -> str:
    features = noise(10, 3)
    if rank == 1:
        features[4] = math.nan
    with pytest.raises(ValueError) as caught:
        spherical_kmeans(features, (2,))
    return str(caught.value)


def test_all_ranks_refuse_what_one_of_them_holds(two_ranks: Ranks) -> None:
    assert two_ranks(refused) == ["1 rows of features hold NaN or infinite numbers: check the encoder's output"] * 2


def test_refuses() -> None:
    for features, clusters, labels, sentence in [
        (torch.ones(4), (2,), None, r"features must be floating point \(n, F\)"),
        (torch.ones(4, 2, dtype=torch.int64), (2,), None, "features must be floating point"),
        (torch.full((4, 2), math.inf), (2,), None, "4 rows of features hold NaN or infinite"),
        (torch.ones(4, 2), (2, 5), None, "between 1 and the 4 rows, got \\(2, 5\\)"),
        (torch.ones(4, 2), (0,), None, "between 1 and the 4 rows"),
        (torch.ones(4, 2), (), None, "between 1 and the 4 rows"),
        (torch.ones(4, 2), (2,), [torch.zeros(3, dtype=torch.int64)], r"1 tensors of shape \(4,\)"),
        (torch.ones(4, 2), (2,), [], r"1 tensors of shape \(4,\)"),
        (torch.ones(4, 2), (2,), [torch.tensor([0, 1, 2, 0])], r"labels of 2 clusters must be whole numbers in 0..1"),
        (torch.ones(4, 2), (2,), [torch.zeros(4)], "whole numbers in 0..1"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            spherical_kmeans(features, clusters, labels=labels)


def test_refuses_no_iterations() -> None:
    with pytest.raises(ValueError, match="iterations must be at least 1"):
        spherical_kmeans(torch.ones(4, 2), (2,), iterations=0)
