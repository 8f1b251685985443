import colorsys
import math

import torch
from PIL import Image, ImageOps

from antipodes.data.augment.colour import LUMA, YIQ, invert_above, jitter


def pictures(count: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return torch.rand(count, 3, 6, 5, generator=torch.Generator().manual_seed(4)) * (high - low) + low


def change(images: torch.Tensor, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.0) -> torch.Tensor:
    return jitter(images, *(torch.full((len(images),), value) for value in (brightness, contrast, saturation, hue)))


def grey(images: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bchw,c->bhw", images, torch.tensor(LUMA)).unsqueeze(1)


def test_neutral_factors_change_nothing():
    images = pictures(3)
    torch.testing.assert_close(change(images), images)


def test_brightness_scales_and_clamps():
    images = pictures(3)
    torch.testing.assert_close(change(images, brightness=1.6), (1.6 * images).clamp(max=1))


def test_contrast_blends_with_each_images_mean_luma():
    images = pictures(3, 0.3, 0.7)
    mean = grey(images).mean((2, 3), keepdim=True)
    torch.testing.assert_close(change(images, contrast=1.4), 1.4 * images - 0.4 * mean)


def test_saturation_blends_with_grey_and_zero_is_greyscale():
    images = pictures(3, 0.3, 0.7)
    torch.testing.assert_close(change(images, saturation=0.6), 0.6 * images + 0.4 * grey(images))
    torch.testing.assert_close(change(images, saturation=0.0), grey(images).expand(-1, 3, -1, -1))


def test_hue_is_the_plain_rotation_of_i_and_q():
    images = pictures(2, 0.4, 0.6)
    angle = 2 * math.pi * 0.2
    to_yiq = torch.tensor(YIQ)
    luma, i, q = torch.einsum("yc,bchw->ybhw", to_yiq, images)
    turned = torch.stack((luma, math.cos(angle) * i + math.sin(angle) * q, math.cos(angle) * q - math.sin(angle) * i))
    torch.testing.assert_close(change(images, hue=0.2), torch.einsum("cy,ybhw->bchw", to_yiq.inverse(), turned))


def test_hue_moves_hsv_hue_about_as_far():
    for shift in [-0.3, -0.1, 0.05, 0.1, 0.4]:
        images = pictures(4, 0.4, 0.6)
        before, after = images.flatten(2).transpose(1, 2).reshape(-1, 3), change(images, hue=shift)
        after = after.flatten(2).transpose(1, 2).reshape(-1, 3)
        moved = [
            (colorsys.rgb_to_hsv(*b)[0] - colorsys.rgb_to_hsv(*a)[0]) % 1
            for a, b in zip(before.tolist(), after.tolist(), strict=True)
        ]
        error = [abs((one - shift + 0.5) % 1 - 0.5) for one in moved]
        assert sum(error) / len(error) < 0.05
        assert max(error) < 0.12


def test_all_parts_commute_with_each_other():
    images = pictures(3, 0.4, 0.6)
    batch_neighbours = change(images, brightness=1.1, contrast=0.8, saturation=1.2, hue=0.1)
    one_order = change(change(change(change(images, hue=0.1), contrast=0.8), brightness=1.1), saturation=1.2)
    other_order = change(change(change(change(images, brightness=1.1), saturation=1.2), contrast=0.8), hue=0.1)
    torch.testing.assert_close(one_order, batch_neighbours)
    torch.testing.assert_close(other_order, batch_neighbours)


def test_every_image_has_its_own_factors():
    images = pictures(2)
    both = jitter(images, torch.tensor([0.5, 1.2]), torch.tensor([1.0, 0.7]), torch.tensor([0.0, 1.3]), torch.zeros(2))
    torch.testing.assert_close(both[:1], change(images[:1], brightness=0.5, saturation=0.0))
    torch.testing.assert_close(both[1:], change(images[1:], brightness=1.2, contrast=0.7, saturation=1.3))


def test_solarise_matches_pillow():
    levels = torch.arange(256, dtype=torch.uint8)
    picture = Image.frombytes("L", (16, 16), bytes(levels.tolist()))
    for threshold in (0, 1, 128, 200, 256):
        expected = torch.tensor(list(ImageOps.solarize(picture, threshold).tobytes())) / 255
        images = (levels / 255).view(1, 1, 16, 16).expand(1, 3, 16, 16)
        torch.testing.assert_close(invert_above(images, torch.tensor([threshold / 255]))[0, 2].flatten(), expected)
