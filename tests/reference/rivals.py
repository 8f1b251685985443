"""BYOL, SimSiam, PCL, SwAV and i-Mix by loops, in the precision of the inputs (give float64)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def unit(row: Tensor) -> Tensor:
    """A row divided by its length."""
    return row / (row @ row).sqrt()


def byol(predictions: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Eq. 2 for both orders of the views: predictions and targets (b, D) of each view."""
    losses = []
    for view, other in ((0, 1), (1, 0)):
        for p, t in zip(predictions[view], targets[other].detach(), strict=True):
            losses.append(((unit(p) - unit(t)) ** 2).sum())
    return 2 * torch.stack(losses).mean()


def simsiam(predictions: Sequence[Tensor], embeddings: Sequence[Tensor]) -> Tensor:
    """D(p1, stop z2) / 2 + D(p2, stop z1) / 2 with D = - cosine, mean over samples."""
    losses = []
    for p1, p2, z1, z2 in zip(*predictions, *embeddings, strict=True):
        losses.append(-(unit(p1) @ unit(z2.detach())) / 2 - (unit(p2) @ unit(z1.detach())) / 2)
    return torch.stack(losses).mean()


def concentration(features: Tensor, labels: Sequence[int], centroids: Tensor, temperature: float) -> list[float]:
    """PCL's Eq. 12 with the authors' limits and scale, for features (n, F) and the clusters that have members."""
    found = []
    for number, centroid in enumerate(centroids):
        members = [row for row, label in zip(features, labels, strict=True) if label == number]
        distances = [math.sqrt(float(((unit(row) - centroid) ** 2).sum())) for row in members]
        found.append(sum(distances) / len(members) / math.log(len(members) + 10) if len(members) > 1 else math.nan)
    largest = max(each for each in found if not math.isnan(each))
    ordered = sorted(largest if math.isnan(each) else each for each in found)

    def quantile(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])

    limited = [min(max(largest if math.isnan(each) else each, quantile(0.1)), quantile(0.9)) for each in found]
    mean = sum(limited) / len(limited)
    return [temperature * each / mean for each in limited]


def prototype_nce(
    queries: Tensor, labels: Sequence[Sequence[int]], centroids: Sequence[Tensor], phi: Sequence[Sequence[float]]
) -> Tensor:
    """The second part of PCL's Eq. 11 over all prototypes, the mean over numbers of clusters."""
    losses = []
    for own, prototypes, widths in zip(labels, centroids, phi, strict=True):
        for query, cluster in zip(queries, own, strict=True):
            logits = [unit(query) @ prototype / width for prototype, width in zip(prototypes, widths, strict=True)]
            losses.append(-logits[cluster] + torch.stack(logits).exp().sum().log())
    return torch.stack(losses).mean()


def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> list[list[float]]:
    """SwAV's codes of scores (B, K), by loops over rows and columns."""
    rows = [[math.exp(float(score) / epsilon) for score in row] for row in scores]
    count, prototypes = len(rows), len(rows[0])
    for _ in range(iterations):
        sums = [sum(row[k] for row in rows) for k in range(prototypes)]
        rows = [[row[k] / sums[k] / prototypes for k in range(prototypes)] for row in rows]
        rows = [[each / sum(row) / count for each in row] for row in rows]
    return [[each * count for each in row] for row in rows]


def swav(scores: Sequence[Tensor], codes: Sequence[Sequence[Sequence[float]]], temperature: float) -> Tensor:
    """The mean over codes and over the other views of the cross entropy, mean over samples."""
    total = torch.zeros((), dtype=scores[0].dtype)
    for view, code in enumerate(codes):
        others = [each for place, each in enumerate(scores) if place != view]
        for other in others:
            for row, target in zip(other, code, strict=True):
                log_sum = (row / temperature).exp().sum().log()
                each = [share * (log_sum - score / temperature) for share, score in zip(target, row, strict=True)]
                total = total + torch.stack(each).sum() / len(code) / len(others) / len(codes)
    return total


def i_mix(
    queries: Tensor, keys: Tensor, queue: Tensor, partners: Sequence[int], theta: Sequence[float], temperature: float
) -> Tensor:
    """theta CE(query i, key i) + (1 - theta) CE(query i, key of the partner) over the batch's keys and the queue."""
    every = [unit(key) for key in torch.cat((keys, queue))]
    losses = []
    for i, (query, partner, share) in enumerate(zip(queries, partners, theta, strict=True)):
        logits = [unit(query) @ key / temperature for key in every]
        log_sum = torch.stack(logits).exp().sum().log()
        losses.append(share * (log_sum - logits[i]) + (1 - share) * (log_sum - logits[partner]))
    return torch.stack(losses).mean()
