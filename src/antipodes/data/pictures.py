"""Many images decoded once: on all cores, and kept in the user's cache folder.

1. What an earlier scan has left in the cache is used for every image whose name, size and time of change are the same,
   and whose pixels there still have their digest.
2. All others are decoded, in worker processes. So damaged ones are found before ids are given out, and ids stay. What
   is decoded is kept now and then, so that a scan that was stopped or killed goes on where it was.
3. The pixels go into the cache, else into memory; when they fit neither, ``fetch`` decodes.
"""

import hashlib
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.decode import decode_in_workers, decode_source, decode_sources, shorter_side
from antipodes.data.image_opening import Source
from antipodes.data.pixel_cache import Entry, PixelCache, PixelFile
from antipodes.files import DataError
from antipodes.plain_text import printable

WORTH_KEEPING = 200
"""Fewer images than this are decoded in less time than one notices, and leave nothing in the cache."""

KEEP_EVERY = 30.0
"""Seconds of decoding after which a scan keeps what it has."""

_SIZES_SAMPLED = 64
_DEFAULT_SIZE = 64
_SMALLEST_DEFAULT = 32
_MARGIN = 8, 7  # of the decoded image over the view: 256 for views of 224


class Pictures:
    """Square uint8 RGB images of a list of sources; made by ``decode_all``.

    Attributes:
        readable: positions, in the list, of the m sources that could be decoded.
        problems: position of each of the others -> why.
        digests: of the bytes of the readable ones, in their order.
        pixel_digests: of their decoded pixels.
        sizes: (m, 2) their own widths and heights.
        in_memory: True when ``fetch`` is an index into memory or into a file of pixels, False when it decodes.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        size: int,
        entries: Sequence[Entry],
        pixels: NDArray[np.uint8] | PixelFile | None,
    ) -> None:
        self.readable = [i for i, entry in enumerate(entries) if entry.problem is None]
        self.problems = {i: entry.problem for i, entry in enumerate(entries) if entry.problem is not None}
        self.digests = tuple(entries[i].digest for i in self.readable)
        self.pixel_digests = tuple(entries[i].pixel_digest for i in self.readable)
        self.sizes = torch.tensor([(entries[i].width, entries[i].height) for i in self.readable]).view(-1, 2)
        self.in_memory = pixels is not None
        self._sources, self._size = [sources[i] for i in self.readable], size
        self._pixels = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else pixels
        self._rows = torch.tensor([entries[i].row for i in self.readable], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.readable)

    def fetch(self, ids: Tensor) -> Tensor:
        """Return the images of these readable ones, (b,) int64 in 0..m-1 -> (b, 3, size, size) uint8.

        Raises:
            DataError: if a file has been lost or damaged since it was scanned.
        """
        if isinstance(self._pixels, PixelFile):
            return self._read(self._pixels, self._rows[ids].tolist())
        if self._pixels is not None:
            return self._pixels[self._rows[ids]]
        return torch.stack([self._decode(self._sources[i]) for i in ids.tolist()])

    def _read(self, file: PixelFile, rows: list[int]) -> Tensor:
        pixels = np.empty((len(rows), 3, self._size, self._size), np.uint8)
        try:
            for place, row in enumerate(rows):
                file.read_into(row, pixels[place])
        except OSError as error:
            raise DataError(
                f"{file.path}, the cache of decoded images, cannot be read any more ({error.strerror}): start again, "
                "then its images are decoded again"
            ) from error
        return torch.from_numpy(pixels)

    def fingerprint(self, names: Sequence[str], *facts: object) -> str:
        """Return a short hex digest of the readable images' content and size, of their names, and of other facts."""
        listing = "\n".join(f"{name} {digest}" for name, digest in zip(names, self.digests, strict=True))
        content = f"{facts} {self._size}\n{listing}".encode(errors="surrogateescape")
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    def _decode(self, source: Source) -> Tensor:
        decoded = decode_source(source, self._size)
        if decoded.pixels is None:
            raise DataError(
                f"{source.path} was readable when it was scanned and is not now ({decoded.problem}): restore it"
            )
        return torch.from_numpy(decoded.pixels)


