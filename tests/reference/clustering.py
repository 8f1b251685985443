"""Spherical k-means and its confidences by loops in float64."""

import math

from torch import Tensor

Vector = list[float]


def cosine(a: Vector, b: Vector) -> float:
    lengths = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def direction(vector: Vector) -> Vector:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length if length else 0.0 for x in vector]


def kmeans_from_labels(features: Tensor, labels: list[int], k: int, iterations: int) -> tuple[list[int], list[Vector]]:
    """Labels and centroids after some updates and assignments; every cluster must keep a member."""
    rows = [direction(row) for row in features.double().tolist()]
    centroids: list[Vector] = []
    for _ in range(iterations):
        members = [[row for row, label in zip(rows, labels, strict=True) if label == j] for j in range(k)]
        assert all(members)
        centroids = [direction([sum(column) for column in zip(*some, strict=True)]) for some in members]
        labels = [max(range(k), key=lambda j: (cosine(row, centroids[j]), -j)) for row in rows]
    return labels, centroids


def confidence(features: Tensor, centroids: list[Vector], labels: list[int], temperature: float) -> list[float]:
    """Softmax of the cosines to all centroids, at the sample's own."""
    result = []
    for row, label in zip(features.double().tolist(), labels, strict=True):
        powers = [math.exp(cosine(row, centroid) / temperature) for centroid in centroids]
        result.append(powers[label] / sum(powers))
    return result
