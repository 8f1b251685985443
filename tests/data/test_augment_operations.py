import math
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from antipodes.data.augment import operations
from antipodes.data.augment.operations import OPERATIONS

SIZE = 32


def pictures() -> torch.Tensor:
    """Noise, a smooth ramp, a flat image and one with two levels: uint8 (4, 3, SIZE, SIZE)."""
    noise = torch.randint(30, 220, (3, SIZE, SIZE), generator=torch.Generator().manual_seed(5))
    ramp = torch.arange(SIZE * SIZE).view(SIZE, SIZE) * 200 // (SIZE * SIZE) + 10
    flat = torch.full((3, SIZE, SIZE), 77)
    two = torch.where(noise > 120, 200, 100)
    return torch.stack((noise, torch.stack((ramp, ramp.T, ramp.flip(0))), flat, two)).to(torch.uint8)


def pillow(change: Callable[[Image.Image], Image.Image], image: torch.Tensor) -> torch.Tensor:
    changed = change(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()))
    return torch.from_numpy(np.asarray(changed).copy()).permute(2, 0, 1).float()


def affine(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix)


MAGNITUDE = -0.53
STRENGTH = 0.05 + 0.9 * 0.53
PIXELS = int(0.3 * MAGNITUDE * SIZE)
EXPECTED: dict[str, tuple[Callable[[Image.Image], Image.Image], float]] = {
    "shear_x": (affine(1, 0.3 * MAGNITUDE, 0, 0, 1, 0), 0),
    "shear_y": (affine(1, 0, 0, 0.3 * MAGNITUDE, 1, 0), 0),
    "translate_x": (affine(1, 0, PIXELS, 0, 1, 0), 0),
    "translate_y": (affine(1, 0, 0, 0, 1, PIXELS), 0),
    "rotate": (lambda image: image.rotate(30 * MAGNITUDE), 0),
    "auto_contrast": (ImageOps.autocontrast, 1),
    "invert": (ImageOps.invert, 0),
    "equalise": (ImageOps.equalize, 0),
    "solarise": (lambda image: ImageOps.solarize(image, math.ceil(256 * (1 - 0.53))), 0),
    "posterise": (lambda image: ImageOps.posterize(image, 6), 0),
    "contrast": (lambda image: ImageEnhance.Contrast(image).enhance(STRENGTH), 1.5),
    "colour": (lambda image: ImageEnhance.Color(image).enhance(STRENGTH), 1.5),
    "brightness": (lambda image: ImageEnhance.Brightness(image).enhance(STRENGTH), 1),
    "sharpness": (lambda image: ImageEnhance.Sharpness(image).enhance(STRENGTH), 1.5),
}


def test_there_are_the_fourteen_of_the_paper():
    assert [operation.__name__ for operation in OPERATIONS] == list(EXPECTED)


def test_operation_matches_pillow():
    for operation in OPERATIONS:
        images = pictures()
        change, tolerance = EXPECTED[operation.__name__]
        changed = operation(images / 255, torch.full((4,), MAGNITUDE)) * 255
        expected = torch.stack([pillow(change, image) for image in images])
        differs = (changed - expected).abs() > tolerance + 1e-3  # Pillow truncates blends to 8 bits
        # Pillow rotates in 16-bit fixed point: a place that close to the edge of a pixel may fall into its neighbour.
        assert differs.float().mean() <= (0.003 if operation.__name__ == "rotate" else 0)


def test_rows_are_independent_and_inputs_stay():
    for operation in OPERATIONS:
        images = pictures() / 255
        before = images.clone()
        magnitude = torch.tensor([-0.9, 0.2, 0.7, 0.999])
        batch_neighbours = operation(images, magnitude)
        alone = torch.cat([operation(images[row : row + 1], magnitude[row : row + 1]) for row in range(4)])
        torch.testing.assert_close(batch_neighbours, alone)
        torch.testing.assert_close(images, before, rtol=0, atol=0)
        assert batch_neighbours.min() >= 0
        assert batch_neighbours.max() <= 1


def test_posterise_keeps_four_to_eight_bits():
    images = (torch.arange(256) / 255).view(1, 1, 16, 16).expand(5, 3, 16, 16)
    levels = operations.posterise(images, torch.tensor([0.0, 0.25, -0.45, 0.65, 1.0]))
    assert [len(view.unique()) for view in levels] == [16, 32, 64, 128, 256]
