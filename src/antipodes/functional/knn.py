"""Weighted k-nearest-neighbour accuracy, as in instance discrimination (Wu et al. 2018).

1. Features are normalised; the k training samples with the highest cosine s to a query are its neighbours.
2. A neighbour votes for its class with weight exp(s / temperature); the class with the most weight is the answer.

There is nothing to train, so it measures the geometry of the features as they are.
"""

import torch
from torch import Tensor

from antipodes.functional.checks import check_pair, number_classes
from antipodes.functional.neighbours import nearest_of


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 50,
    temperature: float = 0.05,
    *,
    leave_one_out: bool = False,
) -> float:
    """Top-1 accuracy on test, in [0, 1], of a vote among the k nearest training samples.

    Args:
        train_features: (n, F) float; need not be normalised.
        train_labels: (n,) int.
        test_features: (m, F) float.
        test_labels: (m,) int, of classes that train has.
        k: number of neighbours; all of train when it has fewer.
        temperature: above 0; the lower, the more the nearest ones decide.
        leave_one_out: test is train itself, and a sample is not its own neighbour.

    Raises:
        ValueError: if shapes do not fit, a feature is not finite, test has a class that train lacks, k or the
            temperature is out of range, or leave_one_out is asked for with fewer than two or other samples.

    Example:
        >>> train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> knn(train, labels, torch.tensor([[3.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 0]), k=2)
        0.5
    """
    check_pair(train_features, train_labels, test_features, test_labels)
    train_labels, test_labels, classes = number_classes(train_labels, test_labels)
    similarity, index = neighbours(train_features, test_features, k, leave_one_out=leave_one_out)
    return vote(similarity, train_labels[index], test_labels, classes, temperature)


def neighbours(
    train_features: Tensor, test_features: Tensor, k: int, *, leave_one_out: bool = False
) -> tuple[Tensor, Tensor]:
    """Cosines (m, k) and train indices (m, k) of the k nearest training samples of every query, nearest first.

    Memory is O(m k) and one block of similarities, never (m, n).
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}: it is the number of neighbours that vote")
    if leave_one_out and (len(train_features) != len(test_features) or len(train_features) < 2):
        raise ValueError(
            f"leave_one_out needs test to be train itself, with at least two samples, "
            f"got {len(train_features)} and {len(test_features)}"
        )
    own = torch.arange(len(test_features), device=test_features.device) if leave_one_out else None
    found = nearest_of(test_features, train_features, k, own)
    return found.similarities, found.rows


def vote(similarity: Tensor, neighbour_labels: Tensor, labels: Tensor, classes: int, temperature: float) -> float:
    """Accuracy in [0, 1] on labels (m,) of votes exp(similarity / temperature) (m, k) for neighbour_labels (m, k)."""
    return float((votes(similarity, neighbour_labels, classes, temperature).argmax(1) == labels).double().mean())


def votes(similarity: Tensor, neighbour_labels: Tensor, classes: int, temperature: float) -> Tensor:
    """The weight (m, classes) that neighbours with these similarities (m, k) and labels (m, k) give to every class."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    # Relative to the nearest neighbour, so that no temperature overflows.
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    return weights.new_zeros(len(weights), classes).scatter_add_(1, neighbour_labels, weights)
