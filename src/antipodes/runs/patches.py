"""`PatchEyes`: images told apart by the small patches that they are made of; nothing is trained for it.

The features of Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (2011):

1. Words: patches from everywhere in the images, without their mean and contrast, whitened, in clusters by spherical
   k-means. A word is the direction of a cluster.
2. An image: every patch of it says how much more it resembles a word than it does most of them, and the image is the
   mean of that in each cell of a grid, of the image and its mirror image. Square roots, as of counts.
3. What tells images apart: without their mean, along the directions in which they vary most, each divided by the root
   of its standard deviation, so that the strongest (colour, brightness) do not decide alone.

A young encoder that looks for its own false negatives finds what it knows already. These eyes see something else.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.distributed import alone
from antipodes.negatives.clustering import spherical_kmeans
from antipodes.pairs import normalise
from antipodes.seeding import generator

CONTRAST = 10 / 255**2  # added to the variance of a patch, so that a plain one is not blown up
FLAT = 0.1  # likewise to the variance of whitened directions
PATCHES = 100_000  # that words are found in
CLUSTERING = 10  # iterations
BATCH = 64


class PatchEyes(nn.Module):
    """Images to vectors, by words that `fit` has found.

    Args:
        words: How many.
        patch: Side of a patch, in pixels.
        stride: From one patch to the next.
        grid: Cells of the image along each side in which words are counted.
        dim: Length of a vector.

    Example:
        >>> images = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> eyes = PatchEyes(words=10, patch=4, grid=2, dim=8).fit(images)
        >>> eyes(images[:2]).shape
        torch.Size([2, 8])
    """

    kernels: Tensor
    offsets: Tensor
    mean: Tensor
    directions: Tensor

    def __init__(self, words: int = 400, patch: int = 8, stride: int = 2, grid: int = 4, dim: int = 128) -> None:
        super().__init__()
        for name, value in {"words": words, "patch": patch, "stride": stride, "grid": grid, "dim": dim}.items():
            if value < 1:
                raise ValueError(f"{name} of a guide of patches must be at least 1, got {value}")
        self.words, self.patch, self.stride, self.grid, self.dim = words, patch, stride, grid, dim

    def extra_repr(self) -> str:
        """What makes the vectors what they are, beside the images."""
        return f"words={self.words}, patch={self.patch}, stride={self.stride}, grid={self.grid}, dim={self.dim}"

    @torch.no_grad()
    def fit(self, images: Tensor) -> Self:
        """Find words, and the directions in which these images vary.

        Args:
            images: (n, channels, side, side) in [0, 1], some thousand.

        Raises:
            ValueError: if the images are smaller than a patch, or too few.
        """
        count, side = len(images), images.shape[-1]
        most = min(count - 1, self.words * self.grid**2)
        if side < self.patch + self.grid - 1:
            raise ValueError(f"images of {side} pixels are too small for {self.grid} x {self.grid} cells of patches")
        if self.dim > most:
            raise ValueError(
                f"a guide of patches has at most {most} dimensions on {count} images, got {self.dim}: give a lower dim"
            )
        patches = self._draw(images)
        centre = patches.mean(0)
        variances, basis = torch.linalg.eigh(torch.cov((patches - centre).T))
        whitening = basis * (variances.clamp(min=0) + FLAT).rsqrt() @ basis.T
        with alone():  # a rank that has the vectors on its disk does not come here
            found = spherical_kmeans((patches - centre) @ whitening, [self.words], iterations=CLUSTERING)[0]
        kernels = found.centroids @ whitening
        self.register_buffer("offsets", -(kernels @ centre))
        kernels = kernels - kernels.mean(1, keepdim=True)  # which takes a patch's own mean away
        self.register_buffer("kernels", kernels.reshape(self.words, -1, self.patch, self.patch))
        counted = self._count(images)
        self.register_buffer("mean", counted.mean(0))
        self.register_buffer("directions", _principal(counted - self.mean, self.dim))
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The vectors (B, dim) of images (B, channels, side, side) in [0, 1], of unit length."""
        return normalise((self._count(images) - self.mean) @ self.directions)

    def _draw(self, images: Tensor) -> Tensor:
        """Patches from anywhere, (m, channels * patch * patch), without mean and contrast."""
        source, places = generator("patches"), images.shape[-1] - self.patch + 1
        which, top, left = (torch.randint(end, (PATCHES,), generator=source) for end in (len(images), places, places))
        along = torch.arange(self.patch)
        rows, columns = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
        drawn = images[which[:, None, None], :, rows, columns].permute(0, 3, 1, 2).flatten(1)
        return (drawn - drawn.mean(1, keepdim=True)) / (drawn.var(1, keepdim=True) + CONTRAST).sqrt()

    def _count(self, images: Tensor) -> Tensor:
        """How much of every word is in every cell, (n, words * grid * grid)."""
        parts = [self._cells(some) + self._cells(some.flip(3)) for some in images.split(BATCH)]
        return torch.cat(parts).flatten(1).sqrt_()

    def _cells(self, images: Tensor) -> Tensor:
        mean_of = images.new_full((1, *self.kernels.shape[1:]), 1 / self.kernels[0].numel())
        means, squares = (F.conv2d(each, mean_of, stride=self.stride) for each in (images, images.square()))
        numbers = self.kernels[0].numel()
        contrast = ((squares - means.square()).clamp_(min=0) * numbers / (numbers - 1) + CONTRAST).sqrt_()
        alike = F.conv2d(images, self.kernels, stride=self.stride).div_(contrast).add_(self.offsets[:, None, None])
        spread, middle = torch.std_mean(alike, 1, keepdim=True)
        return F.adaptive_avg_pool2d(alike.sub_(middle + spread / 2).clamp_(min=0), self.grid)


def _principal(centred: Tensor, dim: int) -> Tensor:
    """The directions in which rows vary most, (F, dim), each divided by the root of its standard deviation.

    By iterating on a few of them: an image has thousands of numbers, and to decompose all of these takes minutes.
    """
    start = torch.randn(centred.shape[1], min(dim + 16, *centred.shape), generator=generator("directions"))
    space = torch.linalg.qr(start).Q
    for _ in range(4):
        space = torch.linalg.qr(centred.T @ (centred @ space)).Q
    inside = centred @ space
    variances, basis = torch.linalg.eigh(inside.T @ inside / len(centred))
    directions: Tensor = space @ basis[:, -dim:] * variances[-dim:].clamp(min=1e-12) ** -0.25
    return directions
