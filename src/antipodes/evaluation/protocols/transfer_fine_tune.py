"""`transfer-fine-tune`: the whole network trained on other datasets than the one it was pretrained on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from antipodes.data import Samples, subset
from antipodes.evaluation.names import LABELS_ARE_NEEDED
from antipodes.evaluation.protocols.fine_tune import FineTune
from antipodes.evaluation.protocols.transfer import custom_metric
from antipodes.evaluation.splits import class_balanced_subset, stratified_split
from antipodes.evaluation.subject import Subject
from antipodes.functional.checks import number_classes


@dataclass(frozen=True)
class TransferFineTune(FineTune):
    """Train a copy of the encoder and a linear layer on top on other datasets, as `fine-tune` does on the run's own.

    The learning rate is chosen on a held-out fifth of each dataset's training images; its test images have no say in
    it. Images are normalised as those of the run were. Datasets with several labels an image are refused.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
    """

    name = "transfer-fine-tune"
    summary = "the whole network trained on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    fractions: tuple[float, ...] = (1.0,)

    def run(self, subject: Subject) -> dict[str, float]:
        """Top-1, top-5, mean per class and the chosen rate of every dataset and share, and the mean of their customs.

        Raises:
            ValueError: if a dataset has no labels, or several an image.
        """
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            train, test = _splits(other, subject)
            assert train.labels is not None
            assert test.labels is not None
            labels, test_labels, _ = number_classes(train.labels, test.labels)
            for fraction in self.fractions:
                ids = class_balanced_subset(labels, fraction, subject.seed)
                rate = self._choose(subject, train, labels, ids)
                found = self.accuracy_of(subject, train, labels, ids, rate, test, test_labels)
                share = "" if fraction == 1 else f", {100 * fraction:g} % labels"
                prefix = f"fine-tune on {other.name}{share}"
                named = found.named(prefix)
                scores |= named
                scores[f"fine-tune rate, {other.name}{share}"] = rate
                if fraction == self.fractions[-1]:
                    customs.append(named[f"{prefix} {custom_metric(other)}"])
        if len(customs) > 1:
            scores["fine-tune on others, mean"] = fmean(customs)
        return scores


def _splits(other: Samples, subject: Subject) -> tuple[Samples, Samples]:
    """Labelled training and test images of a dataset; one without a test split is divided, class by class."""
    test = other.held_out(subject.test_limit)
    for part, data in (("train", other), ("test", test)):
        if data is not None and data.labels is None:
            raise ValueError(f"{other.name}: " + LABELS_ARE_NEEDED.format(protocol="transfer-fine-tune", part=part))
    assert other.labels is not None
    if other.labels.ndim > 1:
        raise ValueError(f"transfer-fine-tune needs one label an image, and {other.name} has several: use transfer")
    if test is not None:
        return other, test
    kept, held = stratified_split(other.labels, 0.2, 0)  # as `split_features` divides
    return subset(other, kept), subset(other, held)
