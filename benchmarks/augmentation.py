"""Views per second of SimCLR's augmentation with blur: antipodes against kornia and a Pillow loop.

All three turn the same uint8 images into two normalised float views: random resized crop, flip, colour jitter
(0.4, 0.4, 0.4, 0.1) with probability 0.8, greyscale 0.2, blur 0.5. One thread, process CPU time, rounds that
interleave the three, the median of the rounds' ratios. Run with `python benchmarks/augmentation.py`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable

import kornia.augmentation as kornia
import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from antipodes.data.augment import augmentation
from antipodes.data.augment.base import IMAGENET_MEAN, IMAGENET_STD

PILLOW_IMAGES = 32


def antipodes_views(images: Tensor) -> Callable[[], list[Tensor]]:
    view = augmentation("simclr", size=images.shape[-1], blur=0.5)
    generator = torch.Generator().manual_seed(0)
    return lambda: [view(images, generator) for _ in range(2)]


def kornia_views(images: Tensor) -> Callable[[], list[Tensor]]:
    size = images.shape[-1]
    view = torch.nn.Sequential(
        kornia.RandomResizedCrop((size, size), scale=(0.08, 1.0)),
        kornia.RandomHorizontalFlip(p=0.5),
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
        kornia.RandomGaussianBlur((3, 3), (0.1, 2.0), p=0.5),
        kornia.Normalize(torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)),
    )
    return lambda: [view(images.float() / 255) for _ in range(2)]


def pillow_view(image: Image.Image, draw: random.Random, size: int) -> Tensor:
    area, aspect = draw.uniform(0.08, 1), np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
    width, height = min(1, (area * aspect) ** 0.5) * image.width, min(1, (area / aspect) ** 0.5) * image.height
    left, top = draw.uniform(0, image.width - width), draw.uniform(0, image.height - height)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height))
    if draw.random() < 0.5:
        image = ImageOps.mirror(image)
    if draw.random() < 0.8:
        for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhancer(image).enhance(draw.uniform(0.6, 1.4))
        hue, saturation, value = image.convert("HSV").split()
        shift = int(draw.uniform(-0.1, 0.1) * 255)
        hue = hue.point(lambda level: (level + shift) % 256)
        image = Image.merge("HSV", (hue, saturation, value)).convert("RGB")
    if draw.random() < 0.2:
        image = image.convert("L").convert("RGB")
    if draw.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(draw.uniform(0.1, 2.0)))
    pixels = (np.asarray(image, dtype=np.float32) / 255 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def pillow_views(images: Tensor) -> Callable[[], list[Tensor]]:
    pictures = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in images[:PILLOW_IMAGES]]
    draw = random.Random(0)
    return lambda: [torch.stack([pillow_view(one, draw, images.shape[-1]) for one in pictures]) for _ in range(2)]


def views_per_second(make: Callable[[], list[Tensor]]) -> float:
    start = time.process_time()
    views = sum(len(batch) for batch in make())
    return views / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = (arguments.batch_size, 3, arguments.size, arguments.size)
    images = torch.randint(0, 256, size, dtype=torch.uint8)
    makers = {"antipodes": antipodes_views(images), "kornia": kornia_views(images), "pillow": pillow_views(images)}
    for make in makers.values():
        make()
    rounds = [{name: views_per_second(make) for name, make in makers.items()} for _ in range(arguments.rounds)]

    print(f"SimCLR with blur, {arguments.size} x {arguments.size}, batch {arguments.batch_size}, two views, one thread")
    print(f"{'':12}{'views/s':>12}{'antipodes is':>16}")
    ratios = {}
    for name in makers:
        rate = statistics.median(one[name] for one in rounds)
        ratios[name] = statistics.median(one["antipodes"] / one[name] for one in rounds)
        print(f"{name:12}{rate:12,.0f}{ratios[name]:15.1f}x")
    print(json.dumps({f"augmentation_vs_{name}": round(ratios[name], 2) for name in ("kornia", "pillow")}))


if __name__ == "__main__":
    main()
