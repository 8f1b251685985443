import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from antipodes.functional import neighbours as module
from antipodes.functional.feature_quality import knn, neighbours, vote


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def noisy(count: int, seed: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.randn(classes, 8, generator=torch.Generator().manual_seed(99))
    return means[labels] + 2 * torch.randn(count, 8, generator=generator), labels


def test_neighbours_on_a_circle() -> None:
    train = circle(0, 20, 90, 180) * torch.tensor([[1.0], [5.0], [0.1], [2.0]])  # lengths do not matter
    similarity, index = neighbours(train, 3 * circle(5, 100), k=3)
    assert index.tolist() == [[0, 1, 2], [2, 1, 3]] or index.tolist() == [[0, 1, 2], [2, 3, 1]]
    expected = [math.cos(math.radians(a)) for a in (5, 15, 85)]
    torch.testing.assert_close(similarity[0], torch.tensor(expected))


def test_two_farther_neighbours_outvote_the_nearest_only_when_the_temperature_lets_them() -> None:
    """Query at 0 degrees; class 0 at 10, class 1 at 30 and -30.

    Class 1 wins iff 2 exp(cos 30 / T) > exp(cos 10 / T), that is T > (cos 10 - cos 30) / ln 2 = 0.1713.
    """
    train, labels = circle(10, 30, -30), torch.tensor([0, 1, 1])
    query, answer = circle(0), torch.tensor([1])
    assert knn(train, labels, query, answer, k=3, temperature=0.18) == 1.0
    assert knn(train, labels, query, answer, k=3, temperature=0.16) == 0.0
    assert knn(train, labels, query, answer, k=1, temperature=0.18) == 0.0
    assert knn(train, labels, query, torch.tensor([0]), k=1) == 1.0


def test_agrees_with_scikit_learn() -> None:
    train, train_labels = noisy(200, 0)
    test, test_labels = noisy(101, 1)

    def weigh(distances: np.ndarray) -> np.ndarray:
        return np.exp((1 - distances) / 0.07)  # scikit-learn's cosine distance is 1 - cosine

    for k in (1, 10, 50):
        reference = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=weigh)
        expected = reference.fit(train.double().numpy(), train_labels.numpy()).predict(test.double().numpy())
        score = knn(train, train_labels, test, test_labels, k=k, temperature=0.07)
        assert score == pytest.approx(float((expected == test_labels.numpy()).mean()))
        assert 0.2 < score < 1.0


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = noisy(60, 0)
    queries, _ = noisy(37, 1)
    whole = neighbours(features, queries, 9)
    own = neighbours(features, features, 9, leave_one_out=True)
    monkeypatch.setattr(module, "CELLS", 60 * 7)
    torch.testing.assert_close(neighbours(features, queries, 9), whole)
    torch.testing.assert_close(neighbours(features, features, 9, leave_one_out=True), own)


def test_leave_one_out_excludes_only_the_own_index() -> None:
    features, labels = circle(0, 0, 90, 95), torch.tensor([0, 1, 2, 2])
    _, index = neighbours(features, features, k=1, leave_one_out=True)
    assert index[:, 0].tolist() == [1, 0, 3, 2]
    assert knn(features, labels, features, labels, k=1, leave_one_out=True) == 0.5
    assert knn(features, labels, features, labels, k=100, leave_one_out=True) == 0.5  # k is cut to the three others


def test_more_neighbours_than_samples_means_all() -> None:
    features, labels = noisy(20, 0)
    assert knn(features, labels, features, labels, k=500) == knn(features, labels, features, labels, k=20)


def test_extreme_temperatures_stay_finite() -> None:
    similarity, labels = torch.tensor([[0.9, 0.8, 0.8]]), torch.tensor([[0, 1, 1]])
    assert vote(similarity, labels, torch.tensor([0]), 2, 1e-8) == 1.0  # only the nearest counts
    assert vote(similarity, labels, torch.tensor([1]), 2, 1e8) == 1.0  # everyone counts alike
    assert knn(torch.zeros(3, 2), torch.tensor([0, 1, 1]), torch.zeros(1, 2), torch.tensor([1])) == 1.0


def test_refusals() -> None:
    features, labels = noisy(20, 0)
    with pytest.raises(ValueError, match="k must be at least 1"):
        knn(features, labels, features, labels, k=0)
    with pytest.raises(ValueError, match="temperature must be above 0"):
        knn(features, labels, features, labels, temperature=0.0)
    with pytest.raises(ValueError, match="leave_one_out needs test to be train"):
        knn(features, labels, features[1:], labels[1:], leave_one_out=True)
    with pytest.raises(ValueError, match="train features are NaN or infinite"):
        knn(features / 0, labels, features, labels)
    with pytest.raises(ValueError, match="classes that train lacks"):
        knn(features, labels, features, labels + 1)
