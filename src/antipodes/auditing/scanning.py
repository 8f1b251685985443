"""One pass over photos: each is decoded once, and all that an audit needs to know about it is computed at that time.

1. Photos are scanned in parts, by threads on all cores: vectors by the encoder, keypoints, numbers about the quality.
2. A finished part of photos that are files is kept in the user's cache folder, by the digests of its files and of the
   encoder, with a digest of its own. A call that was killed goes on where it was; a damaged part is computed again.
3. Two audits of the same photos share the work: a part that another process is computing is left to it.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.auditing.keypoints import COUNT, LENGTH, PER_LEVEL, SIDE, Keypoints, canvas, find_keypoints
from antipodes.auditing.photos import Photos
from antipodes.auditing.quality import Quality, measure, reduced
from antipodes.data.download import cache_root
from antipodes.data.image_opening import readers
from antipodes.files import TEMPORARY, claimed, locked, private_folder, replacing
from antipodes.progress import Progress
from antipodes.threads import one_thread

PART = 128
"""Photos in a part: the unit of work of a thread, and what is lost at most by thread when a call is killed."""

WORTH_KEEPING = 256
"""Fewer photos than this leave nothing in the cache."""

CACHE_BYTES = 10_000_000_000
"""Bytes of scanned parts that are kept; those used longest ago make room."""

_VERSION = f"2 {SIDE} {PER_LEVEL} {COUNT} {LENGTH}"
_SUFFIX = ".part"
_DIGEST = 32
_ABANDONED = 86_400  # seconds after which a temporary file belongs to a process that was killed

Arrays = dict[str, NDArray[Any]]
EncodeImages = Callable[[list[Image.Image]], NDArray[np.float32]]


@dataclass(frozen=True)
class Scan:
    """What an audit knows about n photos.

    Args:
        keypoints: of all photos.
        grey: (n, S, S) uint8 canvases.
        sizes: (n, 2) height and width of the photos on these.
        quality: the numbers about their quality.
        vectors: (n, F) float32 by the encoder, or None.
        found: photos whose part was in the cache.
    """

    keypoints: Keypoints
    grey: Tensor
    sizes: Tensor
    quality: Quality
    vectors: NDArray[np.float32] | None = None
    found: int = 0


def scan_photos(
    photos: Photos,
    encode: EncodeImages | None = None,
    *,
    side: int | None = 160,
    identity: str | None = None,
    workers: int = 2,
    progress: Progress | None = None,
) -> Scan:
    """Decode photos and compute what an audit needs of them.

    Args:
        photos: the photos.
        encode: a list of images -> their vectors (b, F); None computes none.
        side: shorter side of the images that it needs (large JPEG files are decoded at a fraction of their size);
            None for whole images.
        identity: says which encoder it is; None keeps nothing in the cache.
        workers: threads.
        progress: called with (photos done, photos in all).
    """
    n = len(photos)
    digests = photos.digests() if identity is not None and n >= WORTH_KEEPING else None
    cache = None if digests is None else _Cache(f"{_VERSION} {readers()} {side} {identity}")
    ranges = [range(start, min(start + PART, n)) for start in range(0, n, PART)]
    names = [None if digests is None else cache_name(digests[rows.start : rows.stop]) for rows in ranges]
    result: list[Arrays | None] = [None] * len(ranges)
    found, done = 0, 0

    def compute(number: int) -> Arrays:
        return _scan(photos, ranges[number], encode, side)

    def work(number: int, waits: bool = False) -> tuple[int, Arrays | None, bool]:
        """A part from the cache, or computed; None if another process is computing it."""
        name = names[number]
        if cache is None or name is None:
            return number, compute(number), False
        known = cache.read(name)
        if known is not None:
            return number, known, True
        with cache.claim(name, waits) as mine:
            if not mine:
                return number, None, False
            known = cache.read(name)
            if known is not None:
                return number, known, True
            computed = compute(number)
            cache.write(name, computed)
            return number, computed, False

    with one_thread(), ThreadPoolExecutor(max(1, workers)) as pool:
        pending: set[Future[tuple[int, Arrays | None, bool]]] = {pool.submit(work, each) for each in range(len(ranges))}
        try:
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for each in finished:
                    number, arrays, was_known = each.result()
                    if arrays is None:  # another process has it: look again when all others are done
                        pending.add(pool.submit(work, number, True))
                        continue
                    result[number] = arrays
                    done += len(ranges[number])
                    found += len(ranges[number]) if was_known else 0
                    if progress is not None:
                        progress(done, n)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if cache is not None:
        cache.make_room()
    return _joined([each for each in result if each is not None], found)


def cache_name(digests: Sequence[str]) -> str:
    """The name of a part, by the digests of its photos."""
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=16).hexdigest()


def _scan(photos: Photos, rows: range, encode: EncodeImages | None, side: int | None) -> Arrays:
    """Decode some photos and compute all about them."""
    images = [photos.small(row, side) for row in rows]
    small = [(reduced(image, SIDE), size) for image, size in images]
    greys, sizes = zip(*(canvas(image) for image, _ in small), strict=True)
    numbers = np.stack([measure(image, *size) for image, size in small])
    with torch.inference_mode():
        grey = torch.from_numpy(np.stack(greys))
        keypoints = find_keypoints(grey, torch.tensor(sizes))
    arrays = {name: each.numpy() for name, each in keypoints._asdict().items()}
    arrays |= {"grey": grey.numpy(), "sizes": np.array(sizes, dtype=np.int16), "quality": numbers}
    if encode is not None:
        arrays["vectors"] = encode([image for image, _ in images])
    return arrays


def _joined(parts: list[Arrays], found: int) -> Scan:
    """One scan of all parts; every part is given up as soon as it is copied."""
    arrays = {}
    for name in list(parts[0]):
        arrays[name] = np.concatenate([part.pop(name) for part in parts])
    keypoints = Keypoints(*(torch.from_numpy(arrays[name]) for name in Keypoints._fields))
    grey, sizes = torch.from_numpy(arrays["grey"]), torch.from_numpy(arrays["sizes"])
    return Scan(keypoints, grey, sizes, Quality.of(arrays["quality"]), arrays.get("vectors"), found)


class _Cache:
    """Parts of scans in the user's cache folder, each in a file with its digest. What cannot be kept is not."""

    def __init__(self, identity: str) -> None:
        key = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        self.root = cache_root() / "scanned"
        self.folder = self.root / key
        with suppress(OSError):
            private_folder(self.folder)

    def read(self, name: str) -> Arrays | None:
        """The arrays of a part, None if it is not there or was damaged."""
        file = self.folder / (name + _SUFFIX)
        with suppress(OSError, ValueError, KeyError):
            content = file.read_bytes()
            if hashlib.blake2b(content[_DIGEST:], digest_size=_DIGEST).digest() != content[:_DIGEST]:
                return None
            with np.load(io.BytesIO(content[_DIGEST:]), allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            os.utime(file)
            return arrays
        return None

    def write(self, name: str, arrays: Arrays) -> None:
        """Keep a part."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        content = buffer.getvalue()
        with suppress(OSError), replacing(self.folder / (name + _SUFFIX), 0o600) as temporary:
            temporary.write_bytes(hashlib.blake2b(content, digest_size=_DIGEST).digest() + content)

    @contextmanager
    def claim(self, name: str, waits: bool) -> Iterator[bool]:
        """Hold a part for this thread, and yield whether that succeeded; with `waits` it does sooner or later."""
        lock = self.folder / f"{name}.lock"
        with locked(lock, "it scans the same photos") if waits else claimed(lock) as mine:
            yield mine is not False
            if mine is not False:
                lock.unlink(missing_ok=True)

    def make_room(self) -> None:
        """Remove what was used longest ago, until all scans take `CACHE_BYTES`, and files of killed processes."""
        with suppress(OSError):
            files = [(file, file.stat()) for file in self.root.glob("*/*") if file.is_file()]
            total = sum(state.st_size for _, state in files)
            for file, state in sorted(files, key=lambda each: each[1].st_mtime):
                abandoned = TEMPORARY.fullmatch(file.name) and state.st_mtime < time.time() - _ABANDONED
                if total > CACHE_BYTES or abandoned:
                    file.unlink(missing_ok=True)
                    total -= state.st_size
