"""`transfer-linear-sgd`: a linear classifier by SGD on the map before pooling, on other datasets (Ring's Table 3)."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from antipodes.evaluation.protocols.linear_sgd import LinearSGD
from antipodes.evaluation.protocols.transfer import custom_metric, labelled_splits
from antipodes.evaluation.subject import Subject


@dataclass(frozen=True)
class TransferLinearSGD(LinearSGD):
    """Train a linear layer on feature maps of other datasets, as `linear-sgd` does on the run's own.

    Images are normalised as those of the run were, or by the dataset's own statistics where the subject says so.
    Datasets with several labels an image are refused.
    """

    name = "transfer-linear-sgd"
    summary = "a linear classifier by SGD on maps before pooling, on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5, mean per class and the rate for every dataset, and the mean of their usual metrics.

        Raises:
            ValueError: if a dataset has no labels, or several an image.
        """
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            train, test = labelled_splits(other, subject, self.name)
            found, rate = self.accuracy_and_rate(subject, train, test, subject.other_view(train))
            prefix = f"linear-sgd on {other.name}"
            named = found.named(prefix)
            scores |= named | {f"linear-sgd rate, {other.name}": rate}
            customs.append(named[f"{prefix} {custom_metric(other)}"])
        if len(customs) > 1:
            scores["linear-sgd on others, mean"] = fmean(customs)
        return scores
