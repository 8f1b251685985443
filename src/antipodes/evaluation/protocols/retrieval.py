"""`retrieval`: images by their texts and texts by their images."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.ranking import first_ranks, recalls
from antipodes.evaluation.subject import PairedFeatures, Subject
from antipodes.evaluation.towers import text_features, text_tower


@dataclass(frozen=True)
class Retrieval(Protocol):
    """Recall at a few ranks, both ways. Of an image with several texts any of them counts as found.

    Args:
        cutoffs: The ranks.
    """

    name = "retrieval"
    summary = "texts of images and images of texts: recall at ranks 1, 5 and 10 (any text of the image counts)"
    needs = frozenset({"pairs"})

    cutoffs: tuple[int, ...] = (1, 5, 10)

    def __post_init__(self) -> None:
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise ValueError(f"cutoffs must be ranks of at least 1, got {list(self.cutoffs)}")

    def run(self, subject: Subject) -> dict[str, float]:
        """Texts found for images, images found for texts, and the mean of all recalls, in percent."""
        pairs = subject.paired or paired_features(subject)
        numbers = torch.arange(len(pairs.images))
        described = torch.isin(numbers, pairs.owners)
        texts = recalls(
            first_ranks(pairs.images[described], pairs.texts, numbers[described], pairs.owners), self.cutoffs
        )
        images = recalls(first_ranks(pairs.texts, pairs.images, pairs.owners, numbers), self.cutoffs)
        scores = {f"image to text R@{cutoff}": 100 * share for cutoff, share in texts.items()}
        scores |= {f"text to image R@{cutoff}": 100 * share for cutoff, share in images.items()}
        return scores | {"retrieval mean": fmean(scores.values())}


def paired_features(subject: Subject) -> PairedFeatures:
    """Embeddings of the test images and their texts under a method with a tower for each."""
    assert subject.method is not None
    assert subject.data is not None
    data: Samples = subject.data if subject.held_out is None else subject.held_out
    tower = text_tower(subject.method)
    assert tower is not None
    images = subject.embed(data, "image", "embeddings")
    _, first, owners = _firsts(data.image_ids(torch.arange(len(data))))
    captions = [data.captions(int(row)) for row in first]  # all of them, whatever a row shows
    if not all(captions):
        return PairedFeatures(images[first], subject.embed(data, tower, "embeddings"), owners)
    counts = torch.tensor([len(some) for some in captions])
    texts = text_features(subject.method, tower, [text for some in captions for text in some], device=subject.device)
    return PairedFeatures(images[first], texts, torch.arange(len(first)).repeat_interleave(counts))


def _firsts(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different samples, the first row of each, and the place of every row's sample among them."""
    different, places = samples.unique(return_inverse=True)
    first = torch.full((len(different),), len(samples)).scatter_reduce_(
        0, places, torch.arange(len(samples)), reduce="amin"
    )
    return different, first, places
