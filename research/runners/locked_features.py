"""Several views of every sample under a locked encoder, embedded once and kept in the user's cache folder.

Images get random views of one recipe; a captioned image has its captions as views. Principal components of what is
embedded keep the small networks on top of it small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from antipodes import encoders
from antipodes.data import Raw, Samples
from antipodes.runs.build import build_data
from antipodes.runs.embedding import cached_features, embed_dataset
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator

BATCH = 256


@dataclass(frozen=True)
class LockedViews:
    """Features of views, by row of a dataset.

    Attributes:
        views: (V, n, F) of the training rows.
        plain: (n, F) of the training rows when nothing is random; of captions the first view.
        test_views: (V, m, F) of the test rows; of images their plain features alone, V = 1.
        labels: (n,), None where there are none.
        test_labels: (m,), likewise.
    """

    views: Tensor
    plain: Tensor
    test_views: Tensor
    labels: Tensor | None = None
    test_labels: Tensor | None = None

    def kept(self, rows: Tensor, held: Tensor) -> LockedViews:
        """Some training rows to train on and others to be judged by, in place of the test rows."""
        test = self.views[:, held] if self.labels is None else self.plain[held][None]
        labels = (None, None) if self.labels is None else (self.labels[rows], self.labels[held])
        return LockedViews(self.views[:, rows], self.plain[rows], test, *labels)

    def of_classes(self, count: int) -> LockedViews:
        """The samples of the first classes alone.

        Raises:
            ValueError: if there are no labels, or fewer classes.
        """
        if self.labels is None or self.test_labels is None or int(self.labels.max()) + 1 < count:
            raise ValueError(f"classes {count} needs labels of so many classes at least")
        rows, held = self.labels < count, self.test_labels < count
        test = self.test_views[:, held]
        return LockedViews(self.views[:, rows], self.plain[rows], test, self.labels[rows], self.test_labels[held])


def image_views(data: Mapping[str, Any], encoder: str, recipe: str, count: int, components: int) -> LockedViews:
    """Features of random views of images.

    Args:
        data: As in a run's configuration; it needs labels and a test split.
        encoder: A pretrained one, by name.
        recipe: Of the views, by name.
        count: Views of every image.
        components: Principal components of the plain training features that are kept of all.

    Raises:
        ValueError: if the data has no labels or no test split.
    """
    train = build_data(data)
    test = train.held_out()
    if test is None or train.labels is None or test.labels is None:
        raise ValueError(f"data {train.name} needs labels and a test split, to judge the features by")
    network = encoders.create(encoder).requires_grad_(False).eval()
    plain = build_augmentation({"name": "plain"}, train.image_size)
    random = build_augmentation({"name": recipe}, train.image_size)

    def features(samples: Samples, what: str, view: Callable[[Raw], Tensor]) -> Tensor:
        compute = partial(embed_dataset, network, samples, preprocess=view, batch_size=BATCH)
        return cached_features(network, repr((samples.fingerprint, samples.image_size, what)), compute)

    def drawn(number: int) -> Callable[[Raw], Tensor]:
        draws = generator("locked views", number)  # rows come in their order, so one generator does for all of them
        return lambda images: random(images, draws)  # type: ignore[arg-type]

    def still(images: Raw) -> Tensor:
        return plain(images, torch.Generator())  # type: ignore[arg-type]

    known = features(train, "plain", still)
    basis = Components(known, components)
    views = torch.stack([basis(features(train, f"{recipe} {number}", drawn(number))) for number in range(count)])
    return LockedViews(views, basis(known), basis(features(test, "plain", still))[None], train.labels, test.labels)


def caption_views(data: Mapping[str, Any], encoder: str, count: int, components: int) -> LockedViews:
    """Features of the captions of images; the captions of an image are its views.

    Args:
        data: Captioned images, as in a run's configuration.
        encoder: A pretrained one of texts, by name.
        count: Captions of every image; images with fewer are left out.
        components: Principal components of the training captions that are kept.

    Raises:
        ValueError: if the data has no captions or no test split.
    """
    train = build_data(data)
    test = train.held_out()
    if test is None or train.modalities.get("text") != "text":
        raise ValueError(f"data {train.name} needs captions and a test split, to judge the features by")
    network = encoders.create(encoder).requires_grad_(False).eval()
    parts = [_captions(network, samples, count) for samples in (train, test)]
    basis = Components(parts[0].flatten(0, 1), components)
    views, held = (torch.stack([basis(view) for view in part]) for part in parts)
    return LockedViews(views, views[0], held)


def _captions(network: nn.Module, samples: Any, count: int) -> Tensor:
    """The features (count, n, F) of the first captions of every image that has so many."""
    texts = [captions[:count] for row in range(len(samples)) if len(captions := samples.captions(row)) >= count]
    flat = [text for captions in texts for text in captions]

    @torch.no_grad()
    def compute() -> Tensor:
        tokenize: Callable[[list[str]], Tensor] = network.tokenize  # type: ignore[assignment]
        return torch.cat([network(tokenize(flat[at : at + BATCH])).float() for at in range(0, len(flat), BATCH)])

    features = cached_features(network, repr((samples.fingerprint, "captions", count)), compute)
    return features.view(len(texts), count, -1).transpose(0, 1)


class Components:
    """The principal components of features, scaled by one number so that the first ones are of size 1.

    Args:
        features: (n, F) that they are those of.
        count: How many are kept; all where there are fewer.
    """

    def __init__(self, features: Tensor, count: int) -> None:
        self.mean = features.mean(0)
        centred = (features - self.mean).double()
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(features))
        self.basis = (vectors[:, -count:].flip(1) / values[-1].clamp(min=1e-12).sqrt()).float()

    def __call__(self, features: Tensor) -> Tensor:
        """(n, F) to (n, count)."""
        reduced: Tensor = (features - self.mean) @ self.basis
        return reduced
