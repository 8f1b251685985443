"""Vectors of augmented photos from a frozen encoder, computed once, and a small network that is trained on them.

A contrastive run on photos spends nearly all of its time in the encoder and the augmentation. Here a fixed number of
augmented views of every photo is embedded once and kept in a file; a run then draws two of a photo's views in every
epoch and trains two layers and a projection head in seconds, with the losses and policies of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes import InfoNCE
from antipodes.data.augment import augmentation
from antipodes.encoders.efficientnet import EfficientNetLite0
from antipodes.evaluation.linear import fit_logistic
from antipodes.functional.feature_quality import knn

NEIGHBOURS = 20
STRENGTH = 0.03
"""Of the linear probe's penalty, the same for all: half a decade of it changes the accuracies by less than a run's
own spread."""

Embed = Callable[[Tensor], Tensor]
"""Normalised images (B, 3, H, W) to vectors (B, F)."""


class Photos(NamedTuple):
    """Images (n, 3, H, W) uint8 and their classes (n,)."""

    images: Tensor
    labels: Tensor


class Split(NamedTuple):
    """Vectors of the views (V, n, D), of the photos themselves (n, D), and their classes (n,)."""

    views: Tensor
    plain: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Training:
    """What all runs of a study have in common."""

    width: int = 128
    dim: int = 64
    batch_size: int = 250
    learning_rate: float = 0.001
    epochs: int = 60
    every: int = 30


def efficientnet() -> Embed:
    """EfficientNet-Lite0 with the weights of ImageNet, frozen."""
    network = EfficientNetLite0().eval()

    def embed(images: Tensor) -> Tensor:
        features: Tensor = network(images.contiguous(memory_format=torch.channels_last))
        return features

    return embed


@torch.no_grad()
def embed_views(photos: Photos, embed: Embed, size: int, views: int, seed: int) -> Split:
    """Embed augmented views and the photos themselves.

    Args:
        photos: The photos.
        embed: The encoder.
        size: Side of the views in pixels.
        views: How many random views of every photo (SimCLR's augmentation without blur).
        seed: Of the views.
    """
    draw = torch.Generator().manual_seed(seed)
    random, plain = augmentation("simclr", size=size, blur=0.0, scale=(0.2, 1.0)), augmentation("plain", size=size)

    def embedded(view: Callable[..., Tensor]) -> Tensor:
        return torch.cat([embed(view(some, draw)) for some in photos.images.split(100)])

    found = [embedded(random) for _ in range(views)]
    own = embedded(plain)
    return Split(torch.stack(found) if found else own[:0, None], own, photos.labels)


def reduce_width(splits: Sequence[Split], dim: int) -> list[Split]:
    """Keep the directions in which the first split's photos vary most, and scale their mean square to 1.

    Args:
        splits: Vectors of any width.
        dim: How many directions to keep.
    """
    plain = splits[0].plain
    mean = plain.mean(0)
    _, scale, basis = torch.linalg.svd(plain - mean, full_matrices=False)
    basis = basis[:dim].T / (scale[:dim].square().sum() / len(plain) / dim).sqrt()
    return [Split((each.views - mean) @ basis, (each.plain - mean) @ basis, each.labels) for each in splits]


def cached(path: Path, make: Callable[[], Sequence[Split]]) -> list[Split]:
    """The data in this file, which is made and saved if it does not exist."""
    if not path.is_file():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save([tuple(split) for split in made], path)
    return [Split(*split) for split in torch.load(path, weights_only=True)]


class Network(nn.Module):
    """Vectors (B, D) to features (B, width), and by the projection head to embeddings (B, dim)."""

    def __init__(self, inputs: int, training: Training, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            width = training.width
            self.body = nn.Sequential(nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU())
            self.head = nn.Sequential(
                nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, training.dim)
            )

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the embeddings (B, dim)."""
        embeddings: Tensor = self.head(self.body(vectors))
        return embeddings

    @torch.no_grad()
    def both(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features and the embeddings, with batch normalisation in evaluation mode."""
        self.eval()
        features = self.body(vectors)
        embeddings = self.head(features)
        self.train()
        return features, embeddings


def draw_two_views(views: Tensor, rows: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two different views (B, D) each of these samples, of their views (V, n, D)."""
    count = len(views)
    first = torch.randint(count, rows.shape, generator=draw)
    second = (first + torch.randint(1, count, rows.shape, generator=draw)) % count
    return views[first, rows], views[second, rows]


def train_step(
    network: Network, loss: InfoNCE, optimizer: torch.optim.Optimizer, views: tuple[Tensor, Tensor], ids: Tensor,
    progress: float,
) -> None:  # fmt: skip
    """One step on two views (B, D) each of the samples `ids` (B,)."""
    optimizer.zero_grad()
    first, second = network(torch.cat(views)).chunk(2)
    loss(first, second, ids, progress=progress).backward()
    optimizer.step()


def quality(network: Network, learn: Split, scored: Split) -> dict[str, float]:
    """Accuracies in per cent on held-out photos: linear probe and kNN of features, kNN of embeddings."""
    ours, theirs = network.both(learn.plain), network.both(scored.plain)
    return {
        "linear, features": linear(ours[0], learn.labels, theirs[0], scored.labels),
        "kNN, features": neighbour_vote(ours[0], learn.labels, theirs[0], scored.labels),
        "kNN, embeddings": neighbour_vote(ours[1], learn.labels, theirs[1], scored.labels),
    }


def linear(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Accuracy of a linear probe of a fixed penalty, in per cent."""
    classes = int(train_labels.max()) + 1
    found = fit_logistic(train, train_labels, STRENGTH, classes, tolerance=1e-4)
    return 100 * float((found.logits(test).argmax(1) == test_labels).double().mean())


def neighbour_vote(train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor) -> float:
    """Accuracy of a vote of the nearest neighbours, in per cent."""
    return 100 * knn(train, train_labels, test, test_labels, k=NEIGHBOURS)


def quantile_precision(vectors: Tensor, labels: Tensor, share: float) -> float:
    """Of every vector's most similar others, this share of all, the per cent of its own class: the precision at the
    dataset's own quantile, averaged over the vectors.

    Args:
        vectors: (n, D)
        labels: (n,)
        share: The share alpha of the others that is looked at.
    """
    unit = F.normalize(vectors, dim=1)
    count = max(1, round(share * (len(unit) - 1)))
    right = []
    for rows in torch.arange(len(unit)).split(1024):
        similarity = unit[rows] @ unit.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf
        nearest = similarity.topk(count, dim=1).indices
        right.append((labels[nearest] == labels[rows, None]).double().mean(1))
    return 100 * float(torch.cat(right).mean())


def same_class_share(labels: Tensor) -> float:
    """The share of a sample's others that have its class, averaged over the samples."""
    count = labels.bincount().double()
    total = count.sum()
    return float((count * (count - 1)).sum() / (total * (total - 1)))
