"""Data of one's own with two inputs, and encoders for both, as a user would name them by dotted paths."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples

SIZE, FEATURES, CLASSES = 8, 6, 4


class Paired(Samples):
    """Small images, each with a vector that knows something of its class.

    Args:
        count: Rows.
        records: Rows of the same sample; more than one shows a sample several times.
        labelled: Whether there are labels.
    """

    name = "paired"
    modalities = {"image": "image", "vector": "vector"}
    image_size = SIZE
    in_memory = True

    def __init__(self, count: int = 64, records: int = 1, labelled: bool = True) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = torch.arange(count) // records % CLASSES
        noise = torch.randint(0, 128, (count, 3, SIZE, SIZE), generator=generator)
        self.images = (noise + 30 * labels[:, None, None, None]).to(torch.uint8)
        self.vectors = nn.functional.one_hot(labels, FEATURES) + 0.3 * torch.randn(count, FEATURES, generator=generator)
        self.labels = labels if labelled else None
        self.samples = None if records == 1 else torch.arange(count) // records * records

    def __len__(self) -> int:
        return len(self.images)

    @cached_property
    def fingerprint(self) -> str:
        return f"paired-{len(self)}-{self.samples is None}"

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        return {"image": self.images[rows], "vector": self.vectors[rows]}


class Pixels(nn.Module):
    """Images of the paired data to features, without batch statistics."""

    num_features = 12

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, self.num_features), nn.Tanh())

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return out


class Dense(nn.Module):
    """Vectors to features."""

    num_features = 10
    modality = "vector"

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(in_features, self.num_features)

    def forward(self, vectors: Tensor) -> Tensor:
        out: Tensor = self.layer(vectors).tanh()
        return out
