"""Image files and image-like objects turned into square uint8 RGB, without torch; many of them in worker processes.

Workers end when the process that started them does, however that ends.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import Progress

from antipodes.data.image_opening import (
    HEIC,
    Source,
    bounded_seconds,
    opened_image,
    opened_source,
    read_source,
    register_heif,
)


class Decoded(NamedTuple):
    """What became of one image: digests of its bytes and pixels, its own size, its pixels, or why it was not read."""

    digest: str
    pixel_digest: str
    width: int
    height: int
    pixels: NDArray[np.uint8] | None
    problem: str | None


def decode_source(source: Source, size: int, keep: bool = True) -> Decoded:
    """Decode one image to (3, size, size) uint8; what is wrong with a damaged one is returned, not raised."""
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


_PER_TASK = 64  # images that a worker process decodes at a time; fewer than that are decoded in this process
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl

Decode = Callable[[list[Source]], list[Decoded]]


def decode_in_workers(decode: Decode, sources: list[Source], workers: int | None) -> Iterator[Decoded]:
    """Decode images in their order, in worker processes when there are enough of them, with a progress bar.

    Args:
        decode: decodes some of them.
        sources: the images.
        workers: processes; None is one per available core, and 0 or 1 decodes in this process.

    Raises:
        MemoryError: if a worker process was killed.
    """
    tasks = [sources[i : i + _PER_TASK] for i in range(0, len(sources), _PER_TASK)]
    count = min(cores() if workers is None else workers, len(tasks))
    shown = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    with shown:
        done = map(decode, tasks) if count < 2 else _parallel(decode, tasks, count)
        yield from chain.from_iterable(shown.track(done, len(tasks), description="decoding images"))


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _parallel(decode: Decode, tasks: list[list[Source]], count: int) -> Iterator[list[Decoded]]:
    pool = ProcessPoolExecutor(count, initializer=_start_worker)
    try:
        yield from pool.map(decode, tasks)
    except BrokenProcessPool as error:
        raise MemoryError("a process that decodes images was killed: give fewer workers") from error
    except BaseException:  # interrupted, say: do not wait for what the workers still do
        for process in list((pool._processes or {}).values()):  # public only from Python 3.14 on
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave signals to the parent, and end with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent: for other systems, and for a parent that ended before it could be asked for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
