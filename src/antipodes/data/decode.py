"""From image files and image-like objects to square uint8 RGB; imports no torch, so worker processes start fast."""

import io
import warnings
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


class Decoded(NamedTuple):
    """What became of one file: its checksum and its pixels (when wanted), or why it could not be read."""

    checksum: int
    pixels: NDArray[np.uint8] | None
    problem: str | None


def decode_file(path: Path, size: int, keep: bool = True) -> Decoded:
    """Decode one file to (3, size, size) uint8; a damaged file is told, not raised."""
    try:
        data = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata and huge sizes, file by file
            with Image.open(io.BytesIO(data)) as image:
                image.draft("RGB", (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
                pixels = square(ImageOps.exif_transpose(image), size)
    except Exception as error:  # damaged files raise nearly anything in Pillow's decoders
        return Decoded(0, None, f"{type(error).__name__}: {error}")
    return Decoded(zlib.crc32(data), pixels if keep else None, None)


def decode_files(paths: list[Path], size: int, keep: bool) -> list[Decoded]:
    """Decode several files, the unit of work of one worker process."""
    return [decode_file(path, size, keep) for path in paths]


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
