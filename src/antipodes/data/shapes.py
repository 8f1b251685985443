"""A colour dataset drawn in code: five shapes in four textures, on cluttered backgrounds.

It needs no download and is the same everywhere, so it is the default and what the tests run on. Its classes are made
to be learnt, not read off: colour says nothing about the class, the texture's contrast is moderate, and position, size,
rotation, background, clutter and noise vary.

1. Draw the nuisances of every sample.
2. Evaluate each shape's distance (negative inside) and texture in coordinates that move, turn and scale with it.
3. Lay background, clutter and object over each other with soft edges, add noise, round to bytes.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from antipodes import seeding
from antipodes.data.dataset import Classes, Split, TensorImages, check_split

_SHAPES = ("disc", "triangle", "square", "star", "cross")
_TEXTURES = ("plain", "striped", "checked", "ringed")
_CLUTTER = 3  # small discs behind the object
_CHUNK = 100  # samples drawn from one generator; part of what the images are
_VERSION = 1  # of the pictures, for the fingerprint: rounding may differ between processors, so pixels cannot tell


class Shapes(TensorImages):
    """Procedural images: 20 classes (shape and texture) in 5 coarse ones (shape).

    The first images of a longer dataset are those of a shorter one with the same seed.

    Args:
        count: number of images.
        size: side of the images, at least 32.
        seed: what the images follow from; the two splits of a seed share no images.
        split: "train" or "test".
        limit: keep only this many samples, as described at ``limited``.
        test_count: number of images in the test split that ``held_out`` makes.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.

    Raises:
        ValueError: if a number is out of range.

    Example:
        >>> data = Shapes(count=100)
        >>> id, image, label = data[7]
        >>> image.shape, len(data.classes), len(data.coarse_classes)
        (torch.Size([3, 32, 32]), 20, 5)
    """

    def __init__(
        self,
        count: int = 10_000,
        size: int = 32,
        seed: int = 0,
        split: Split = "train",
        limit: int | None = None,
        test_count: int = 2_000,
        classes: Classes = None,
    ) -> None:
        check_split(split)
        if count < 1 or size < 32:
            raise ValueError(f"shapes needs a count of at least 1 and a size of at least 32, got {count} and {size}")
        self.seed, self.split, self.test_count, self._only = seed, split, test_count, classes
        chunks = [_draw(size, seed, split, chunk) for chunk in range(math.ceil(count / _CHUNK))]
        images, labels = (torch.cat(parts)[:count] for parts in zip(*chunks, strict=True))
        super().__init__(
            images,
            labels,
            labels // len(_TEXTURES),
            classes=[f"{texture} {shape}" for shape in _SHAPES for texture in _TEXTURES],
            coarse_classes=_SHAPES,
            name="shapes",
            limit=limit,
            only=classes,
        )
        chosen = "" if classes is None else f" {classes}"
        self._arguments = f"{_VERSION} {count} {size} {seed} {split} {limit}{chosen}"

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the arguments, from which the images follow."""
        return hashlib.blake2b(f"shapes {self._arguments}".encode(), digest_size=8).hexdigest()

    def held_out(self, limit: int | None = None) -> "Shapes | None":
        """Return the test split, None when this is it."""
        if self.split == "test":
            return None
        return Shapes(self.test_count, self.image_size, self.seed, "test", limit, self.test_count, self._only)


