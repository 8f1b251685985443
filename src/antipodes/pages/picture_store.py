"""Pictures inside a page: small JPEG files as data URIs, each once."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
from PIL import Image
from torch import Tensor

SIDE = 128


class PictureStore:
    """Collects pictures under keys; the page refers to them by number."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self.pictures: list[str] = []

    def add(self, key: object, image: Callable[[], Image.Image | None], side: int = SIDE) -> int:
        """The number of a picture, which is made when its key is new; -1 when there is none, or it cannot be read."""
        if key not in self._numbers:
            self._numbers[key] = -1
            with suppress(Exception):  # a file that has gone or is damaged: the page shows its name
                if (made := image()) is not None:
                    self.pictures.append(data_uri(made, side))
                    self._numbers[key] = len(self.pictures) - 1
        return self._numbers[key]

    def add_pixels(self, keys: Sequence[object], pixels: Tensor) -> list[int]:
        """The numbers of small pictures (b, 3, S, S) uint8."""
        return [
            self.add(key, lambda one=one: from_pixels(one), side=pixels.shape[-1])  # type: ignore[misc]
            for key, one in zip(keys, pixels, strict=True)
        ]


def from_pixels(pixels: Tensor) -> Image.Image:
    """A picture (3, S, S) uint8 as an image."""
    return Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))


def data_uri(image: Image.Image, side: int = SIDE) -> str:
    """An image, no larger than side x side, as a data URI."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
