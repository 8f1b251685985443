"""`transfer-fine-tune`: the whole network trained on other datasets than the one it was pretrained on."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from antipodes.evaluation.protocols.fine_tune import FineTune, LabelledSplits
from antipodes.evaluation.protocols.transfer import custom_metric, labelled_splits
from antipodes.evaluation.splits import class_balanced_subset, used_share
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import number_classes


@dataclass(frozen=True)
class TransferFineTune(FineTune):
    """Train a copy of the encoder and a linear layer on top on other datasets, as `fine-tune` does on the run's own.

    The learning rate is chosen on a held-out fifth of each dataset's training images; its test images have no
    influence. Images are normalised as those of the run were, or by the dataset's own statistics where the subject says
    so. Datasets with several labels an image are refused.

    Args:
        fractions: Shares of the labels; every class keeps at least one.
    """

    name = "transfer-fine-tune"
    summary = "the whole network trained on other datasets: name them by --transfer"
    needs = frozenset({"network", "others"})
    takes_others = True

    fractions: tuple[float, ...] = (1.0,)

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5, mean per class and the rate for every dataset and share, and the mean of usual scores.

        Raises:
            ValueError: if a dataset has no labels, or several an image.
        """
        assert subject.method is not None
        scores: dict[str, float] = {}
        customs = []
        for other in subject.others:
            train, test = labelled_splits(other, subject, self.name)
            assert train.labels is not None
            assert test.labels is not None
            labels, test_labels, _ = number_classes(train.labels, test.labels)
            own = subject.other_pixels(train)
            task = LabelledSplits(train, labels, test, test_labels, subject.method.pixels if own is None else own)
            for fraction in self.fractions:
                ids = class_balanced_subset(labels, fraction, subject.seed)
                rate = self.choose(subject, task, ids)
                share = "" if fraction == 1 else f", {100 * fraction:g} % labels"
                prefix = f"fine-tune on {other.name}{share}"
                named = self.accuracy_of(subject, task, ids, rate).named(prefix)
                scores |= named | used_share(prefix, len(ids), len(labels), fraction)
                scores[f"fine-tune rate, {other.name}{share}"] = rate
                if fraction == self.fractions[-1]:
                    customs.append(named[f"{prefix} {custom_metric(other)}"])
        if len(customs) > 1:
            scores["fine-tune on others, mean"] = fmean(customs)
        return scores
