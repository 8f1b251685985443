"""`false-negatives`: a run's policy on its frozen networks, judged by labels."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from antipodes.evaluation.clusters import pair_rates
from antipodes.evaluation.judged import AnchorCounts, Judged, count_by_anchor, judge, judged_embeddings
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.evaluation.thresholds import errors, measure
from antipodes.negatives import IFND, Policy
from antipodes.seeding import generator


@dataclass(frozen=True)
class FalseNegatives(Protocol):
    """What the policy flags, every sample an anchor once among the samples of its batch; it has no options.

    Two conventions, as papers differ: *pooled* counts all pairs together; *per anchor* is GloFND's, the mean over
    anchors, where no flag is a precision of 1 and no false negative a recall of 1, and F1 follows from these means.
    MTPR and MTNR are IFND's means over anchors. Of a policy that clusters they are also given exactly, over the whole
    dataset, for every number of clusters.
    """

    name = "false-negatives"
    summary = "what the policy flags with the networks frozen, judged by labels, and its thresholds' errors"
    needs = frozenset({"policy", "labels"})

    def run(self, subject: Subject) -> dict[str, float]:
        """Precision, recall, F1, MTPR and MTNR in percent, and the errors of thresholds as cosines."""
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
        """The scores of one direction's policy."""
        assert subject.method is not None
        assert subject.data is not None
        labels = subject.data.labels
        assert labels is not None
        judged = judged_embeddings(subject.method, subject.data, subject.recipe, subject.seed, direction)
        scores = summarise(self._counts(policy, judged, labels, subject))
        scores |= cluster_rates(policy, labels)
        for _, truth, found in measure(policy, judged, subject.batch_size, subject.seed):
            for name, thresholds in found.items():
                scores[f"{name} MAE"], scores[f"{name} RMSE"] = errors(thresholds, truth)
        return scores

    def _counts(self, policy: Policy, judged: Judged, labels: Tensor, subject: Subject) -> AnchorCounts:
        order = torch.randperm(len(labels), generator=generator("false negatives", subject.seed))
        size = min(subject.batch_size, len(labels))
        batches = [judged.pairs(ids) for ids in order.split(size) if len(ids) == size]
        counted = [count_by_anchor(pairs, judge(policy, pairs), labels) for pairs in batches]
        return AnchorCounts(*(torch.cat(parts, dim=-1) for parts in zip(*counted, strict=True)))


def summarise(counts: AnchorCounts) -> dict[str, float]:
    """Precision, recall, F1, MTPR and MTNR in percent from the counts of every rule and anchor."""
    available, true, flagged, found = counts
    true, available = true.expand_as(flagged), available.expand_as(flagged)
    pooled = _ratio(found.sum(), flagged.sum()), _ratio(found.sum(), true.sum())
    precision = torch.where(flagged > 0, found / flagged.clamp(min=1), 1.0).mean()
    recall = torch.where(true > 0, found / true.clamp(min=1), 1.0).mean()
    kept = (available - true) - (flagged - found)
    scores: dict[str, float] = {}
    for name, (right, complete) in {"pooled": pooled, "per-anchor": (float(precision), float(recall))}.items():
        both = right + complete
        scores[f"flags {name} precision"] = 100 * right
        scores[f"flags {name} recall"] = 100 * complete
        scores[f"flags {name} f1"] = 200 * right * complete / both if both else 0.0
    rates = {
        "flags mtpr": (found / true)[true > 0].mean(),
        "flags mtnr": (kept / (available - true))[available > true].mean(),
    }
    return scores | {name: 100 * float(rate) for name, rate in rates.items() if not rate.isnan()}


def cluster_rates(policy: Policy, labels: Tensor, progress: float = 1.0) -> dict[str, float]:
    """Exact MTPR and MTNR in percent of a policy that clusters, by the number of clusters, and their means.

    Empty for a policy that does not, or has not yet.
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


def _ratio(part: Tensor, whole: Tensor) -> float:
    return float(part / whole) if bool(whole > 0) else 0.0
