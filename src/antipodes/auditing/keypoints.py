"""Keypoints of photos: corners with descriptors that survive crops, rotations, mirroring and other light.

In plain terms, following Lowe's SIFT (2004) and VLAD by Jégou and others (2010):
1. `canvas` scales a photo so that its longer side has `SIDE` pixels, in grey, on a square whose rest repeats the edge.
2. `find_keypoints` looks for corners (Harris) at several scales. The direction in which a corner's surroundings get
   brighter is its angle, so that a rotated photo has the same corners at other angles.
3. The surroundings, turned by that angle, become a descriptor: 4 x 4 cells with a histogram of 8 directions of edges.
4. `signatures` adds up a photo's descriptors, by the visual word that each is closest to. A photo and its mirror image
   have the same signature, and two photos with many equal corners have similar ones: an index of candidates.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate, normalize, pad

from antipodes.clustering import spherical_kmeans
from antipodes.seeding import generator
from antipodes.threads import one_thread

SIDE = 128
"""Pixels of the longer side of a photo in which keypoints are looked for."""

PER_LEVEL = (56, 36, 24, 16, 10)
"""Most keypoints at each scale; every scale is smaller than the one before by a factor of the root of two."""

COUNT, LENGTH = sum(PER_LEVEL), 128
WORDS, DIMENSIONS = 64, 512
BATCH = 8
"""Photos whose keypoints are found at a time, so that intermediate results stay in the cache of a core."""

_STEP = math.sqrt(2)
_PATCH, _CELLS, _BINS = 16, 4, 8
_EDGE = 6  # pixels at the edge of a photo without keypoints
_WEAK = 1.0  # a corner's response below which it is noise
_CODE = 510  # the entries of descriptors are at most 0.5, and are kept as bytes
_FITTED = 1024  # photos by which words and components are fitted
_DESCRIPTORS = 20_000  # descriptors that are clustered to words


class Keypoints(NamedTuple):
    """Keypoints of n photos, K each; those that are missing have a descriptor of zeros.

    Args:
        places: (n, K, 2) float16, x and y on the canvas.
        scales: (n, K) float16, pixels of the canvas in a pixel of the level.
        angles: (n, K) float16, radians.
        descriptors: (n, K, 128) uint8.
    """

    places: Tensor
    scales: Tensor
    angles: Tensor
    descriptors: Tensor

    def of(self, rows: Tensor) -> Keypoints:
        """The keypoints of some photos, as float32 with descriptors of unit length."""
        descriptors = self.descriptors[rows].float()
        return Keypoints(
            self.places[rows].float(),
            self.scales[rows].float(),
            self.angles[rows].float(),
            normalize(descriptors, dim=-1),
        )


def canvas(image: Image.Image) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The luminance of a photo on a square (S, S), and the height and width that the photo takes there."""
    share = SIDE / max(image.size)
    width, height = (max(1, round(share * side)) for side in image.size)
    grey = np.asarray(image.convert("L").resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0))
    return np.pad(grey, ((0, SIDE - height), (0, SIDE - width)), mode="edge"), (height, width)


def find_keypoints(grey: Tensor, sizes: Tensor) -> Keypoints:
    """Find the keypoints of photos.

    Args:
        grey: canvases (n, S, S) uint8.
        sizes: (n, 2) height and width of the photos on them.

    Example:
        >>> found = find_keypoints(torch.zeros(1, SIDE, SIDE, dtype=torch.uint8), torch.tensor([[SIDE, SIDE]]))
        >>> int(found.descriptors.max())  # nothing is a corner
        0
    """
    parts = [
        _find(grey[start : start + BATCH].float(), sizes[start : start + BATCH].float())
        for start in range(0, len(grey), BATCH)
    ]
    return Keypoints(*(torch.cat(each) for each in zip(*parts, strict=True)))


def mirrored(descriptors: Tensor) -> Tensor:
    """The descriptors (..., 128) that the same corners have in the mirror image."""
    return descriptors[..., _MIRROR]


