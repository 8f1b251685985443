"""`zero-shot`: classification by the names of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from antipodes.evaluation.accuracy import accuracy
from antipodes.evaluation.protocol import Protocol
from antipodes.evaluation.subject import Subject
from antipodes.evaluation.towers import embed_texts, text_tower, tower_network
from antipodes.pairs import normalise


@dataclass(frozen=True)
class ZeroShot(Protocol):
    """An image gets the class whose description it is most similar to.

    Args:
        templates: Prompts with {} for the name of the class; their embeddings are averaged.
    """

    name = "zero-shot"
    summary = "classification by the names of the classes, put into prompts whose embeddings are averaged"
    needs = frozenset({"classes", "labels"})

    templates: tuple[str, ...] = ("a photo of a {}.", "a picture of a {}.", "a photo of the {}.", "{}")

    def __post_init__(self) -> None:
        if not self.templates or not all("{}" in template for template in self.templates):
            raise ValueError("every template needs {} where the name of the class goes")

    def run(self, subject: Subject) -> dict[str, float]:
        """Top-1, top-5 and mean per class on the test images, or on all where there is no test split."""
        assert subject.method is not None
        assert subject.data is not None
        data = subject.data if subject.held_out is None else subject.held_out
        tower = text_tower(subject.method)
        assert tower is not None
        assert data.labels is not None
        network = tower_network(subject.method, tower, "embeddings")
        classes = class_vectors(network, data.classes or subject.data.classes or (), self.templates, subject.device)
        images = normalise(subject.embed(data, "image", "embeddings"))
        return accuracy(images @ classes.T, data.labels).named("zero-shot")


def class_vectors(
    network: nn.Module, names: Sequence[str], templates: Sequence[str], device: torch.device | str = "cpu"
) -> Tensor:
    """A vector (K, D) of length 1 for every class: the mean over prompts of their embeddings of length 1."""
    parts = [
        normalise(embed_texts(network, [template.format(name) for name in names], device)) for template in templates
    ]
    return normalise(torch.stack(parts).mean(0))
