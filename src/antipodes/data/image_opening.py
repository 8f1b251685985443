"""The one place where an image is opened: only formats that photos come in, and none that asks for too much.

Files may come from a stranger. Pillow alone would hand PostScript to Ghostscript, whatever the file is called, and
decode a few kilobytes to gigabytes. Here a file is bounded in bytes, in pixels and in seconds, and refused with
the reason.
"""

from __future__ import annotations

import io
import os
import signal
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import NamedTuple, NoReturn

import PIL
from PIL import Image

FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "AVIF", "HEIF", "JPEG2000")
"""Pillow's names of the formats that are read."""

MOST_BYTES = 500_000_000
"""Bytes that a file may have."""

MOST_PIXELS = 120_000_000
"""Pixels that an image may have: more than the largest photos of telephones with 108 megapixels."""

MOST_SCANNED = 10_000_000_000
"""Pixels times scans that a JPEG may have. Every scan of a progressive JPEG passes over all pixels; photos have ten."""

MOST_SECONDS = 30.0
"""Seconds of computation that decoding may take, where the system can count them."""

HEIC = (".heic", ".heif")
"""How the names of files end that need the package pillow-heif."""

_SCAN = b"\xff\xda"  # the marker of a scan; inside a scan's own data it cannot occur


class Source(NamedTuple):
    """Where the bytes of an image are: a whole file, or a part of one (a member of a tar file)."""

    path: str
    start: int = 0
    length: int | None = None


@contextmanager
def opened_image(data: bytes) -> Iterator[Image.Image]:
    """Open an image; nothing is decoded yet.

    Raises:
        ValueError: if it has too many pixels or scans.
        Exception: nearly any, from Pillow, if it is damaged.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns of odd metadata and huge sizes, file by file
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            _check_pixels(image, data)
            yield image


@contextmanager
def opened_source(source: Source) -> Iterator[Image.Image]:
    """Open the image of a source, as `opened_image` and `read_source` do."""
    if source.path.lower().endswith(HEIC):
        register_heif()
    with opened_image(read_source(source)) as image:
        yield image


def read_source(source: Source) -> bytes:
    """Return the bytes of a source.

    Raises:
        ValueError: if it is not a plain file (a FIFO or a device would never end), is empty, too large, or ends too
            early.
        OSError: if it cannot be read.
    """
    state = os.stat(source.path)
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("not a plain file")
    wanted = state.st_size if source.length is None else source.length
    if wanted > MOST_BYTES:
        raise ValueError(f"{wanted:,} bytes, and at most {MOST_BYTES:,} are read")
    with open(source.path, "rb") as file:
        file.seek(source.start)
        data = file.read(wanted)
    if not data:
        raise ValueError("empty file")
    if len(data) < wanted:
        raise ValueError(f"only {len(data)} of its {wanted} bytes are there")
    return data


@contextmanager
def bounded_seconds() -> Iterator[None]:
    """Stop what is decoded in this block after `MOST_SECONDS` of computation; the load of the machine does not count.

    Only the main thread of a process can do so, which is where workers decode; elsewhere the other bounds must do.

    Raises:
        TimeoutError: if it takes longer.
    """
    able = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not able or signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)


@cache
def register_heif() -> bool:
    """Teach Pillow to read HEIC files; returns whether the package for that is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
        return True
    return False


def readers() -> str:
    """What decides which files are refused. A refusal that is kept somewhere holds only while this is the same."""
    return f"Pillow {PIL.__version__}, HEIC {register_heif()}, {MOST_BYTES}, {MOST_PIXELS}, {MOST_SECONDS}"


def _formats() -> list[str]:
    """Those of `FORMATS` that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _check_pixels(image: Image.Image, data: bytes) -> None:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels, and at most {MOST_PIXELS:,} are decoded")
    if image.format in ("JPEG", "MPO") and (scans := data.count(_SCAN)) * width * height > MOST_SCANNED:
        raise ValueError(f"a JPEG of {scans:,} scans, which photos do not have")


def _too_long(*_: object) -> NoReturn:
    raise TimeoutError(f"decoding took longer than {MOST_SECONDS:g} seconds")
