"""HNSSL's loss by loops over pairs, in the precision of the inputs (give float64)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def scaled(row: Tensor) -> Tensor:
    """A row divided by its largest absolute entry, a zero row as it is."""
    largest = max(row, key=lambda entry: abs(entry.item())).abs()
    return row / largest if largest.item() > 0 else row * 0


def hard_pairs(
    online: Tensor,
    target: Tensor,
    ids: Sequence[int],
    top_k: int | None = None,
    quantile: float | None = None,
    threshold: float | None = None,
    weights: tuple[float, float] = (0.8, 0.1),
    epsilon: float = 1e-6,
) -> Tensor:
    """Eqs. 2 to 7, the expectation over images as the mean over the batch."""
    u, u_target = [scaled(row) for row in online], [scaled(row) for row in target]
    pulled, pushed = [], []
    for i, own in enumerate(ids):
        pulled.append(((u[i] - u_target[i]) ** 2).sum())
        distances = [((u_target[i] - u[k]) ** 2).sum() for k, other in enumerate(ids) if other != own]
        distances.sort(key=lambda distance: distance.item())
        if threshold is not None:
            hard = [distance for distance in distances if distance.item() <= threshold]
        elif quantile is not None:
            hard = distances[: max(1, round(quantile * len(distances)))]
        else:
            hard = distances[: top_k or 1]
        pushed.append(-(epsilon + torch.stack(hard).sum()).log() if hard else torch.zeros((), dtype=online.dtype))
    return weights[0] * torch.stack(pulled).mean() + weights[1] * torch.stack(pushed).mean()
