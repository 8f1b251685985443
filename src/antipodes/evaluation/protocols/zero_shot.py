"""`zero-shot`: classification by the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor, nn

from antipodes.data import Samples
from antipodes.evaluation.accuracy import Accuracy, accuracy
from antipodes.evaluation.protocol import LABELS_ARE_NEEDED, Protocol
from antipodes.evaluation.subject import Subject
from antipodes.pairs import normalise
from antipodes.runs.embedding import embed_texts
from antipodes.runs.towers import text_tower, tower_network


@dataclass(frozen=True)
class ZeroShot(Protocol):
    """Classify each image by the class whose description is most similar to it.

    Args:
        templates: Prompts with {} for the class's name; their embeddings are averaged.
    """

    name = "zero-shot"
    summary = "classification of the datasets of --transfer by the names of their classes, in prompts that are averaged"
    needs = frozenset({"classes"})
    takes_others = True

    templates: tuple[str, ...] = ("a photo of a {}.", "a picture of a {}.", "a photo of the {}.", "{}")

    def __post_init__(self) -> None:
        if not self.templates or not all("{}" in template for template in self.templates):
            raise ValueError("every template needs {} where the name of the class goes")

    def run(self, subject: Subject) -> dict[str, float]:
        """Return top-1, top-5 and mean per class on the test images, or on all images without a test split.

        Scores are given for every dataset to transfer to, with the mean of top-1, and for the run's own data if it has
        classes.

        Raises:
            ValueError: if a dataset has no names of classes, or several labels an image.
        """
        if subject.classified is not None:
            given = subject.classified
            return accuracy(normalise(given.images) @ normalise(given.classes).T, given.labels).named("zero-shot")
        scores: dict[str, float] = {}
        if subject.has_classes:
            assert subject.data is not None
            scores |= self._of(subject, subject.data).named("zero-shot")
        found = {other.name: self._of(subject, other) for other in subject.others}
        for name, one in found.items():
            scores |= one.named(f"zero-shot {name}")
        if len(found) > 1:
            scores["zero-shot mean"] = 100 * fmean(one.top1 for one in found.values())
        return scores

    def _of(self, subject: Subject, data: Samples) -> Accuracy:
        assert subject.method is not None
        held_out = subject.held_out if data is subject.data else data.held_out(subject.test_limit)
        shown = data if held_out is None else held_out
        names = shown.classes or data.classes
        if names is None:
            raise ValueError(f"{self.name} needs the names of the classes, and {data.name} has none: use class folders")
        if shown.labels is None:
            raise ValueError(f"{data.name}: {LABELS_ARE_NEEDED.format(protocol=self.name, part='test')}")
        if shown.labels.ndim > 1:
            raise ValueError(f"{self.name} needs one label an image, and {data.name} has several")
        tower = text_tower(subject.method)
        network = tower_network(subject.method, tower, "embeddings").to(subject.device)
        classes = class_vectors(network, names, self.templates, subject.device)
        view = None if data is subject.data else subject.other_view(data)
        images = subject.embed(shown, "image", "embeddings", view=view, progress=subject.progress)
        known = shown.labels >= 0
        return accuracy(normalise(images[known]) @ classes.T, shown.labels[known])


def class_vectors(
    network: nn.Module, names: Sequence[str], templates: Sequence[str], device: torch.device | str = "cpu"
) -> Tensor:
    """Return a unit vector for every class, (K, D): the mean over prompts of their unit embeddings.

    Args:
        network: The text tower with its head.
        names: The classes' names; underscores (as in names of folders) are replaced by spaces.
        templates: Prompts with {} for the name of the class.
        device: The device to run on.
    """
    written = [name.replace("_", " ") for name in names]
    parts = [
        normalise(embed_texts(network, [template.replace("{}", name) for name in written], device))
        for template in templates
    ]
    return normalise(torch.stack(parts).mean(0))
