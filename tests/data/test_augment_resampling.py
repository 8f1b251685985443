import math

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data.augment.resampling import blur_matrix, crop, draw_boxes, resampling_matrix


def pictures(count: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (count, 3, height, width), generator=torch.Generator().manual_seed(1)).float()


def pillow_resize(image: torch.Tensor, box: tuple[float, float, float, float], size: int) -> torch.Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).byte().numpy())
    resized = picture.resize((size, size), Image.Resampling.BILINEAR, box=box)
    return torch.from_numpy(np.asarray(resized).copy()).permute(2, 0, 1).float()


def no(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.bool)


def test_whole_image_at_its_own_size_is_the_image():
    images = pictures(3, 16, 16)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(3, 1)
    torch.testing.assert_close(crop(images, boxes, no(3), 16), images)


def test_flip_reverses_columns_of_the_rows_that_drew_it():
    images = pictures(2, 16, 16)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(2, 1)
    views = crop(images, boxes, torch.tensor([True, False]), 16)
    torch.testing.assert_close(views, torch.stack((images[0].flip(2), images[1])))


def test_crop_matches_pillow_bilinear_with_a_box():
    for size in [8, 20, 32, 50]:
        for shape in [(32, 32), (24, 40)]:
            height, width = shape
            images = pictures(8, height, width)
            boxes = draw_boxes(8, (0.08, 1.0), (0.5, 2.0), torch.Generator().manual_seed(2))
            flip = torch.arange(8) % 2 == 1
            views = crop(images, boxes, flip, size)
            for image, box, flipped, view in zip(images, boxes.tolist(), flip, views, strict=True):
                left, top = box[0] * width, box[1] * height
                right, bottom = min(left + box[2] * width, width), min(top + box[3] * height, height)
                expected = pillow_resize(image, (left, top, right, bottom), size)
                expected = expected.flip(2) if flipped else expected
                assert (view - expected).abs().max() <= 1.01  # Pillow rounds to 8 bits after each of two passes


def test_halving_by_a_whole_number_of_pixels_is_a_triangle_average_by_hand():
    # Outputs 0..3 of eight pixels have centres 1, 3, 5, 7 and a triangle of half-width 2: weights 1 3 3 1 or a part.
    matrix = resampling_matrix(torch.tensor([0.0]), torch.tensor([1.0]), 8, 4)[0]
    torch.testing.assert_close(matrix[0], torch.tensor([3.0, 3, 1, 0, 0, 0, 0, 0]) / 7)
    torch.testing.assert_close(matrix[1], torch.tensor([0.0, 1, 3, 3, 1, 0, 0, 0]) / 8)


def test_boxes_stay_inside_and_keep_scale_and_ratio():
    boxes = draw_boxes(20_000, (0.2, 0.9), (3 / 4, 4 / 3), torch.Generator().manual_seed(0))
    left, top, width, height = boxes.unbind(1)
    assert boxes.min() >= 0
    assert (left + width).max() <= 1 + 1e-6
    assert (top + height).max() <= 1 + 1e-6
    area, ratio = width * height, width / height
    whole = (width == 1) & (height == 1)
    assert whole.float().mean() < 0.001
    assert area[~whole].min() >= 0.2 - 1e-5
    assert area[~whole].max() <= 0.9 + 1e-5
    assert ratio.min() >= 3 / 4 - 1e-5
    assert ratio.max() <= 4 / 3 + 1e-5
    place = torch.stack((left / (1 - width), top / (1 - height)))[:, ~whole & (width < 0.99) & (height < 0.99)]
    torch.testing.assert_close(place.mean(1), torch.full((2,), 0.5), rtol=0, atol=0.01)
    torch.testing.assert_close(place.amax(1), torch.ones(2), rtol=0, atol=0.01)
    small = area < 0.5  # every ratio fits into these, so nothing was drawn again: area uniform, ratio symmetric
    assert area[small].mean() == pytest.approx(0.35, abs=0.005)
    assert ratio[small].log().mean() == pytest.approx(0, abs=0.01)


def test_a_box_that_never_fits_becomes_the_whole_image():
    boxes = draw_boxes(5, (1.0, 1.0), (2.0, 2.0), torch.Generator().manual_seed(0))
    torch.testing.assert_close(boxes, torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(5, 1))


def test_blur_matches_an_explicit_kernel():
    for kernel in [0, 3, 7]:
        images = pictures(3, 12, 12)
        boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(3, 1)
        sigma = torch.tensor([0.0, 0.7, 2.0])
        views = crop(images, boxes, no(3), 12, sigma, kernel)
        torch.testing.assert_close(views[0], images[0])
        radius = kernel // 2 if kernel else 12
        for row in (1, 2):
            for y, x in ((0, 0), (5, 6), (11, 4)):
                total, weights = torch.zeros(3), 0.0
                for v in range(max(0, y - radius), min(12, y + radius + 1)):
                    for u in range(max(0, x - radius), min(12, x + radius + 1)):
                        weight = math.exp(-((v - y) ** 2 + (u - x) ** 2) / (2 * float(sigma[row]) ** 2))
                        total += weight * images[row, :, v, u]
                        weights += weight
                torch.testing.assert_close(views[row, :, y, x], total / weights, rtol=1e-4, atol=1e-3)


def test_blur_of_a_crop_is_the_crop_then_the_blur():
    images = pictures(4, 32, 32)
    boxes = draw_boxes(4, (0.2, 0.8), (0.75, 1.33), torch.Generator().manual_seed(3))
    flip = torch.tensor([True, False, True, False])
    sigma = torch.tensor([0.3, 1.0, 1.7, 2.0])
    blur = blur_matrix(sigma, 24).unsqueeze(1)
    expected = blur @ crop(images, boxes, flip, 24) @ blur.mT
    torch.testing.assert_close(crop(images, boxes, flip, 24, sigma), expected, rtol=1e-4, atol=1e-3)


def test_narrow_blur_has_no_denormal_weights():
    weights = blur_matrix(torch.tensor([0.1, 0.5, 2.0]), 32)
    assert weights.min() > 1e-30
    torch.testing.assert_close(weights[0], torch.eye(32))
