"""`false-negatives`: precision and recall of a run's policy by labels, with the networks frozen.

Pseudo labels (IFND) are judged exactly over the whole dataset, from one contingency table. Samples with the same pseudo
label flag each other as false negatives; this is right if they share their true label. For a sample with label y and
pseudo label c, in a dataset of n samples,

    true positive rate = (n_yc - 1) / (n_y - 1)
    true negative rate = 1 - (n_c - n_yc) / (n - n_y)

where n_yc counts accepted samples with both. MTPR and MTNR are the means over samples (IFND, Table 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from antipodes.evaluation.compared import (
    ComparedEmbeddings,
    compared_embeddings,
    errors,
    judge_frozen,
    policy_thresholds,
)
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.negatives import IFND, Policy
from antipodes.negatives.flags import FlagCounts, count_flags, summarise_flags
from antipodes.seeding import generator

_FLAG_SCORES = {
    **{f"flags pooled {name}": name for name in ("precision", "recall", "f1")},
    **{f"flags per-anchor {name}": f"anchor_{name}" for name in ("precision", "recall", "f1")},
    "flags mtpr": "mtpr",
    "flags mtnr": "mtnr",
}
"""The scores of the protocol, and the numbers of `summarise_flags` that they are."""


@dataclass(frozen=True)
class FalseNegatives(Protocol):
    """Score the policy's flags by labels; every sample is an anchor once, among the samples of a random batch.

    Papers use two conventions: *pooled* counts all pairs of the dataset; *per anchor* (GloFND) is the mean over
    anchors, where an anchor without flags has precision 1 and one without false negatives has recall 1, and F1 follows
    from these means. MTPR and MTNR are IFND's means over anchors. For a policy that clusters, they are also computed
    exactly over the whole dataset, for every number of clusters.

    Args:
        batches: Random batches per sample from which quantiles of batches are taken; GloFND's Figure 3a has 20.
    """

    name = "false-negatives"
    summary = "the policy's flags with the networks frozen, scored by labels, and its thresholds' errors"
    needs = frozenset({"policy", "labels"})

    batches: int = 1

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise ValueError(f"batches must be at least 1, got {self.batches}: it is a number of random batches")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return precision, recall, F1, MTPR and MTNR in percent, and the errors of thresholds as cosines."""
        assert subject.method is not None
        assert subject.data is not None
        directed = subject.directed_policies()
        if len(directed) == 1:
            return self._judge(*directed[0], subject)
        return {
            f"{direction} {name}": score
            for policy, direction in directed
            for name, score in self._judge(policy, direction, subject).items()
        }

    def _judge(self, policy: Policy, direction: str, subject: Subject) -> dict[str, float]:
        """Return the scores of one direction's policy."""
        assert subject.method is not None
        assert subject.data is not None
        labels = subject.data.labels
        assert labels is not None
        judged = compared_embeddings(subject.method, subject.data, subject.recipe, subject.seed, direction)
        scores = flag_scores(self._counts(policy, judged, labels, subject))
        scores |= cluster_rates(policy, labels)
        for _, truth, found in policy_thresholds(policy, judged, subject.batch_size, subject.seed, self.batches):
            for name, thresholds in found.items():
                scores[f"{name} MAE"], scores[f"{name} RMSE"] = errors(thresholds, truth)
        return scores

    def _counts(self, policy: Policy, judged: ComparedEmbeddings, labels: Tensor, subject: Subject) -> FlagCounts:
        order = torch.randperm(len(labels), generator=generator("false negatives", subject.seed))
        size = min(subject.batch_size, len(labels))
        batches = [judged.pairs(ids) for ids in order.split(size) if len(ids) == size]
        counted = [count_flags(pairs, judge_frozen(policy, pairs), labels) for pairs in batches]
        return FlagCounts(*(torch.cat(parts, dim=-1) for parts in zip(*counted, strict=True)))


def flag_scores(counts: FlagCounts) -> dict[str, float]:
    """Return precision, recall, F1, MTPR and MTNR in percent from the counts of every rule and anchor."""
    numbers = summarise_flags(counts.means())
    return {name: 100 * numbers[number] for name, number in _FLAG_SCORES.items() if not math.isnan(numbers[number])}


def cluster_rates(policy: Policy, labels: Tensor, progress: float = 1.0) -> dict[str, float]:
    """Return the exact MTPR and MTNR in percent of a policy that clusters, by number of clusters, and their means.

    The result is empty before a clustering.
    """
    rates: dict[int, tuple[float, float]] = {}
    for part in policy.modules():
        if isinstance(part, IFND) and part.fitted_at >= 0:
            accepted = part.accepted(torch.arange(len(labels)), progress)
            rates |= {k: pair_rates(labels, row) for k, row in zip(part.clusters, accepted, strict=True)}
    scores: dict[str, float] = {}
    for place, name in enumerate(("mtpr", "mtnr")):
        scores |= {f"{name}, {k} clusters": 100 * both[place] for k, both in rates.items()}
        if len(rates) > 1:
            scores[f"{name}, mean of granularities"] = 100 * fmean(both[place] for both in rates.values())
    return scores


def pair_rates(labels: Tensor, clusters: Tensor) -> tuple[float, float]:
    """Return MTPR and MTNR in [0, 1] of pseudo labels.

    A sample whose label no other sample has is left out of the MTPR, and a sample without a true negative is left out
    of the MTNR.

    Args:
        labels: (n,) true labels; a negative label is unknown and equal to no other.
        clusters: (n,) pseudo labels; a negative one is not accepted, and its sample flags no other.

    Example:
        >>> [round(rate, 3) for rate in pair_rates(torch.tensor([0, 0, 0, 1]), torch.tensor([5, 5, -1, 5]))]
        [0.333, 0.333]
    """
    n = len(labels)
    label = _numbered(labels)
    own_size = label.bincount()[label].double()  # n_y of every sample
    accepted = clusters >= 0
    found, flagged = torch.zeros(n).double(), torch.zeros(n).double()
    if bool(accepted.any()):
        cluster = clusters[accepted].unique(return_inverse=True)[1]
        width = int(cluster.max()) + 1
        cell = label[accepted] * width + cluster
        _, where, counts = cell.unique(return_inverse=True, return_counts=True)
        found[accepted] = (counts[where] - 1).double()
        flagged[accepted] = (cluster.bincount()[cluster] - 1).double()
    positives, negatives = own_size - 1, n - own_size
    rate = (found / positives)[positives > 0]
    missed = ((flagged - found) / negatives)[negatives > 0]
    return float(rate.mean()), float(1 - missed.mean())


def _numbered(labels: Tensor) -> Tensor:
    """Number labels 0..K-1, with every unknown label as a class of its own."""
    unknown = labels < 0
    apart = torch.where(unknown, labels.max() + 1 + torch.arange(len(labels)), labels)
    numbered: Tensor = apart.unique(return_inverse=True)[1]
    return numbered