def decode_all(
    base: Path,
    names: Sequence[str],
    sources: Sequence[Source],
    size: int,
    *,
    part: str = "",
    workers: int | None = None,
    memory_limit: int = 2_000_000_000,
    cache: bool = True,
) -> Pictures:
    """Decode images to (3, size, size), or take them from the cache.

    Args:
        base: the folder or file that they belong to; with ``size`` and ``part`` it says which cache is theirs.
        names: their names within ``base``.
        sources: where their bytes are.
        size: side of the squares: the shorter side is scaled to it and the centre cropped.
        part: which of several lists of images in ``base`` this is, such as a split.
        workers: processes; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.
        cache: whether to keep the pixels in the user's cache folder.
    """
    if not cache or len(sources) < WORTH_KEEPING:
        return _decode_all(None, names, sources, size, workers, memory_limit)
    kept = PixelCache(base, size, part)
    states = [_state(source) for source in sources]
    known = all(_is_known(kept.entries.get(name), state) for name, state in zip(names, states, strict=True))
    if known and not kept.is_partial and not kept.drop_damaged(names):
        return _decode_all(kept, names, sources, size, workers, memory_limit)
    with kept.locked(base):  # a second process, such as another rank, waits here and then finds the images decoded
        kept = PixelCache(base, size, part)
        if damaged := kept.drop_damaged(names):
            warnings.warn(
                f"decoding {len(damaged)} images of {printable(str(base))} again, whose pixels in the cache were "
                f"damaged: {', '.join(map(printable, damaged[:5]))}{', ...' if len(damaged) > 5 else ''}",
                stacklevel=2,
            )
        return _decode_all(kept, names, sources, size, workers, memory_limit)


def _decode_all(
    kept: PixelCache | None,
    names: Sequence[str],
    sources: Sequence[Source],
    size: int,
    workers: int | None,
    memory_limit: int,
) -> Pictures:
    states = [_state(source) for source in sources]
    known: list[Entry | None] = [None] * len(sources)
    if kept is not None:
        found = (kept.entries.get(name) for name in names)
        known = [entry if _is_known(entry, state) else None for entry, state in zip(found, states, strict=True)]
    old = None if kept is None else kept.pixels
    fits_memory = len(sources) * 3 * size**2 <= memory_limit
    complete = [entry for entry in known if entry is not None]
    is_whole = kept is None or not kept.is_partial
    if len(complete) == len(sources) and (old is not None or not fits_memory) and is_whole:
        return Pictures(sources, size, complete, old)

    pixels = None if kept is None else kept.continued(names, known)
    if pixels is None and kept is not None:
        pixels = kept.room(len(sources))
    if pixels is None and fits_memory:
        pixels = np.zeros((len(sources), 3, size, size), np.uint8)
    if pixels is not None and old is None:
        known = [None] * len(sources)  # of these only the digests are there
    scan = _Scan(kept, names, pixels, known, old)
    try:
        scan.decode(sources, states, size, workers)
    except BaseException:  # interrupted, say
        scan.stop()
        raise
    entries = scan.finish()
    if kept is not None and isinstance(pixels, np.memmap):
        return Pictures(sources, size, entries, kept.reopened(pixels))
    return Pictures(sources, size, entries, pixels)


