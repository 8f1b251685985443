"""How far similarity thresholds are from the quantile of the whole dataset that they stand for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antipodes.functional.select import kth_largest, top_share
from antipodes.seeding import generator


def dataset_quantiles(embeddings: Tensor, alpha: float) -> Tensor:
    """The k-th largest similarity of every sample to all others, (n,), k = ceil(alpha (n - 1)): Lemma 3.1's optimum."""
    ids = torch.arange(len(embeddings))
    k = max(1, math.ceil(alpha * (len(embeddings) - 1) - 1e-9))
    return kth_largest(embeddings, embeddings, ids, ids, k)


def batch_quantiles(embeddings: Tensor, alpha: float, batch_size: int, seed: int = 0) -> Tensor:
    """The same by one random batch per sample, which is all that FNC sees, (n,); NaN for what no full batch holds."""
    order = torch.randperm(len(embeddings), generator=generator("batch quantiles", seed))
    found = torch.full((len(embeddings),), math.nan)
    for ids in order.split(batch_size):
        if len(ids) == batch_size:
            found[ids] = top_share(embeddings[ids], embeddings[ids], ids, ids, alpha).to(found.dtype)
    return found


def errors(thresholds: Tensor, truth: Tensor) -> tuple[float, float]:
    """Mean absolute and root mean squared error of the thresholds that are numbers."""
    known = ~thresholds.isnan()
    difference = (thresholds - truth)[known].double()
    return difference.abs().mean().item(), difference.pow(2).mean().sqrt().item()
