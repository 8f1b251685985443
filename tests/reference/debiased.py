"""Debiased's and HCL's sums by loops over candidates, in the precision of the inputs (give float64)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference.losses import Flag, both_ways, nothing


def negative_sum(
    similarities: Sequence[Tensor], positive: Tensor, temperature: float, tau_plus: float, beta: float
) -> Tensor:
    """Ng of the authors' estimators: 'easy' is tau_plus = beta = 0, DCL beta = 0; zero when there is nothing to sum."""
    if not similarities:
        return torch.zeros_like(positive)
    exponentials = [(s / temperature).exp() for s in similarities]
    importance = [each**beta for each in exponentials]
    count = len(similarities)
    total = torch.stack([i * e for i, e in zip(importance, exponentials, strict=True)]).sum()
    total = total / torch.stack(importance).mean()
    estimate = (total - tau_plus * count * (positive / temperature).exp()) / (1 - tau_plus)
    return estimate.clamp(min=count * math.exp(-1 / temperature))


def info_nce(
    z1: Tensor,
    z2: Tensor,
    ids: Sequence[int],
    temperature: float,
    tau_plus: float,
    beta: float = 0.0,
    flagged: Flag = nothing,
) -> Tensor:
    """-log( pos / (pos + Ng) ), the mean over both views of a batch."""
    views, view_ids, positives = both_ways(z1, z2, ids)
    losses = []
    for anchor, own, positive in zip(views, view_ids, positives, strict=True):
        kept = [
            anchor @ view
            for view, other in zip(views, view_ids, strict=True)
            if other != own and not flagged(own, other)
        ]
        pull = (positive / temperature).exp()
        losses.append(-(pull / (pull + negative_sum(kept, positive, temperature, tau_plus, beta))).log())
    return torch.stack(losses).mean()
