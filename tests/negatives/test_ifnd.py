"""IFND: pairs enumerated by hand, everything flagged, two ranks, saved and continued; acceptance and granularities."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antipodes import InfoNCE
from antipodes.clustering import spherical_kmeans
from antipodes.negatives.controls import Oracle
from antipodes.negatives.ifnd import IFND, doubts, standing
from antipodes.pairs import Pairs, normalise
from tests.cases import every
from tests.ranks import Ranks
from tests.reference.clustering import confidence, kmeans_from_labels

DEGREES = (0, 10, 20, 170, 205, 270)  # two clusters around 10 and 213 degrees; the most confident ids: 2 4 1 0 3 5


def circle() -> Tensor:
    angles = torch.tensor(DEGREES) * math.pi / 180
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fitted(num_samples: int = 60, clusters: Sequence[int] = (3, 5, 9), **arguments: object) -> IFND:
    policy = IFND(num_samples, clusters, **arguments)  # type: ignore[arg-type]
    policy.fit(noise(num_samples, 6), progress=0.4)
    return policy


def decisions(policy: IFND, pairs: Pairs, progress: float, attract: bool = False) -> tuple[list[int], list[int]]:
    """How many candidates of every anchor the first granularity keeps and pulls."""
    rule = policy.judge(pairs, progress)[0]
    sums = pairs.contrast(1.0, rule.attract() if attract else rule)
    return sums.kept[0].tolist(), sums.pulled[0].tolist()


def batch(count: int) -> Pairs:
    """Two orthogonal views of every id."""
    return Pairs(torch.eye(2 * count), torch.arange(count).repeat(2), torch.zeros(2 * count))


def test_labels_and_confidences_by_hand() -> None:
    policy = IFND(6, (2,), temperature=0.4)
    policy.fit(circle(), progress=0.4)
    first = policy.labels[0, 0].item()
    groups = [0, 0, 0, 1, 1, 1]
    assert policy.labels[0].tolist() == [abs(first - group) for group in groups]
    labels, centroids = kmeans_from_labels(circle(), groups, 2, 1)
    assert labels == groups
    expected = confidence(circle(), centroids, labels, 0.4)
    torch.testing.assert_close(policy.confidence[0], torch.tensor(expected))
    assert policy.confidence[0].argsort(descending=True).tolist() == [2, 4, 1, 0, 3, 5]
    assert policy.fitted_at == pytest.approx(0.4)


@every(
    ("progress", "lost"),
    [
        (0.0, [0, 0, 0, 0, 0, 0]),
        (2 / 6, [0, 0, 0, 0, 0, 0]),  # 2 and 4, of different clusters
        (3 / 6, [0, 1, 1, 0, 0, 0]),
        (4 / 6, [2, 2, 2, 0, 0, 0]),
        (5 / 6, [2, 2, 2, 1, 1, 0]),
        (1.0, [2, 2, 2, 2, 2, 2]),
    ],
)
def test_pairs_of_a_batch_by_hand(progress: float, lost: list[int]) -> None:
    policy = IFND(6, (2,))
    policy.fit(circle(), progress=progress)
    kept = [10 - 2 * count for count in lost]  # of ten views of other samples; two views of each that is lost
    assert decisions(policy, batch(6), progress) == (kept * 2, [0] * 12)
    pulled = [2 * count for count in lost]
    assert decisions(policy, batch(6), progress, attract=True) == ([10] * 12, pulled * 2)


def test_pairs_with_a_queue_by_hand() -> None:
    policy = IFND(6, (2,))
    policy.fit(circle())
    ids, keys = torch.tensor([0, 3]), torch.tensor([1, -1, 0, 2, 5, 4, -1, 3])
    pairs = Pairs(torch.eye(8)[:2], ids, torch.zeros(2), torch.eye(8), keys)
    # of 1 0 2 5 4 3: anchor 0 loses itself, 1 and 2; anchor 3 loses itself, 4 and 5
    assert decisions(policy, pairs, 1.0) == ([3, 3], [0, 0])
    (rule,) = policy.judge(pairs, 1.0)
    assert (rule.groups[0].candidates < 0).tolist() == (keys < 0).tolist()
    # accepted are 2 4 1 0 3: anchor 3 keeps 5
    assert decisions(policy, pairs, 5 / 6) == ([3, 4], [0, 0])


def test_labels_are_looked_up_at_use() -> None:
    """A queue outlives a clustering: the same ids get the new labels."""
    policy = IFND(6, (2,))
    policy.fit(circle())
    policy.fit(circle()[[0, 3, 1, 4, 2, 5]])  # now 0 2 4 and 1 3 5 belong together
    ids = torch.arange(6)
    (rule,) = policy.judge(Pairs(torch.eye(6)[:1], ids[:1], torch.zeros(1), torch.eye(6), ids), 1.0)
    (group,) = rule.groups
    assert (group.candidates == group.anchors).tolist() == [True, False, True, False, True, False]


def test_a_second_fit_starts_from_the_labels() -> None:
    policy = fitted()
    old = [labels.long() for labels in policy.labels]
    drifted = noise(60, 6) + 0.3 * noise(60, 6, seed=1)
    policy.fit(drifted)
    for labels, warm, cold in zip(
        policy.labels,
        spherical_kmeans(drifted, policy.clusters, labels=old),
        spherical_kmeans(drifted, policy.clusters),
        strict=True,
    ):
        assert torch.equal(labels.long(), warm.labels)
        assert not torch.equal(labels.long(), cold.labels)


def test_nothing_is_flagged_before_the_first_fit() -> None:
    policy = IFND(6, (2, 3), acceptance="constant")
    assert decisions(policy, batch(6), 1.0) == ([10] * 12, [0] * 12)
    z1, z2 = noise(2, 6, 5)
    assert torch.equal(InfoNCE(0.1, policy)(z1, z2, torch.arange(6)), InfoNCE(0.1)(z1, z2, torch.arange(6)))


def steps(rank: int, world_size: int, alone: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Two fits (cold, warm), then the loss, the gradient and the state of one rank's part."""
    policy = IFND(21, (3, 5))
    share = slice(21 * rank // world_size, 21 * (rank + 1) // world_size) if alone else slice(None)
    features = noise(21, 6).double()
    policy.fit(features[share], progress=0.2)
    policy.fit((features + 0.3 * noise(21, 6, seed=1))[share], progress=0.4)
    part = slice(6 * rank // world_size, 6 * (rank + 1) // world_size)
    z1, z2 = noise(2, 6, 5).double()
    z1, z2 = z1[part].clone().requires_grad_(), z2[part].clone().requires_grad_()
    loss = InfoNCE(0.1, policy)(z1, z2, torch.arange(6)[part], progress=0.9)
    gradient = torch.stack(torch.autograd.grad(loss, (z1, z2)))
    return loss.detach() / world_size, gradient / world_size, dict(policy.state_dict())


@pytest.mark.parametrize("alone", [False, True])
def test_two_ranks_equal_one(alone: bool, two_ranks: Ranks) -> None:
    loss, gradient, state = steps(0, 1, alone)
    (first_loss, first, first_state), (second_loss, second, second_state) = two_ranks(steps, alone)
    torch.testing.assert_close(first_loss + second_loss, loss)
    torch.testing.assert_close(torch.cat((first, second), dim=1), gradient)
    assert all(torch.equal(first_state[name], second_state[name]) for name in state)
    torch.testing.assert_close(first_state, state)
    assert torch.equal(first_state["labels"], state["labels"])
    assert torch.equal(first_state["standing"], state["standing"])


def test_save_load_continue_is_bit_equal(tmp_path: Path) -> None:
    loss_fn = InfoNCE(0.1, fitted())
    torch.save(loss_fn.state_dict(), tmp_path / "saved")
    other = InfoNCE(0.1, IFND(60, (3, 5, 9)))
    other.load_state_dict(torch.load(tmp_path / "saved"))
    z1, z2 = noise(2, 60, 5)
    drifted = noise(60, 6) + 0.3 * noise(60, 6, seed=1)
    for features in (None, drifted):  # as loaded, then after a warm start from what was loaded
        if features is not None:
            for one in (loss_fn, other):
                one.negatives.fit(features, progress=0.5)  # type: ignore[union-attr,operator]
        assert torch.equal(
            loss_fn(z1, z2, torch.arange(60), progress=0.6), other(z1, z2, torch.arange(60), progress=0.6)
        )
    for name, saved in loss_fn.state_dict().items():
        assert torch.equal(saved, other.state_dict()[name])


def test_an_unfitted_state_unfits() -> None:
    policy = fitted()
    policy.load_state_dict(IFND(60, (3, 5, 9)).state_dict())
    assert policy.fitted_at < 0
    assert len(policy.judge(batch(6), 1.0)) == 1


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_the_loss_is_the_mean_over_granularities(treatment: str) -> None:
    z1, z2, ids = noise(30, 5, seed=1), noise(30, 5, seed=2), torch.arange(30)

    def loss(negatives: IFND | Oracle, progress: float = 0.7) -> Tensor:
        value: Tensor = InfoNCE(0.2, negatives, treatment)(z1, z2, ids, progress=progress)  # type: ignore[arg-type]
        return value

    several = loss(fitted())
    torch.testing.assert_close(several, torch.stack([loss(fitted(clusters=(k,))) for k in (3, 5, 9)]).mean())
    # one granularity is the oracle's loss on the labels that are accepted
    policy = fitted(clusters=(5,))
    accepted = policy.confidence[0].argsort(descending=True)[: round(0.7 * 60)]
    labels = torch.full((60,), -1).index_copy(0, accepted, policy.labels[0, accepted].long())
    torch.testing.assert_close(loss(policy), loss(Oracle(labels)))


def test_acceptance_only_adds_as_training_goes_on() -> None:
    policy = fitted()
    ids, before = torch.arange(60), torch.zeros(3, 60, dtype=torch.bool)
    pairs = Pairs(torch.eye(60), ids, torch.zeros(60))
    for progress in (0.1, 0.25, 0.5, 0.7, 0.95, 1.0):
        groups = torch.stack([rule.groups[0].anchors for rule in policy.judge(pairs, progress)])
        accepted = groups >= 0
        assert bool((accepted | ~before).all())
        assert torch.equal(groups[accepted], policy.labels[accepted].long())
        before = accepted
        assert accepted.sum(1).tolist() == [math.floor(progress * 60 + 0.5)] * 3
        for level, inside in zip(policy.confidence, accepted, strict=True):
            assert bool(inside.all()) or level[inside].min() >= level[~inside].max()
    assert bool(before.all())


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 40))
def test_standing_accepts_the_most_confident(values: list[int], count: int) -> None:
    n, confidence = len(values), torch.tensor(values) / 5
    accepted = standing(confidence, torch.zeros(n, dtype=torch.int64)) <= min(count, n) / n
    order = sorted(range(n), key=lambda row: (-values[row], row))
    assert accepted.nonzero()[:, 0].tolist() == sorted(order[:count])


