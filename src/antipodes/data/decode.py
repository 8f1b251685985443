"""Turns image files and image-like objects into square uint8 RGB, without torch, so that workers start fast."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from antipodes.data.image_opening import (
    HEIC,
    Source,
    bounded_seconds,
    opened_image,
    opened_source,
    read_source,
    register_heif,
)

EXTENSIONS = frozenset(
    [
        ".png",
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".bmp",
        ".gif",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".avif",
        ".heic",
        ".heif",
        ".jp2",
    ]
)
"""How the names of image files end."""


class Decoded(NamedTuple):
    """What became of one image: digests of its bytes and pixels, its own size, its pixels, or why it was not read."""

    digest: str
    pixel_digest: str
    width: int
    height: int
    pixels: NDArray[np.uint8] | None
    problem: str | None


def decode_source(source: Source, size: int, keep: bool = True) -> Decoded:
    """Decode one image to (3, size, size) uint8; a damaged one is told, not raised."""
    try:
        data = read_source(source)
        with bounded_seconds(), opened_image(data) as image:
            width, height = image.size
            pixels = square(upright(image, size), size)
    except Exception as error:  # damaged files raise nearly anything in Pillow's decoders
        return Decoded("", "", 0, 0, None, _reason(source, error))
    digest = hashlib.blake2b(data, digest_size=12).hexdigest()
    return Decoded(digest, pixel_digest(pixels), width, height, pixels if keep else None, None)


def pixel_digest(pixels: NDArray[np.uint8]) -> str:
    """Return the digest by which pixels (3, size, size) are known."""
    return hashlib.blake2b(np.ascontiguousarray(pixels).reshape(-1).data, digest_size=12).hexdigest()


def decode_sources(sources: Sequence[Source], size: int, keep: bool) -> list[Decoded]:
    """Decode several images, the unit of work of one worker process."""
    if any(source.path.lower().endswith(HEIC) for source in sources):
        register_heif()
    return [decode_source(source, size, keep) for source in sources]


def upright(image: Image.Image, size: int | None = None) -> Image.Image:
    """Decode an opened image and turn it as its metadata say.

    Args:
        image: the image.
        size: side that it will be scaled to, if that is known: a large JPEG is then decoded at a fraction of its size.
    """
    if size is not None:
        image.draft("RGB", (2 * size, 2 * size))
    ImageOps.exif_transpose(image, in_place=True)  # a copy of a large image takes as much memory again
    return image


def shorter_side(source: Source) -> int | None:
    """Return the shorter side of an image as its header says, None when that cannot be read."""
    try:
        with opened_source(source) as image:
            return min(image.size)
    except Exception:  # as above
        return None


def _reason(source: Source, error: Exception) -> str:
    if source.path.lower().endswith(HEIC) and not register_heif():
        return "HEIC, which needs the package pillow-heif"
    if isinstance(error, UnidentifiedImageError):
        return "not an image that can be read"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def square(image: Image.Image, size: int) -> NDArray[np.uint8]:
    """Scale the shorter side to ``size`` and crop the centre: any Pillow image to (3, size, size) uint8 RGB."""
    if image.mode.startswith("I;16"):  # 16-bit grey, which Pillow would clip to white instead of scaling
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"images of mode {image.mode} say nothing of their range: convert them to 8 or 16 bits")
    rgb = image if image.mode == "RGB" else image.convert("RGB")
    if rgb.size != (size, size):
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(rgb).transpose(2, 0, 1))


def to_pillow(image: Any) -> Image.Image:
    """Turn a Pillow image, a channels-first tensor or a channels-last array into a Pillow image.

    Tensors and arrays are uint8 or float in [0, 1].

    Raises:
        ValueError: if it is none of these.
    """
    if isinstance(image, Image.Image):
        return image
    channels_first = not isinstance(image, np.ndarray)
    array = np.asarray(image)
    if array.ndim == 3 and channels_first:
        array = array.transpose(1, 2, 0)
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):
            raise ValueError(
                f"float images must lie in [0, 1], got {array.min():.3g}..{array.max():.3g}: leave out normalisation"
            )
        array = (array * 255).round().astype(np.uint8)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.dtype != np.uint8 or not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise ValueError(
            f"an image must be a Pillow image, a (1|3, H, W) tensor or an (H, W, 3) array, uint8 or float in [0, 1], "
            f"got {type(image).__name__} of shape {array.shape} {array.dtype}"
        )
    return Image.fromarray(array)
