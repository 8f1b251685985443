"""`linear`: logistic regression on frozen features."""

from __future__ import annotations

from dataclasses import dataclass

from antipodes.evaluation.linear import LinearResult, linear_probe
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject


@dataclass(frozen=True)
class Linear(Protocol):
    """The linear probe by L-BFGS on pooled features, without options."""

    name = "linear"
    summary = "logistic regression on frozen features, its strength chosen on a held-out part of train"
    needs = frozenset({"features", "labels"})

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5 (of more than five classes) and mean per class, and the strength that was chosen."""
        result = probe_all(subject)
        return result.accuracy.named("linear") | {"linear strength": result.strength}


def probe_all(subject: Subject) -> LinearResult:
    """Fit the linear probe on all training labels, once for all protocols that need it."""
    train_labels, test_labels = subject.labels()
    train, test = subject.train.features, subject.test.features
    return subject.once("linear probe", lambda: linear_probe(train, train_labels, test, test_labels, seed=subject.seed))
