"""`linear`, `semi` and `knn`: classifiers of the frozen features of a run's own data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from torch import Tensor

from antipodes.evaluation.accuracy import accuracy
from antipodes.evaluation.features import class_balanced_subset
from antipodes.evaluation.labelled import read_listed_rows, used_share
from antipodes.evaluation.linear import STRENGTHS, LinearResult, linear_probe
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import check_pair, neighbours, number_classes, votes


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


@dataclass(frozen=True)
class Semi(Protocol):
    """Linear probes on class-balanced shares of the training labels.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
        draws: Number of subsets for each share; scores are means over them.
        ids: Files with the labelled images instead of shares: a file name (SimCLR's lists) or a row number a line.
    """

    name = "semi"
    summary = "the linear probe on class-balanced 100, 10, 1 and 0.1 % of the labels, means over three draws"
    needs = frozenset({"features", "labels"})

    fractions: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)
    draws: int = 3
    ids: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.fractions or not all(0 < fraction <= 1 for fraction in self.fractions):
            raise ValueError(f"fractions must be shares in (0, 1], got {list(self.fractions)}")
        if self.draws < 1:
            raise ValueError(f"draws must be at least 1, got {self.draws}: it is a number of subsets")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1 and top-5 for every share, and the mean of the top-1s.

        If rounding in small classes changes the share, `SHARE % labels, used %` is the share that was used.
        """
        train_labels, test_labels = subject.labels()
        check_pair(subject.train.features, train_labels, subject.test.features, test_labels)
        if self.ids is not None:
            assert subject.data is not None
            listed: dict[str, float] = {}
            for file in [self.ids] if isinstance(self.ids, str) else self.ids:
                found = self._probe(subject, read_listed_rows(file, subject.labelled_images()[0]))
                listed |= found.accuracy.named(f"linear labels of {Path(file).stem}", per_class=False)
            return listed
        scores: dict[str, float] = {}
        for fraction in self.fractions:
            name = f"linear {100 * fraction:g} % labels"
            results = [probe_all(subject)] if fraction == 1 else self._probes(subject, fraction)
            scores[name] = 100 * fmean(result.accuracy.top1 for result in results)
            fives = [result.accuracy.top5 for result in results if result.accuracy.top5 is not None]
            if fives:
                scores[f"{name}, top-5"] = 100 * fmean(fives)
            drawn = class_balanced_subset(train_labels, fraction, subject.seed)
            scores |= used_share(name, len(drawn), len(train_labels), fraction)
        if len(self.fractions) > 1:
            tops = [scores[f"linear {100 * fraction:g} % labels"] for fraction in self.fractions]
            scores["linear mean of shares"] = fmean(tops)
        return scores

    def _probes(self, subject: Subject, fraction: float) -> list[LinearResult]:
        train_labels, _ = subject.labels()
        drawn = (class_balanced_subset(train_labels, fraction, subject.seed + draw) for draw in range(self.draws))
        return [self._probe(subject, rows) for rows in drawn]

    def _probe(self, subject: Subject, rows: Tensor) -> LinearResult:
        """Fit the linear probe on some training rows (m,)."""
        train_labels, test_labels = subject.labels()
        labels = train_labels[rows]
        single = bool((labels.unique(return_counts=True)[1] == 1).all())  # nothing to hold out for a choice
        return linear_probe(
            subject.train.features[rows],
            labels,
            subject.test.features,
            test_labels,
            strengths=(0.1,) if single else STRENGTHS,
            seed=subject.seed,
        )


@dataclass(frozen=True)
class KNN(Protocol):
    """Weighted vote of the nearest training samples, as in instance discrimination, without training.

    Args:
        k: Number of neighbours that vote.
        temperature: Temperature of the votes; a low one gives near neighbours more weight.
    """

    name = "knn"
    summary = "weighted vote of the nearest training samples by cosine, and the single nearest one"
    needs = frozenset({"features", "labels"})

    k: int = 50
    temperature: float = 0.05

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1 and top-5 of the vote, and top-1 of the nearest neighbour, from one search."""
        train_labels, test_labels = subject.labels()
        check_pair(subject.train.features, train_labels, subject.test.features, test_labels)
        train_labels, test_labels, classes = number_classes(train_labels, test_labels)
        similarity, index = neighbours(subject.train.features, subject.test.features, self.k)
        labels = train_labels[index]
        every = accuracy(votes(similarity, labels, classes, self.temperature), test_labels)
        nearest = float((labels[:, 0] == test_labels).double().mean())
        return every.named("knn", per_class=False) | {"1-nn top-1": 100 * nearest}
