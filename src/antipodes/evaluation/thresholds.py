"""How far similarity thresholds are from the quantile of the whole dataset that they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.select import kth_largest, top_share
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.seeding import generator


class Measured(NamedTuple):
    """The thresholds (n,) of a policy by name, beside the true ones: `batch` ones, and `threshold`, if it learns any.

    `policy` is the part of the run's policy that they belong to.
    """

    policy: GloFND | FNC
    truth: Tensor
    found: Mapping[str, Tensor]


def measure(policy: Policy, embeddings: Tensor, batch_size: int, seed: int = 0) -> list[Measured]:
    """The thresholds of every part of a policy that has some, on embeddings (n, D) of length 1."""
    measured = []
    for part in policy.modules():
        if isinstance(part, (GloFND, FNC)):
            found = {"batch": batch_quantiles(embeddings, part.alpha, batch_size, seed)}
            if isinstance(part, GloFND):
                found["threshold"] = part.threshold
            measured.append(Measured(part, dataset_quantiles(embeddings, part.alpha), found))
    return measured


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
