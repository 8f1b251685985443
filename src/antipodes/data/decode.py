"""Turns image files and image-like objects into square uint8 RGB, without torch, so that workers start fast."""

import hashlib
import io
import os
import stat
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

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

_HEIC = (".heic", ".heif")


class Source(NamedTuple):
    """Where the bytes of an image are: a whole file, or a part of one (a member of a tar file)."""

    path: str
    start: int = 0
    length: int | None = None


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and huge sizes, file by file
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
                image.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
                pixels = square(ImageOps.exif_transpose(image), size)
    except Exception as error:  # damaged files raise nearly anything in Pillow's decoders
        return Decoded("", "", 0, 0, None, _reason(source, error))
    digest, pixel_digest = (hashlib.blake2b(part, digest_size=12).hexdigest() for part in (data, pixels.tobytes()))
    return Decoded(digest, pixel_digest, width, height, pixels if keep else None, None)


def decode_sources(sources: Sequence[Source], size: int, keep: bool) -> list[Decoded]:
    """Decode several images, the unit of work of one worker process."""
    if any(source.path.lower().endswith(_HEIC) for source in sources):
        with suppress(ImportError):
            from pillow_heif import register_heif_opener

            register_heif_opener()
    return [decode_source(source, size, keep) for source in sources]


def read_source(source: Source) -> bytes:
    """Return the bytes of a source.

    Raises:
        ValueError: if it is not a plain file (a FIFO or a device would never end), is empty, or ends too early.
        OSError: if it cannot be read.
    """
    if not stat.S_ISREG(os.stat(source.path).st_mode):
        raise ValueError("not a plain file")
    with open(source.path, "rb") as file:
        file.seek(source.start)
        data = file.read(-1 if source.length is None else source.length)
    if not data:
        raise ValueError("empty file")
    if source.length is not None and len(data) < source.length:
        raise ValueError(f"only {len(data)} of its {source.length} bytes are there")
    return data


def shorter_side(source: Source) -> int | None:
    """Return the shorter side of an image as its header says, None when that cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(read_source(source))) as image:
                return min(image.size)
    except Exception:  # as above
        return None


def _reason(source: Source, error: Exception) -> str:
    if source.path.lower().endswith(_HEIC):
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
    rgb = image.convert("RGB")
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
