"""What every augmentation has in common: draw parameters, slice them by rank, apply, normalise."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
"""What was drawn for a batch: every tensor has one row per sample, so a batch's parameters slice row by row."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Augmentation(ABC):
    """A batch of uint8 or [0, 1] float images (B, 3, H, W) becomes normalised float views (B, 3, size, size).

    Randomness is apart from pixels: `parameters` draws everything that is random, one row per sample, and `apply` is a
    deterministic function of images and parameters. A call draws for the global batch and keeps the rows of its rank,
    so that two ranks with generators in the same state see the views that one process with the whole batch sees.

    Args:
        size: height and width of the views.
        mean: per-channel mean that is subtracted from the views in [0, 1].
        std: per-channel standard deviation by which they are then divided.
    """

    chunk_values = 64 * 3 * 32**2
    """How many values of views are worked on at a time on a CPU: as many as stay in a core's cache."""

    def __init__(
        self,
        size: int = 32,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}: it is the height and width of the views in pixels")
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            raise ValueError(f"mean and std need one number per colour channel and std > 0, got {mean} and {std}")
        self.size = size
        self.mean = mean
        self.std = std

    @abstractmethod
    def parameters(self, count: int, generator: torch.Generator) -> Parameters:
        """Draw everything random for `count` samples, on the generator's device."""

    @abstractmethod
    def transform(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Turn float images (B, 3, H, W) in [0, 1] into views (B, 3, size, size) in [0, 1], leaving `images` as is."""

    def apply(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Return the normalised float32 views (B, 3, size, size) of `images` that `parameters` describe.

        Args:
            images: (B, 3, H, W), uint8 or floating point in [0, 1].
            parameters: B rows drawn by `parameters`, on the images' device.

        Raises:
            ValueError: if the images have another shape or dtype, or another number of rows than the parameters.
        """
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must have shape (B, 3, H, W), got {tuple(images.shape)}")
        for name, rows in parameters.items():
            if len(rows) != len(images):
                raise ValueError(f"parameter {name!r} has {len(rows)} rows for {len(images)} images: draw one for each")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images must be uint8 or floating point in [0, 1], got {images.dtype}")
        # On a CPU the many small steps over all pixels would wait for memory, if their pixels left the cache meanwhile.
        chunk = max(1, self.chunk_values // (3 * self.size**2) if images.device.type == "cpu" else len(images))
        views = torch.empty(len(images), 3, self.size, self.size, device=images.device)
        mean = views.new_tensor(self.mean).view(3, 1, 1)
        scale = 1 / views.new_tensor(self.std).view(3, 1, 1)
        for first in range(0, len(images), chunk):
            some = slice(first, first + chunk)
            pixels = images[some].float().mul_(1 / 255) if images.dtype == torch.uint8 else images[some].float()
            view = self.transform(pixels, {name: rows[some] for name, rows in parameters.items()})
            torch.sub(view, mean, out=views[some]).mul_(scale)
        return views

    def __call__(self, images: Tensor, generator: torch.Generator, *, rank: int = 0, world_size: int = 1) -> Tensor:
        """Draw parameters for the global batch of `world_size * B` samples and apply those of this rank's B images."""
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank}")
        first = rank * len(images)
        drawn = self.parameters(world_size * len(images), generator)
        mine = {name: rows[first : first + len(images)].to(images.device) for name, rows in drawn.items()}
        return self.apply(images, mine)


def uniform(shape: int | tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw float32 numbers, uniform in [low, high), on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device).mul_(high - low).add_(low)


def check_probability(name: str, value: float) -> None:
    """Refuse a probability outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {value}: it is the probability with which it happens")


def check_range(name: str, value: tuple[float, float], lowest: float, highest: float = float("inf")) -> None:
    """Refuse a range that is empty or leaves (lowest, highest]."""
    if len(value) != 2 or not lowest < value[0] <= value[1] <= highest:
        raise ValueError(f"{name} must be a pair (low, high) with {lowest} < low <= high <= {highest}, got {value}")
