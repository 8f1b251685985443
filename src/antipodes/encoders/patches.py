"""`PatchEncoder`: images told apart by the small patches that they are made of; no step of training is needed for it.

The features of Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (2011):

1. Words: patches from everywhere in the images, without their mean and contrast, whitened, in clusters by spherical
   k-means. A word is the direction of a cluster.
2. An image: every patch of it says how much more it resembles a word than it does most of them, and the image is the
   mean of that in each cell of a grid, of the image and its mirror image. Square roots, as of counts.
3. What tells images apart: without their mean, along the directions in which they vary most, each divided by the root
   of its standard deviation, so that the strongest (colour, brightness) do not decide alone.

As a guide it sees what a young encoder does not; as an encoder it needs a minute, and no weights from elsewhere.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes.clustering import spherical_kmeans
from antipodes.distributed import alone
from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.seeding import generator

CONTRAST = 0.0025  # of all pixels' variance, added to that of a patch, so that a plain one is not blown up
FLAT = 0.1  # likewise to the variance of whitened directions
PATCHES = 100_000  # that words are found in
FITTED = 4000  # images that are enough to find words, and the directions in which images vary
CLUSTERING = 10  # iterations
DIM = 128
BATCH = 64


class PatchEncoder(Encoder):
    """Images to vectors, by words that `fit` has found.

    Args:
        words: How many.
        patch: Side of a patch, in pixels.
        stride: From one patch to the next.
        grid: Cells of the image along each side in which words are counted.
        dim: Length of a vector.
        size: Side in pixels to which images are scaled first.
        in_channels: Channels of the images.

    Raises:
        ValueError: if a number is below 1, or the size too small; in `fit`, if images are too few.

    Example:
        >>> images = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> eyes = PatchEncoder(words=10, patch=4, grid=2, dim=8).fit(images)
        >>> eyes(images[:2]).shape
        torch.Size([2, 8])
    """

    preprocessing: Preprocessing
    kernels: Tensor
    offsets: Tensor
    contrast: Tensor
    mean: Tensor
    directions: Tensor

    def __init__(
        self,
        words: int = 400,
        patch: int = 8,
        stride: int = 2,
        grid: int = 4,
        dim: int = DIM,
        size: int = 32,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        numbers = {"words": words, "patch": patch, "stride": stride, "grid": grid, "dim": dim, "size": size}
        for name, value in {**numbers, "in_channels": in_channels}.items():
            if value < 1:
                raise ValueError(f"{name} of eyes for patches must be at least 1, got {value}")
        if size < patch + grid - 1:
            raise ValueError(f"images of {size} pixels are too small for {grid} x {grid} cells of patches")
        self.words, self.patch, self.stride, self.grid, self.size = words, patch, stride, grid, size
        self.num_features = dim
        self.preprocessing = Preprocessing(size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.register_buffer("kernels", torch.zeros(words, in_channels, patch, patch))
        self.register_buffer("offsets", torch.zeros(words))
        self.register_buffer("contrast", torch.ones(()))
        self.register_buffer("mean", torch.zeros(words * grid**2))
        self.register_buffer("directions", torch.zeros(words * grid**2, dim))

    def extra_repr(self) -> str:
        """What makes the vectors what they are, beside the images."""
        sides = f"patch={self.patch}, stride={self.stride}, grid={self.grid}, size={self.size}"
        return f"words={self.words}, {sides}, dim={self.num_features}"

    @torch.no_grad()
    def fit(self, images: Tensor) -> Self:
        """Find words, and the directions in which these images vary.

        Args:
            images: (n, in_channels, H, W), some thousand, with pixels as `forward` will see them.

        Raises:
            ValueError: if the images are too few.
        """
        images = self.scaled(images)
        most = min(len(images) - 1, self.words * self.grid**2)
        if self.num_features > most:
            raise ValueError(
                f"eyes for patches have at most {most} dimensions on {len(images)} images, got {self.num_features}: "
                "give a lower dim (--encoder.dim, --guide.dim)"
            )
        self.contrast.copy_((CONTRAST * images.var()).clamp(min=1e-12))
        patches = self._draw(images)
        centre = patches.mean(0)
        variances, basis = torch.linalg.eigh(torch.cov((patches - centre).T))
        whitening = basis * (variances.clamp(min=0) + FLAT).rsqrt() @ basis.T
        with alone():  # a rank that has the vectors on its disk does not come here
            found = spherical_kmeans((patches - centre) @ whitening, [self.words], iterations=CLUSTERING)[0]
        kernels = found.centroids @ whitening
        self.offsets.copy_(-(kernels @ centre))
        kernels = kernels - kernels.mean(1, keepdim=True)  # which takes a patch's own mean away
        self.kernels.copy_(kernels.reshape(self.kernels.shape))
        counted = self._count(images)
        self.mean.copy_(counted.mean(0))
        self.directions.copy_(_principal(counted - self.mean, self.num_features))
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The vectors (B, dim) of images (B, in_channels, H, W), of unit length; in full precision always."""
        with torch.autocast(images.device.type, enabled=False):
            return F.normalize((self._count(self.scaled(images.float())) - self.mean) @ self.directions)

    def scaled(self, images: Tensor) -> Tensor:
        """Images of the side that patches are cut from."""
        if images.shape[-2:] == (self.size, self.size):
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)

    def _draw(self, images: Tensor) -> Tensor:
        """Patches from anywhere, (m, channels * patch * patch), without mean and contrast."""
        source, places = generator("patches"), images.shape[-1] - self.patch + 1
        which, top, left = (torch.randint(end, (PATCHES,), generator=source) for end in (len(images), places, places))
        along = torch.arange(self.patch)
        rows, columns = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
        drawn = images[which[:, None, None], :, rows, columns].permute(0, 3, 1, 2).flatten(1)
        return (drawn - drawn.mean(1, keepdim=True)) / (drawn.var(1, keepdim=True) + self.contrast).sqrt()

    def _count(self, images: Tensor) -> Tensor:
        """How much of every word is in every cell, (n, words * grid * grid)."""
        parts = [self._cells(some) + self._cells(some.flip(3)) for some in images.split(BATCH)]
        return torch.cat(parts).flatten(1).sqrt_()

    def _cells(self, images: Tensor) -> Tensor:
        mean_of = images.new_full((1, *self.kernels.shape[1:]), 1 / self.kernels[0].numel())
        means, squares = (F.conv2d(each, mean_of, stride=self.stride) for each in (images, images.square()))
        numbers = self.kernels[0].numel()
        contrast = ((squares - means.square()).clamp_(min=0) * numbers / (numbers - 1) + self.contrast).sqrt_()
        alike = F.conv2d(images, self.kernels, stride=self.stride).div_(contrast).add_(self.offsets[:, None, None])
        deviation, middle = torch.std_mean(alike, 1, keepdim=True)
        return F.adaptive_avg_pool2d(alike.sub_(middle + deviation / 2).clamp_(min=0), self.grid)


def spread(count: int) -> list[int]:
    """Rows of a dataset of that many images, evenly spread, that are enough to fit eyes to all of them.

    Example:
        >>> spread(3), len(spread(10_000))
        ([0, 1, 2], 4000)
    """
    return list(range(0, count, max(1, count // FITTED)))[:FITTED]


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
