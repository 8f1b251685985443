"""`PatchEncoder`: an image encoder from small patches, which is fitted in a minute and needs no training.

The features of Coates, Lee and Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature Learning" (2011):

1. Words: patches from random places of the images are normalised in mean and contrast, whitened, and clustered with
   spherical k-means. A word is the centroid of a cluster.
2. Counts: each patch of an image is compared with all words. What its similarity to a word exceeds the mean plus half a
   standard deviation over words counts for that word. Counts are averaged in each cell of a grid, over the image and
   its mirror image, and their square root is taken.
3. Components: the mean over images is subtracted and the counts are projected on the directions of largest variance,
   each divided by the root of its standard deviation, so that colour and brightness do not dominate.

As a guide it finds similar images that an encoder early in training misses. As an encoder it needs no pretrained
weights.
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

CONTRAST = 0.0025  # share of the pixels' variance that is added to a patch's variance, so that flat patches stay small
FLAT = 0.1  # the same for the variances of the whitened directions
PATCHES = 100_000  # number of patches that are clustered
FITTED = 4000  # number of images that is enough to find words and components
CLUSTERING = 10  # iterations of k-means
DIM = 128
BATCH = 64


class PatchEncoder(Encoder):
    """Images (B, in_channels, H, W) to unit vectors (B, dim), after `fit` has found words and components.

    Args:
        words: number of words (clusters of patches).
        patch: side of a patch in pixels.
        stride: pixels from one patch to the next.
        grid: number of cells along each side of the image in which words are counted.
        dim: length of a vector.
        size: side in pixels to which images are scaled first.
        in_channels: channels of the images.

    Raises:
        ValueError: a number is below 1, or the size is too small; `fit` raises it for too few images.

    Example:
        >>> images = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        >>> encoder = PatchEncoder(words=10, patch=4, grid=2, dim=8).fit(images)
        >>> encoder(images[:2]).shape
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
                raise ValueError(f"{name} of a patch encoder must be at least 1, got {value}")
        if size < patch + grid - 1:
            raise ValueError(f"size must be at least {patch + grid - 1} for {grid} x {grid} cells, got {size}")
        self.words, self.patch, self.stride, self.grid, self.size = words, patch, stride, grid, size
        self.num_features = dim
        self.preprocessing = Preprocessing(size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        self.register_buffer("kernels", torch.zeros(words, in_channels, patch, patch))
        self.register_buffer("offsets", torch.zeros(words))
        self.register_buffer("contrast", torch.ones(()))
        self.register_buffer("mean", torch.zeros(words * grid**2))
        self.register_buffer("directions", torch.zeros(words * grid**2, dim))

    def extra_repr(self) -> str:
        """Show the settings that determine the vectors; they are part of the key of cached features."""
        sides = f"patch={self.patch}, stride={self.stride}, grid={self.grid}, size={self.size}"
        return f"words={self.words}, {sides}, dim={self.num_features}"

    @torch.no_grad()
    def fit(self, images: Tensor) -> Self:
        """Find the words, and the components of their counts, from some images.

        Args:
            images: (n, in_channels, H, W), a few thousand, prepared as for `forward`.

        Raises:
            ValueError: there are not more images than `dim`.
        """
        images = self.scaled(images)
        most = min(len(images) - 1, self.words * self.grid**2)
        if self.num_features > most:
            raise ValueError(
                f"dim must be at most {most} for a patch encoder on {len(images)} images, got {self.num_features}: "
                "give a lower dim (--encoder.dim, --guide.dim)"
            )
        self.contrast.copy_((CONTRAST * images.var()).clamp(min=1e-12))
        patches = self._draw(images)
        centre = patches.mean(0)
        variances, basis = torch.linalg.eigh(torch.cov((patches - centre).T))
        whitening = basis * (variances.clamp(min=0) + FLAT).rsqrt() @ basis.T
        with alone():  # ranks that have the vectors in their cache do not call `fit`
            found = spherical_kmeans((patches - centre) @ whitening, [self.words], iterations=CLUSTERING)[0]
        kernels = found.centroids @ whitening
        self.offsets.copy_(-(kernels @ centre))
        kernels = kernels - kernels.mean(1, keepdim=True)  # subtracts each patch's own mean
        self.kernels.copy_(kernels.reshape(self.kernels.shape))
        counted = self._count(images)
        self.mean.copy_(counted.mean(0))
        self.directions.copy_(_principal(counted - self.mean, self.num_features))
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Return unit vectors (B, dim) of images (B, in_channels, H, W), computed in float32 even under autocast."""
        with torch.autocast(images.device.type, enabled=False):
            return F.normalize((self._count(self.scaled(images.float())) - self.mean) @ self.directions)

    def scaled(self, images: Tensor) -> Tensor:
        """Scale images to (n, in_channels, size, size)."""
        if images.shape[-2:] == (self.size, self.size):
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)

    def _draw(self, images: Tensor) -> Tensor:
        """Draw random patches (m, channels * patch * patch), normalised in mean and contrast."""
        source, places = generator("patches"), images.shape[-1] - self.patch + 1
        which, top, left = (torch.randint(end, (PATCHES,), generator=source) for end in (len(images), places, places))
        along = torch.arange(self.patch)
        rows, columns = (top[:, None] + along)[:, :, None], (left[:, None] + along)[:, None, :]
        drawn = images[which[:, None, None], :, rows, columns].permute(0, 3, 1, 2).flatten(1)
        return (drawn - drawn.mean(1, keepdim=True)) / (drawn.var(1, keepdim=True) + self.contrast).sqrt()

    def _count(self, images: Tensor) -> Tensor:
        """Return the square roots of the counts of every word in every cell: (n, words * grid * grid)."""
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


def rows_to_fit(count: int) -> list[int]:
    """Return evenly spaced rows of a dataset with `count` images, enough to fit a patch encoder.

    Example:
        >>> rows_to_fit(3), len(rows_to_fit(10_000))
        ([0, 1, 2], 4000)
    """
    return list(range(0, count, max(1, count // FITTED)))[:FITTED]


def _principal(centred: Tensor, dim: int) -> Tensor:
    """Return the `dim` directions of largest variance, (F, dim), each divided by the root of its standard deviation.

    Subspace iteration on dim + 16 directions: a full decomposition of thousands of numbers per image takes minutes.
    """
    start = torch.randn(centred.shape[1], min(dim + 16, *centred.shape), generator=generator("directions"))
    space = torch.linalg.qr(start).Q
    for _ in range(4):
        space = torch.linalg.qr(centred.T @ (centred @ space)).Q
    inside = centred @ space
    variances, basis = torch.linalg.eigh(inside.T @ inside / len(centred))
    directions: Tensor = space @ basis[:, -dim:] * variances[-dim:].clamp(min=1e-12) ** -0.25
    return directions
