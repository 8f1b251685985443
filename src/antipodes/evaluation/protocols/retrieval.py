"""`retrieval`: recall of images by their texts and of texts by their images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.retrieval import recall_both_ways
from antipodes.runs.towers import PairedFeatures, paired_features


@dataclass(frozen=True)
class Retrieval(Protocol):
    """Recall at several ranks in both directions; for an image with several texts, any of them counts.

    Args:
        cutoffs: The ranks, such as 1, 5 and 10.
    """

    name = "retrieval"
    summary = "texts of images and images of texts: recall at ranks 1, 5 and 10 (any text of the image counts)"
    needs = frozenset({"pairs"})

    cutoffs: tuple[int, ...] = (1, 5, 10)

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ValueError(f"cutoffs must be ranks of at least 1, got {list(self.cutoffs)}")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return recall of texts by images, of images by texts, and the mean of all recalls, in percent."""
        pairs = subject.paired or _features(subject)
        texts, images, mean = recall_both_ways(pairs.images, pairs.texts, pairs.owners, self.cutoffs)
        scores = {f"image to text R@{cutoff}": recall for cutoff, recall in texts.items()}
        scores |= {f"text to image R@{cutoff}": recall for cutoff, recall in images.items()}
        return scores | {"retrieval mean": mean}


def _features(subject: Subject) -> PairedFeatures:
    """Embed the test images and their texts with a method that has a tower for each."""
    assert subject.method is not None
    assert subject.data is not None
    data = subject.data if subject.held_out is None else subject.held_out
    return paired_features(subject.method, data, partial(subject.embed, data), subject.device)
