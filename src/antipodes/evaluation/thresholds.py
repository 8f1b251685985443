"""Similarity thresholds of policies, and their errors to the quantiles of the whole dataset that they estimate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.evaluation.compared import ComparedEmbeddings
from antipodes.functional.select import kth_largest, top_share, whole_above
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.seeding import generator


class PolicyThresholds(NamedTuple):
    """The thresholds (n,) of a part of a policy: the true quantiles, and by name the estimates: `batch` for quantiles
    of random batches, and `threshold` if the part learns thresholds.
    """

    policy: GloFND | FNC
    truth: Tensor
    found: Mapping[str, Tensor]


def policy_thresholds(
    policy: Policy, judged: ComparedEmbeddings, batch_size: int, seed: int = 0
) -> list[PolicyThresholds]:
    """Return the thresholds of every part of a policy that has thresholds, on the embeddings it compares."""
    measured = []
    sides = judged.anchors, judged.candidates
    for part in policy.modules():
        if isinstance(part, (GloFND, FNC)):
            found = {"batch": batch_quantiles(*sides, part.alpha, batch_size, seed)}
            if isinstance(part, GloFND):
                found["threshold"] = part.threshold
            measured.append(PolicyThresholds(part, dataset_quantiles(*sides, part.alpha), found))
    return measured


def mean_share(alpha: float | Tensor) -> float:
    """Return the share of false negatives, or its mean if every sample has its own."""
    return float(alpha.mean()) if isinstance(alpha, Tensor) else alpha


def dataset_quantiles(anchors: Tensor, candidates: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the k-th largest similarity of every sample's anchor to all other samples' candidates, (n,).

    With k = ceil(alpha (n - 1)) it is Lemma 3.1's optimum.
    """
    ids = torch.arange(len(anchors))
    count = torch.tensor(len(anchors) - 1)
    k = whole_above(alpha, count).clamp(min=1).expand(len(anchors))
    return kth_largest(anchors, candidates, ids, ids, k)


def batch_quantiles(
    anchors: Tensor, candidates: Tensor, alpha: float | Tensor, batch_size: int, seed: int = 0
) -> Tensor:
    """Return the same from one random batch per sample, as FNC does, (n,); NaN for samples without a full batch."""
    order = torch.randperm(len(anchors), generator=generator("batch quantiles", seed))
    found = torch.full((len(anchors),), math.nan)
    for ids in order.split(batch_size):
        if len(ids) == batch_size:
            share = alpha[ids] if isinstance(alpha, Tensor) else alpha
            found[ids] = top_share(anchors[ids], candidates[ids], ids, ids, share).to(found.dtype)
    return found


def errors(thresholds: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the mean absolute and root mean squared error of the thresholds that are not NaN."""
    known = ~thresholds.isnan()
    difference = (thresholds - truth)[known].double()
    return difference.abs().mean().item(), difference.pow(2).mean().sqrt().item()