class _Scan:
    """The decoding of images into an array, which is noted in the cache now and then.

    A scan that is stopped or killed goes on where it was: the next one finds what the last index says, and decodes the
    others.

    Args:
        kept: the cache, None where nothing is kept.
        names: the images' names.
        pixels: (n, 3, size, size), where image i has row i; None where only digests are wanted.
        known: what an earlier scan has found of every image.
        old: the pixels of that scan.
    """

    def __init__(
        self,
        kept: PixelCache | None,
        names: Sequence[str],
        pixels: NDArray[np.uint8] | None,
        known: Sequence[Entry | None],
        old: PixelFile | None,
    ) -> None:
        self._kept, self._names, self._pixels, self._known, self._old = kept, names, pixels, known, old
        self._entries: list[Entry | None] = [None] * len(names)
        self._next = time.monotonic() + KEEP_EVERY
        self._in_place = old is not None and str(getattr(pixels, "filename", "")) == str(old.path)
        self._is_copied = False

    def decode(
        self, sources: Sequence[Source], states: Sequence[tuple[int, int]], size: int, workers: int | None
    ) -> None:
        """Copy the pixels that are known, decode the other images, and write the index now and then."""
        for i, entry in enumerate(self._known):
            if entry is not None and self._pixels is not None and self._old is not None and entry.row >= 0:
                if not self._in_place:
                    self._pixels[i] = self._old[entry.row]
                self._entries[i] = entry._replace(row=i)
            elif entry is not None:
                self._entries[i] = entry._replace(row=-1)
        self._is_copied = True
        missing = [i for i, entry in enumerate(self._entries) if entry is None]
        decode = partial(decode_sources, size=size, keep=self._pixels is not None)
        decoding = decode_in_workers(decode, [sources[i] for i in missing], workers)
        for i, decoded in zip(missing, decoding, strict=True):
            digest, pixel_digest, width, height, image, problem = decoded
            if self._pixels is not None and image is not None:
                self._pixels[i] = image
            row = -1 if image is None else i
            self._entries[i] = Entry(*states[i], digest, pixel_digest, width, height, row, problem)
            if time.monotonic() >= self._next:
                begin = time.monotonic()
                self._write(partially=True)
                self._next = time.monotonic() + max(KEEP_EVERY, 20 * (time.monotonic() - begin))

    def stop(self) -> None:
        """Keep what is decoded so far; remove the new file of pixels if that is nothing more than the old one has."""
        if self._is_copied and any(entry is not None for entry in self._entries):
            self._write(partially=True)
        elif self._kept is not None and self._pixels is not None and not self._in_place:
            self._kept.discard(self._pixels)

    def finish(self) -> list[Entry]:
        """Write the whole index, and return its entries."""
        self._write(partially=False)
        return [entry for entry in self._entries if entry is not None]

    def _write(self, partially: bool) -> None:
        if self._kept is not None:
            found = {name: entry for name, entry in zip(self._names, self._entries, strict=True) if entry is not None}
            self._kept.write(found, self._pixels, partially)


def _is_known(entry: Entry | None, state: tuple[int, int]) -> bool:
    return entry is not None and (entry.bytes, entry.changed) == state


def _usual_side(sources: Sequence[Source]) -> int | None:
    """Return the median shorter side of some of the images, None when none of those can be read."""
    step = max(1, len(sources) // _SIZES_SAMPLED)
    sides = sorted(side for source in sources[::step][:_SIZES_SAMPLED] if (side := shorter_side(source)) is not None)
    return sides[len(sides) // 2] if sides else None


def _state(source: Source) -> tuple[int, int]:
    """Size and time of change of a source, by which the cache knows it; those of a lost file match nothing."""
    try:
        stat = os.stat(source.path)
    except OSError:
        return -1, -1
    return stat.st_size if source.length is None else source.length, stat.st_mtime_ns


def decode_size(sources: Sequence[Source], size: int | None, decode: int | None) -> tuple[int, int]:
    """Return the side of views and that of decoded images.

    Args:
        sources: the images; the headers of some of them are read where something is left open.
        size: side of views. None is 64, or less where the images themselves are smaller, but at least 32.
        decode: side of the decoded images. None is 8/7 of ``size`` (256 for 224), but no more than the images
            have, nor less than ``size``.

    Raises:
        ValueError: if a side is below 1.
    """
    for name, value in (("size", size), ("decode", decode)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1 pixel, got {value}")
    if size is not None and decode is not None:
        return size, decode
    usual = _usual_side(sources) or _DEFAULT_SIZE
    if size is None:
        size = max(_SMALLEST_DEFAULT, min(_DEFAULT_SIZE, usual if decode is None else decode))
    if decode is None:
        decode = max(size, min(_MARGIN[0] * size // _MARGIN[1], usual))
    return size, decode


def row_keys(names: Iterable[str], contents: Iterable[str]) -> Tensor:
    """Return a digest of every row's name and one of its content, (n, 2) int64.

    Example:
        >>> first, second = row_keys(["a.jpg", "b.jpg"], ["same", "same"])
        >>> first[0] == second[0], first[1] == second[1]
        (tensor(False), tensor(True))
    """
    found = [(_number(name), _number(content)) for name, content in zip(names, contents, strict=True)]
    return torch.tensor(found, dtype=torch.int64).view(-1, 2)


def _number(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
