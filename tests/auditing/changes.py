"""Changes of photos that an audit should see through."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageOps


def crop(image: Image.Image, share: float, left: float, top: float) -> Image.Image:
    width, height = image.size
    x, y = left * width * (1 - share), top * height * (1 - share)
    return image.crop((int(x), int(y), int(x + share * width), int(y + share * height)))


def barred(image: Image.Image) -> Image.Image:
    image = image.copy()
    ImageDraw.Draw(image).rectangle((0, 50, image.width, 70), fill=(250, 250, 250))
    return image


def stickered(image: Image.Image) -> Image.Image:
    image = image.copy()
    image.paste(Image.effect_noise((40, 40), 90), (90, 30))
    return image


def noisy(image: Image.Image) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, 12, (image.height, image.width, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


SEEN = (1.0, 0.1, -8.0, 0.12, 0.9, -4.0, 0.0012, -0.0008)
"""Where a place x, y of a photo that was taken from the side is on the other one, as Pillow takes it:
(a x + b y + c) / (g x + h y + 1) and (d x + e y + f) / (g x + h y + 1)."""


def from_the_side(image: Image.Image) -> Image.Image:
    return image.transform(image.size, Image.Transform.PERSPECTIVE, SEEN, Image.Resampling.BICUBIC)


CHANGES = {
    "mirrored": ImageOps.mirror,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "cropped to 70 %": lambda image: crop(image, 0.7, 0.7, 0.2),
    "turned by 90 degrees": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "turned by 7 degrees": lambda image: image.rotate(7, Image.Resampling.BICUBIC, expand=True),
    "a bar": barred,
    "a sticker": stickered,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "a border": lambda image: ImageOps.expand(image, 12, fill=(20, 30, 200)),
    "four times as large": lambda image: image.resize((4 * image.width, 4 * image.height), Image.Resampling.BICUBIC),
    "stretched": lambda image: image.resize((int(1.25 * image.width), image.height), Image.Resampling.BICUBIC),
    "from the side": from_the_side,
    "noise": noisy,
    "all of it": lambda image: ImageOps.mirror(ImageEnhance.Brightness(crop(image, 0.8, 0.3, 0.6)).enhance(1.3)),
}
