"""`knn`: a vote of the nearest training samples."""

from __future__ import annotations

from dataclasses import dataclass

from antipodes.evaluation.accuracy import accuracy
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import check_pair, neighbours, number_classes, votes


@dataclass(frozen=True)
class KNN(Protocol):
    """Weighted vote of the nearest training samples, as in instance discrimination, without training.

    Args:
        k: Number of neighbours that vote.
        temperature: Temperature of the votes; a low one gives near neighbours more weight.
    """

    name = "knn"
    summary = "weighted vote of the nearest training samples by cosine, and the single nearest one"
    needs = frozenset({"features", "labels"})

    k: int = 50
    temperature: float = 0.05

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1 and top-5 of the vote, and top-1 of the nearest neighbour, from one search."""
        train_labels, test_labels = subject.labels()
        check_pair(subject.train.features, train_labels, subject.test.features, test_labels)
        train_labels, test_labels, classes = number_classes(train_labels, test_labels)
        similarity, index = neighbours(subject.train.features, subject.test.features, self.k)
        labels = train_labels[index]
        every = accuracy(votes(similarity, labels, classes, self.temperature), test_labels)
        nearest = float((labels[:, 0] == test_labels).double().mean())
        return every.named("knn", per_class=False) | {"1-nn top-1": 100 * nearest}
