"""`retrieval`: recall of images by texts and the reverse; nDCG, MRR, MAP@R and recall of documents by queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from antipodes.data import Samples
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.functional.feature_quality import ranked_measures, recall_both_ways
from antipodes.runs.towers import PairedFeatures, paired_features, text_pairs


@dataclass(frozen=True)
class RetrievalProtocol(Protocol):
    """How well images and texts find each other, or queries their documents.

    - Images and texts: recall at several ranks in both directions; of an image's texts, any counts.
    - Pairs of texts: nDCG@10, MRR@10, MAP@R and recall@k, as trec_eval defines them. Relevant are the judgements of a
      folder in BEIR's layout; elsewhere what stands in one row, or in rows of one group.

    Args:
        cutoffs: The ranks, such as 1, 5 and 10.
    """

    name = "retrieval"
    summary = "texts of images and the reverse: recall; documents of queries: nDCG@10, MRR@10, MAP@R, recall"
    needs = frozenset({"pairs"})

    cutoffs: tuple[int, ...] = (1, 5, 10)

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ValueError(f"cutoffs must be ranks of at least 1, got {list(self.cutoffs)}")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return recall in both directions and its mean, or the measures of documents by queries, in percent."""
        if subject.pairs_texts:
            return self._of_texts(subject)
        pairs = subject.paired or _features(subject)
        texts, images, mean = recall_both_ways(pairs.images, pairs.texts, pairs.owners, self.cutoffs)
        scores = {f"image to text R@{cutoff}": recall for cutoff, recall in texts.items()}
        scores |= {f"text to image R@{cutoff}": recall for cutoff, recall in images.items()}
        return scores | {"retrieval mean": mean}

    def _of_texts(self, subject: Subject) -> dict[str, float]:
        """Return the measures of documents found for queries, in percent."""
        assert subject.method is not None
        pairs = text_pairs(subject.method, _held_out(subject), subject.device)
        measures = ranked_measures(pairs.queries, pairs.documents, pairs.relevant, pairs.gains, self.cutoffs)
        return {name: 100 * value for name, value in measures.items()}


def _held_out(subject: Subject) -> Samples:
    """The test split, or the training split where there is none."""
    assert subject.data is not None
    return subject.data if subject.held_out is None else subject.held_out


def _features(subject: Subject) -> PairedFeatures:
    """Embed the test images and their texts with a method that has a tower for each."""
    assert subject.method is not None
    data = _held_out(subject)
    return paired_features(subject.method, data, partial(subject.embed, data), subject.device)
