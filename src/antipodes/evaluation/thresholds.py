"""How far similarity thresholds are from the quantile of the whole dataset that they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.evaluation.judged import Judged
from antipodes.functional.select import kth_largest, top_share
from antipodes.functional.shares import whole_above
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.seeding import generator


class Measured(NamedTuple):
    """The thresholds (n,) of a policy by name, beside the true ones: `batch` ones, and `threshold`, if it learns any.

    `policy` is the part of the run's policy that they belong to.
    """

    policy: GloFND | FNC
    truth: Tensor
    found: Mapping[str, Tensor]


def measure(policy: Policy, judged: Judged, batch_size: int, seed: int = 0) -> list[Measured]:
    """The thresholds of every part of a policy that has some, on what it judges."""
    measured = []
    sides = judged.anchors, judged.candidates
    for part in policy.modules():
        if isinstance(part, (GloFND, FNC)):
            found = {"batch": batch_quantiles(*sides, part.alpha, batch_size, seed)}
            if isinstance(part, GloFND):
                found["threshold"] = part.threshold
            measured.append(Measured(part, dataset_quantiles(*sides, part.alpha), found))
    return measured


def mean_share(alpha: float | Tensor) -> float:
    """The share of false negatives, the mean where every sample has its own."""
    return float(alpha.mean()) if isinstance(alpha, Tensor) else alpha


def dataset_quantiles(anchors: Tensor, candidates: Tensor, alpha: float | Tensor) -> Tensor:
    """The k-th largest similarity of every sample's anchor to all other samples' candidates, (n,).

    With k = ceil(alpha (n - 1)) it is Lemma 3.1's optimum.
    """
    ids = torch.arange(len(anchors))
    count = torch.tensor(len(anchors) - 1)
    k = whole_above(alpha, count).clamp(min=1).expand(len(anchors))
    return kth_largest(anchors, candidates, ids, ids, k)


def batch_quantiles(
    anchors: Tensor, candidates: Tensor, alpha: float | Tensor, batch_size: int, seed: int = 0
) -> Tensor:
    """The same by one random batch per sample, which is all that FNC sees, (n,); NaN for what no full batch holds."""
    order = torch.randperm(len(anchors), generator=generator("batch quantiles", seed))
    found = torch.full((len(anchors),), math.nan)
    for ids in order.split(batch_size):
        if len(ids) == batch_size:
            share = alpha[ids] if isinstance(alpha, Tensor) else alpha
            found[ids] = top_share(anchors[ids], candidates[ids], ids, ids, share).to(found.dtype)
    return found


def errors(thresholds: Tensor, truth: Tensor) -> tuple[float, float]:
    """Mean absolute and root mean squared error of the thresholds that are numbers."""
    known = ~thresholds.isnan()
    difference = (thresholds - truth)[known].double()
    return difference.abs().mean().item(), difference.pow(2).mean().sqrt().item()