@one_thread()  # torch's own threads would mostly wait for each other, which takes processor time
def signatures(keypoints: Keypoints, seed: int = 0, workers: int = 1) -> Tensor:
    """Vectors (n, D) of unit length of the photos with these keypoints, computed by so many threads.

    1. Descriptors of a sample are clustered to visual words.
    2. For every word, the differences of a photo's descriptors to it are added up and normalised; those of the mirror
       image are added.
    3. The sums are projected on the directions in which photos differ most, which are then made equally important.
    """
    n = len(keypoints.places)
    sample = torch.randperm(n, generator=generator("signatures", seed))[:_FITTED]
    words = _words(keypoints, sample, seed)
    if words is None:
        return torch.zeros(n, 1)
    known = _sums(keypoints, sample, words, workers)
    centre = known.mean(0)
    known -= centre
    size, directions = torch.linalg.eigh(known @ known.T)  # of the squared singular values, the smallest first
    most = min(DIMENSIONS, max(1, len(sample) // 2))
    kept = (size > 1e-5 * size[-1]).nonzero().flatten()[-most:]
    directions = known.T @ (directions[:, kept] / size[kept] ** 0.75)  # unit directions, divided by size ** 0.25
    rest = torch.ones(n, dtype=torch.bool)
    rest[sample] = False
    result = torch.empty(n, directions.shape[1])
    result[sample] = known @ directions
    for some in rest.nonzero().flatten().split(_FITTED):
        result[some] = (_sums(keypoints, some, words, workers) - centre) @ directions
    return normalize(result)


def _words(keypoints: Keypoints, sample: Tensor, seed: int) -> Tensor | None:
    """The mean descriptors of clusters (W, 128); None where there are no descriptors."""
    descriptors = keypoints.of(sample[: max(1, _DESCRIPTORS // 50)]).descriptors.flatten(0, 1)
    descriptors = descriptors[descriptors.any(1)]
    if not len(descriptors):
        return None
    chosen = torch.randperm(len(descriptors), generator=generator("words", seed))[:_DESCRIPTORS]
    descriptors = descriptors[chosen]
    words = min(WORDS, len(descriptors))
    (found,) = spherical_kmeans(descriptors, [words], iterations=8, seed=seed)
    sums = torch.zeros(words, LENGTH).index_add_(0, found.labels, descriptors)
    return sums / torch.bincount(found.labels, minlength=words).clamp(min=1)[:, None]


def _sums(keypoints: Keypoints, rows: Tensor, words: Tensor, workers: int) -> Tensor:
    """Differences of descriptors to words, added up by word, of photos and their mirror images, (m, W x 128)."""

    def sums(some: Tensor) -> Tensor:
        descriptors = keypoints.of(some).descriptors
        exists = descriptors.any(-1, keepdim=True)
        both = []
        for mirror in (False, True):
            # the descriptors of the mirror image have the entries in another order, which is left to the words
            similarity = descriptors @ (mirrored(words) if mirror else words).T
            nearest = ((similarity == similarity.amax(-1, keepdim=True)) & exists).float()
            total = nearest.transpose(1, 2) @ descriptors
            difference = (mirrored(total) if mirror else total) - nearest.sum(1)[..., None] * words
            both.append(normalize(normalize(difference, dim=2).flatten(1)))
        return normalize(both[0] + both[1])

    with ThreadPoolExecutor(workers) as pool:
        return torch.cat(list(pool.map(sums, rows.split(64))))


def _find(grey: Tensor, sizes: Tensor) -> Keypoints:
    """The keypoints of canvases (b, S, S) float."""
    found = []
    for level, most in enumerate(PER_LEVEL):
        side = round(SIDE / _STEP**level)
        found.append(_find_at(_both_ways(grey, _reduction(side)).contiguous(), sizes * side / SIDE, most))
    places, scales, angles, patches, strong = (torch.cat(each, 1) for each in zip(*found, strict=True))
    descriptors = _describe(patches) * strong[..., None]
    return Keypoints(places.half(), scales.half(), angles.half(), (descriptors * _CODE).round().clamp(max=255).byte())


def _find_at(picture: Tensor, sizes: Tensor, most: int) -> tuple[Tensor, ...]:
    """Corners of pictures (b, s, s) of one level: places, scales, angles, turned patches, and which are strong."""
    side = picture.shape[-1]
    padded = pad(picture[:, None], (1, 1, 1, 1), mode="replicate")
    slope_x = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) / 2
    slope_y = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) / 2
    xx, yy, xy = blurred(torch.cat((slope_x**2, slope_y**2, slope_x * slope_y), 1), 1.6).unbind(1)
    corner = ((xx * yy - xy * xy) / (xx + yy + 1e-3)).contiguous()
    places = torch.arange(side, dtype=torch.float32)
    inside = ((places >= _EDGE) & (places < sizes[..., None] - _EDGE)).float()  # (b, 2, s)
    highest = _maximum(_maximum(corner, 2), 1) == corner
    found = corner * inside[:, 0, :, None] * inside[:, 1, None, :] * highest
    strength, at = found.flatten(1).topk(most, 1)
    row, column = at // side, at % side
    response = corner.flatten(1)
    x = column + _between(response, at, 1)
    y = row + _between(response, at, side)
    steps, moment = _MOMENTS
    disc = (at[:, :, None] + steps @ torch.tensor([1, side])).clamp(0, side * side - 1)
    moments = picture.flatten(1).gather(1, disc.flatten(1)).view(disc.shape) @ moment
    angle = torch.atan2(moments[..., 1], moments[..., 0])
    cosine, sine = angle.cos()[..., None], angle.sin()[..., None]
    across, down = _OFFSETS
    turned = (across * cosine - down * sine + x[..., None], across * sine + down * cosine + y[..., None])
    seen = (torch.stack(turned, -1) + 0.5) * 2 / side - 1
    patches = grid_sample(picture[:, None], seen, padding_mode="border", align_corners=False)[:, 0]
    factor = SIDE / side
    centres = (torch.stack((x, y), -1) + 0.5) * factor - 0.5
    return centres, torch.full_like(x, factor), angle, patches, strength > _WEAK


def _maximum(values: Tensor, dim: int) -> Tensor:
    """The largest of five neighbours along a dimension of (b, s, s); at the edge of fewer."""
    values = pad(values, (2, 2) if dim == 2 else (0, 0, 2, 2), value=-math.inf)
    side = values.shape[dim]
    pairs = torch.maximum(values.narrow(dim, 0, side - 1), values.narrow(dim, 1, side - 1))
    fours = torch.maximum(pairs.narrow(dim, 0, side - 3), pairs.narrow(dim, 2, side - 3))
    return torch.maximum(fours.narrow(dim, 0, side - 4), values.narrow(dim, 4, side - 4))


def _between(response: Tensor, at: Tensor, step: int) -> Tensor:
    """By which fraction of a pixel the maximum of a parabola through three neighbours is off, (b, k)."""
    last = response.shape[1] - 1
    before, here, after = (response.gather(1, (at + move).clamp(0, last)) for move in (-step, 0, step))
    return ((after - before) / (2 * (2 * here - before - after)).clamp(min=1e-6)).clamp(-0.5, 0.5)


def _describe(patches: Tensor) -> Tensor:
    """Descriptors (b, k, 128) of unit length of turned patches (b, k, 256)."""
    square = patches.unflatten(-1, (_PATCH, _PATCH))
    across, down = torch.zeros_like(square), torch.zeros_like(square)
    across[..., 1:-1] = square[..., 2:] - square[..., :-2]
    down[..., 1:-1, :] = square[..., 2:, :] - square[..., :-2, :]
    weight = ((across.square() + down.square()).sqrt() * _WINDOW).flatten(-2)
    direction = (torch.atan2(down, across) * (_BINS / (2 * math.pi))).flatten(-2)
    lower = direction.floor()
    share = direction - lower
    first = lower.long() & (_BINS - 1)
    counts = torch.zeros(*weight.shape[:2], _BINS, _PATCH**2)
    counts.scatter_(2, first[:, :, None], ((1 - share) * weight)[:, :, None])
    counts.scatter_(2, ((first + 1) & (_BINS - 1))[:, :, None], (share * weight)[:, :, None])
    histograms = normalize((counts @ _POOL).flatten(2), dim=2)
    return normalize(normalize(histograms.clamp(max=0.2), dim=2).sqrt(), dim=2)


def blurred(picture: Tensor, width: float) -> Tensor:
    """Pictures (..., s, s) after a Gaussian blur of a standard deviation of `width` pixels."""
    return _both_ways(picture, _blur(picture.shape[-1], width))


Bands = tuple[tuple[slice, Tensor], ...]
"""A matrix (s, t) whose numbers are near its diagonal: for every 32 columns or so the rows that they need."""


def _both_ways(picture: Tensor, bands: Bands) -> Tensor:
    """Apply a matrix to the rows and to the columns of pictures (..., s, s); such products beat a convolution."""
    across = torch.cat([picture[..., rows] @ block for rows, block in bands], -1).transpose(-1, -2)
    return torch.cat([across[..., rows] @ block for rows, block in bands], -1).transpose(-1, -2)


def _bands(matrix: Tensor) -> Bands:
    """Cut a matrix (s, t) for `_both_ways`."""
    found = []
    for block in matrix.chunk(max(1, matrix.shape[1] // 32), 1):
        needed = block.any(1).nonzero().flatten().tolist()
        rows = slice(needed[0], needed[-1] + 1)
        found.append((rows, block[rows].contiguous()))
    return tuple(found)


@cache
def _blur(side: int, width: float) -> Bands:
    """A Gaussian blur; at the edge the last pixel is repeated."""
    return _bands(_blur_matrix(side, width))


def _blur_matrix(side: int, width: float) -> Tensor:
    reach = max(1, int(3 * width + 0.5))
    steps = torch.arange(-reach, reach + 1)
    weights = torch.exp(-steps.square() / (2 * width**2))
    sources = (torch.arange(side)[:, None] + steps).clamp(0, side - 1)
    matrix = torch.zeros(side, side).scatter_add_(1, sources, (weights / weights.sum()).expand(side, -1))
    return matrix.T


@cache
def _reduction(side: int) -> Bands:
    """Scale a canvas to `side` pixels and blur it."""
    rows = torch.eye(SIDE)[None, None]
    scaled = interpolate(rows, (SIDE, side), mode="bilinear", antialias=True)[0, 0] if side < SIDE else rows[0, 0]
    return _bands(scaled @ _blur_matrix(side, 1.2))


def around(picture: Tensor, width: int) -> Tensor:
    """The mean of every pixel's surroundings, `width` pixels wide, in pictures (..., s, s)."""
    return _both_ways(picture, _means(picture.shape[-1], width))


def windows(picture: Tensor) -> Tensor:
    """The means (..., w, w) of overlapping windows of 16 x 16 pixels, 8 apart, of pictures (..., s, s)."""
    return _both_ways(picture, _windows(picture.shape[-1]))


def detail(picture: Tensor) -> Tensor:
    """Pictures (..., s, s) without the mean of every pixel's surroundings."""
    return picture - around(picture, 13)


@cache
def _means(side: int, width: int) -> Bands:
    """The means of `width` neighbours, of fewer at the edge."""
    places = torch.arange(side)
    near = ((places[:, None] - places).abs() <= width // 2).float()
    return _bands(near / near.sum(0))


@cache
def _windows(side: int) -> Bands:
    """The means of 16 numbers, 8 apart."""
    places = torch.arange(side)[:, None]
    starts = torch.arange(0, side - 15, 8)
    return _bands(((places >= starts) & (places < starts + 16)).float() / 16)


def _tables() -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Offsets of a patch's pixels, their weights, their shares of cells, a disc and its moments, the mirrored order."""
    steps = torch.arange(_PATCH) - (_PATCH - 1) / 2
    down, across = (each.flatten() for each in torch.meshgrid(steps, steps, indexing="ij"))
    window = torch.exp(-(across.square() + down.square()) / (2 * 6.0**2)).view(_PATCH, _PATCH)
    centres = (torch.arange(_CELLS) - (_CELLS - 1) / 2) * (_PATCH / _CELLS)
    share = (1 - (steps[:, None] - centres).abs() / (_PATCH / _CELLS)).clamp(min=0)
    pool = torch.einsum("ya,xb->yxab", share, share).reshape(_PATCH**2, _CELLS**2)
    reach = torch.arange(-_EDGE, _EDGE + 1)
    disc = torch.cartesian_prod(reach, reach)
    disc = disc[disc.square().sum(1) <= _EDGE**2 + 0.5]
    order = torch.arange(LENGTH).view(_BINS, _CELLS, _CELLS)
    # in a frame along the corner's angle, mirroring turns the cells upside down and edges the other way
    mirror = order[(-torch.arange(_BINS)) % _BINS].flip(1).flatten()
    return torch.stack((across, down)), window, pool, (disc, disc.float()), mirror


_OFFSETS, _WINDOW, _POOL, _MOMENTS, _MIRROR = _tables()