@every(
    ("arguments", "rates"),
    [
        ({}, [0, 0.05, 0.1, 0.5, 1]),
        ({"final_rate": 0.5}, [0, 0.025, 0.05, 0.25, 0.5]),
        ({"acceptance": "step"}, [0, 0, 1, 1, 1]),
        ({"acceptance": "step", "step_at": 0.5, "final_rate": 0.3}, [0, 0, 0, 0.3, 0.3]),
        ({"acceptance": "constant"}, [1, 1, 1, 1, 1]),
        ({"acceptance": "constant", "final_rate": 0.2}, [0.2] * 5),
    ],
)
def test_schemes_of_table_4(arguments: dict[str, object], rates: list[float]) -> None:
    policy = IFND(60, **arguments)  # type: ignore[arg-type]
    assert [policy.rate(progress) for progress in (0.0, 0.05, 0.1, 0.5, 1.0)] == pytest.approx(rates)


def test_due_every_so_many_epochs() -> None:
    assert [epoch for epoch in range(10) if IFND(60, every=3).due(epoch)] == [3, 6, 9]
    assert [epoch for epoch in range(10) if IFND(60, every=3, acceptance="constant").due(epoch)] == [0, 3, 6, 9]


def test_confidences_equal_the_loops() -> None:
    features, centroids = noise(1030, 4).double(), normalise(noise(6, 4, seed=1).double())
    labels = torch.arange(1030) % 6
    expected = confidence(features, centroids.tolist(), labels.tolist(), 0.2)
    values = -doubts(features, centroids, labels, 0.2).expm1()
    torch.testing.assert_close(values, torch.tensor(expected).double())