def _draw(size: int, seed: int, split: Split, chunk: int) -> tuple[Tensor, Tensor]:
    """Draw a chunk: images (_CHUNK, 3, size, size) uint8 and labels (_CHUNK,)."""
    generator = seeding.generator(f"shapes {split}", seed, chunk)

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(_CHUNK, *shape, generator=generator)

    labels = torch.randint(len(_SHAPES) * len(_TEXTURES), (_CHUNK,), generator=generator)
    # Pixel centres in -1..1, horizontal and vertical, (2, size, size)
    axis = (torch.arange(size) + 0.5) * 2 / size - 1
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"))

    # Background: a gradient between two colours along a random direction, then the clutter.
    ground = uniform(3, 1, 1)
    direction = torch.nn.functional.normalize(uniform(2, low=-1, high=1), dim=1)
    ramp = torch.einsum("bc,chw->bhw", direction, grid)[:, None]
    canvas = ground + uniform(3, 1, 1, low=-0.25, high=0.25) * ramp
    for _ in range(_CLUTTER):
        offset = grid - uniform(2, 1, 1, low=-1, high=1)
        distance = torch.hypot(offset[:, 0], offset[:, 1]) - uniform(1, 1, low=0.05, high=0.25)
        canvas = torch.lerp(canvas, uniform(3, 1, 1), 0.6 * _coverage(distance, size)[:, None])

    # The object's own coordinates, in which it is upright and about 1 in radius.
    radius = uniform(1, 1, low=0.6, high=0.9)
    moved = grid - uniform(2, 1, 1, low=-0.2, high=0.2)
    turn = uniform(1, 1, low=-0.4, high=0.4)
    x = (turn.cos() * moved[:, 0] + turn.sin() * moved[:, 1]) / radius
    y = (turn.cos() * moved[:, 1] - turn.sin() * moved[:, 0]) / radius
    distance = _by_class(_DISTANCES, labels // len(_TEXTURES), x, y) * radius
    inside = _coverage(distance, size)[:, None]
    frequency, phase = uniform(1, 1, low=7, high=9), uniform(2, 1, 1, high=2 * math.pi)
    wave = _by_class(_WAVES, labels % len(_TEXTURES), frequency * x, frequency * y, phase[:, 0], phase[:, 1])
    mix = (0.5 + 1.2 * wave).clamp(0, 1)[:, None]
    # Each channel is 0.3 or more from the background's, whichever way: the colour itself stays uniform.
    colour = (ground + uniform(3, 1, 1, low=0.3, high=0.7)) % 1.0
    second = colour + torch.where(colour > 0.5, -1.0, 1.0) * uniform(3, 1, 1, low=0.35, high=0.5)
    canvas = torch.lerp(canvas, torch.lerp(colour, second, mix), inside)
    canvas += 0.02 * torch.randn(canvas.shape, generator=generator)
    return (canvas.clamp(0, 1) * 255).round().to(torch.uint8), labels


def _coverage(distance: Tensor, size: int) -> Tensor:
    """Share of each pixel that lies inside, from the distance of its centre to the edge."""
    return (0.5 - distance * size / 2).clamp(0, 1)


def _by_class(functions: Sequence[Callable[..., Tensor]], which: Tensor, *arguments: Tensor) -> Tensor:
    """Apply to every sample the function of its class, (B, ...) each."""
    result = torch.empty_like(arguments[0])
    for i, function in enumerate(functions):
        rows = (which == i).nonzero()[:, 0]
        result[rows] = function(*(argument[rows] for argument in arguments))
    return result


def _polygon(x: Tensor, y: Tensor, sides: int, radius: float) -> Tensor:
    """Distance to a regular polygon whose sides are ``radius`` from the centre."""
    angles = [2 * math.pi * k / sides for k in range(sides)]
    return torch.stack([math.cos(a) * x + math.sin(a) * y for a in angles]).amax(0) - radius


def _star(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.7 - 0.25 * torch.cos(5 * torch.atan2(y, x))


def _cross(x: Tensor, y: Tensor) -> Tensor:
    wide, narrow = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    return torch.maximum(wide - 0.9, narrow - 0.32)


# Scaled to similar areas, so that the size of the object does not tell its shape.
_DISTANCES = (
    lambda x, y: torch.hypot(x, y) - 0.75,
    lambda x, y: _polygon(x, y, sides=3, radius=0.55),
    lambda x, y: _polygon(x, y, sides=4, radius=0.68),
    _star,
    _cross,
)
_WAVES = (
    lambda u, v, first, second: (first.sin() / 2).expand_as(u),
    lambda u, v, first, second: (u + first).sin(),
    lambda u, v, first, second: 2 * (u + first).sin() * (v + second).sin(),
    lambda u, v, first, second: (torch.hypot(u, v) + first).sin(),
)
