"""`retrieval`: recall of images by texts and the reverse, or of documents by queries and the reverse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import fmean

from antipodes.data import Samples
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import first_ranks_of_pairs, recall_both_ways, recalls
from antipodes.runs.towers import PairedFeatures, paired_features, text_pairs


@dataclass(frozen=True)
class Retrieval(Protocol):
    """Recall at several ranks in both directions; for an image with several texts, any of them counts.

    A run on pairs of texts has queries and documents instead of images and texts.

    Args:
        cutoffs: The ranks, such as 1, 5 and 10.
    """

    name = "retrieval"
    summary = "texts of images and images of texts, or two texts of each other: recall at ranks 1, 5 and 10"
    needs = frozenset({"pairs"})

    cutoffs: tuple[int, ...] = (1, 5, 10)

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ValueError(f"cutoffs must be ranks of at least 1, got {list(self.cutoffs)}")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return recall of texts by images, of images by texts, and the mean of all recalls, in percent."""
        if subject.pairs_texts:
            return self._of_texts(subject)
        pairs = subject.paired or _features(subject)
        texts, images, mean = recall_both_ways(pairs.images, pairs.texts, pairs.owners, self.cutoffs)
        scores = {f"image to text R@{cutoff}": recall for cutoff, recall in texts.items()}
        scores |= {f"text to image R@{cutoff}": recall for cutoff, recall in images.items()}
        return scores | {"retrieval mean": mean}

    def _of_texts(self, subject: Subject) -> dict[str, float]:
        """Documents found for queries, queries found for documents, and the mean of all recalls, in percent."""
        assert subject.method is not None
        pairs = text_pairs(subject.method, _held_out(subject), subject.device)
        ways = {
            "query to document": (pairs.queries, pairs.documents, pairs.relevant),
            "document to query": (pairs.documents, pairs.queries, pairs.relevant.flip(1)),
        }
        scores = {
            f"{way} R@{cutoff}": 100 * share
            for way, (queries, keys, relevant) in ways.items()
            for cutoff, share in recalls(first_ranks_of_pairs(queries, keys, relevant), self.cutoffs).items()
        }
        return scores | {"retrieval mean": fmean(scores.values())}


def _held_out(subject: Subject) -> Samples:
    """The test split, or the training split where there is none."""
    assert subject.data is not None
    return subject.data if subject.held_out is None else subject.held_out


def _features(subject: Subject) -> PairedFeatures:
    """Embed the test images and their texts with a method that has a tower for each."""
    assert subject.method is not None
    data = _held_out(subject)
    return paired_features(subject.method, data, partial(subject.embed, data), subject.device)