def test_confidences_stay_finite_at_a_low_temperature() -> None:
    labels = torch.tensor([0, 1, 1])
    values = -doubts(torch.tensor([[1.0, 0], [1, 0], [0, 0]]), torch.eye(2), labels, 1e-3).expm1()
    torch.testing.assert_close(values, torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64))


def test_confidences_that_are_all_one_are_still_ranked() -> None:
    """Two tight classes, sorted by class: at a low temperature kappa is 1 for all, and ties went to the first class."""
    angles = torch.cat((torch.linspace(0, 0.2, 20), torch.linspace(2.0, 2.2, 20)))
    policy = IFND(40, (2,), temperature=0.02)
    policy.fit(torch.stack((angles.cos(), angles.sin()), dim=1))
    assert bool((policy.confidence == 1).all())
    accepted = policy.accepted(torch.arange(40), 0.5)[0] >= 0
    assert int(accepted.sum()) == 20
    assert int(accepted[:20].sum()) == 10


def test_without_fit_it_says_so_once() -> None:
    pairs = Pairs(torch.eye(4), torch.arange(4), torch.ones(4))
    policy = IFND(4, (2,))
    policy.judge(pairs, 0.0)  # nothing would be accepted yet
    with pytest.warns(UserWarning, match="IFND has no clusters yet"):
        policy.judge(pairs, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.judge(pairs, 0.5)
        driven = IFND(4, (2,))
        driven.due(0)  # a loop that asks is going to fit
        driven.judge(pairs, 0.5)


def test_export_names_every_granularity() -> None:
    policy = fitted()
    exported = policy.export()
    assert {name: tuple(value.shape) for name, value in exported.items()} == {
        **{f"labels_{k}": (60,) for k in (3, 5, 9)},
        **{f"confidence_{k}": (60,) for k in (3, 5, 9)},
        **{f"centroids_{k}": (k, 6) for k in (3, 5, 9)},
    }
    for k in (3, 5, 9):
        doubt = doubts(noise(60, 6), exported[f"centroids_{k}"], exported[f"labels_{k}"], policy.temperature)
        torch.testing.assert_close(-doubt.expm1().float(), exported[f"confidence_{k}"])
    with pytest.raises(ValueError, match="call fit first"):
        IFND(60).export()


def test_fit_reports_and_takes_any_kind_of_features() -> None:
    shares: list[float] = []
    policy = IFND(60, (3,))
    policy.fit(noise(60, 6).bfloat16().requires_grad_(), 0.1, shares.append)
    assert shares[-1] == 1
    policy.fit(noise(60, 8).double(), 0.2)  # another space: the labels carry over, the centroids are new
    assert policy.centroids.shape == (3, 8)
    assert not policy.centroids.requires_grad


def test_wrong_features_leave_the_labels_alone() -> None:
    policy = fitted()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    broken = noise(60, 6)
    broken[7, 2] = math.nan
    for features, sentence in (
        (noise(59, 6), r"features must be \(60, F\), a row for every sample, got \(59, 6\)"),
        (noise(60), r"features must be \(60, F\)"),
        (broken, "1 rows of features hold NaN"),
    ):
        with pytest.raises(ValueError, match=sentence):
            policy.fit(features)
    with pytest.raises(ValueError, match=r"progress must be in \[0, 1\], got 2"):
        policy.fit(noise(60, 6), progress=2)
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_refuses_ids_outside_the_dataset() -> None:
    with pytest.raises(ValueError, match=r"ids must be in 0\.\.59"):
        fitted().judge(Pairs(torch.eye(2), torch.tensor([0, 60]), torch.zeros(2)), 0.5)


@every(
    ("arguments", "sentence"),
    [
        ({"num_samples": 40}, r"between 1 and the 40 samples, got \(10, 20, 50\)"),
        ({"clusters": ()}, "clusters must be different numbers"),
        ({"clusters": (5, 5)}, "clusters must be different numbers"),
        ({"acceptance": "cosine"}, "acceptance must be one of linear, step, constant, got 'cosine'"),
        ({"final_rate": 1.5}, r"final_rate must be in \[0, 1\], got 1.5"),
        ({"step_at": 0}, r"step_at must be in \(0, 1\], got 0"),
        ({"every": 0}, "every must be at least 1"),
        ({"temperature": 0}, "temperature must be above 0"),
    ],
)
def test_refuses_arguments(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        IFND(**{"num_samples": 60, **arguments})  # type: ignore[arg-type]


def see_and_fit(rank: int, world_size: int) -> dict[str, Tensor]:
    """Three batches go by, then a fit on what was seen; this rank's part of every batch."""
    loss_fn = InfoNCE(0.1, IFND(24, (3, 5), acceptance="constant", space="seen"))
    policy = loss_fn.negatives
    assert isinstance(policy, IFND)
    for step in range(3):
        ids = torch.arange(24).roll(step)[:16].chunk(world_size)[rank]
        z1, z2 = noise(24, 6, seed=step)[ids], noise(24, 6, seed=step + 10)[ids]
        loss_fn(z1, z2, ids)
    policy.fit(None, 0.5)
    return {name: value.clone() for name, value in loss_fn.state_dict().items()}


def test_seen_embeddings_are_the_mean_of_the_last_views(two_ranks: Ranks) -> None:
    state = see_and_fit(0, 1)
    seen = state["negatives.seen"]
    ids = torch.arange(24).roll(2)[:16]
    expected = normalise(normalise(noise(24, 6, seed=2)) + normalise(noise(24, 6, seed=12)))
    torch.testing.assert_close(seen[ids], expected[ids])
    assert bool((seen[17:22].norm(dim=1) == 0).all())  # never in a batch
    by_hand = IFND(24, (3, 5), acceptance="constant")
    by_hand.fit(seen, 0.5)
    assert torch.equal(by_hand.labels, state["negatives.labels"])
    for other in two_ranks(see_and_fit):
        torch.testing.assert_close(other, state)


def test_seen_embeddings_are_saved() -> None:
    state = see_and_fit(0, 1)
    policy = IFND(24, (3, 5), acceptance="constant", space="seen")
    InfoNCE(0.1, policy).load_state_dict(state)
    assert torch.equal(policy.seen, state["negatives.seen"])
    assert not policy.due(0)
    assert policy.due(1)


def test_a_joined_policy_hands_its_features_on() -> None:
    joined = IFND(60, (3,), every=2) & Oracle(torch.zeros(60, dtype=torch.int64))
    assert [joined.due(epoch) for epoch in range(4)] == [False, False, True, False]
    joined.fit(noise(60, 6), 0.5)
    assert isinstance(joined.first, IFND)
    assert joined.first.fitted_at == 0.5
