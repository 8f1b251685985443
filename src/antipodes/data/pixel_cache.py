"""The files in which decoded images are kept: pixels to be mapped into memory, and an index that names them.

A cache belongs to one folder (or archive) at one size. Its index takes the place of an earlier one at once and names
its own file of pixels, so that a reader finds both old or both new. All caches stay below one bound; those used
longest ago make room. A cache that cannot be read or written is as good as none: nothing here raises. Only the user
may read it, and what was damaged there is found by digests: of every image's pixels, and of the index.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodes.data.decode import cores, pixel_digest
from antipodes.data.download import cache_root
from antipodes.data.image_opening import readers
from antipodes.files import locked, private_file, private_folder, replacing
from antipodes.plain_text import printable

CACHE_BYTES = 20_000_000_000
"""Bytes of decoded images that are kept in the cache folder."""

_VERSION = 2


class Entry(NamedTuple):
    """One image in the index: what its source was when it was decoded, and what came of it."""

    bytes: int
    changed: int
    digest: str
    pixel_digest: str
    width: int
    height: int
    row: int
    problem: str | None


class PixelFile:
    """Decoded images in a file, which is read and not mapped: a file that is cut in the meantime gives an error.

    To read a mapped file past its end would end the process by SIGBUS.

    Args:
        path: the file. It is opened at once, so that it can be read after it was removed or replaced.
        rows: images in it.
        size: side of these.
    """

    def __init__(self, path: Path, rows: int, size: int) -> None:
        self.path, self.rows, self.size = path, rows, size
        self._file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """Read one image, (3, size, size).

        Raises:
            OSError: if the file has been cut, or cannot be read.
        """
        pixels = np.empty((3, self.size, self.size), np.uint8)
        self.read_into(row, pixels)
        return pixels

    def read_into(self, row: int, pixels: NDArray[np.uint8]) -> None:
        """Read one image into an array (3, size, size).

        Raises:
            OSError: as above.
        """
        view, start = pixels.reshape(-1).data.cast("B"), row * pixels.nbytes
        while len(view):
            read = os.preadv(self._file.fileno(), [view], start)
            if not read:
                raise OSError(errno.EIO, "the file of decoded images has been cut", str(self.path))
            view, start = view[read:], start + read

    def __reduce__(self) -> tuple[type[PixelFile], tuple[Path, int, int]]:
        """Open the file again in a copy."""
        return PixelFile, (self.path, self.rows, self.size)


class PixelCache:
    """The cache of one folder or archive at one size.

    Args:
        base: the folder or archive.
        size: side of the decoded squares.
        part: which of several lists of images in it, such as a split.

    Attributes:
        entries: the images that an earlier scan has seen, by their names.
        pixels: (rows, 3, size, size) uint8 in a file; None when only the entries were kept.
        is_partial: whether that scan was stopped, so that no reader uses its pixels yet.
    """

    def __init__(self, base: Path, size: int, part: str = "") -> None:
        identity = os.fsencode(base.resolve()) + b"\0" + part.encode()
        digest = hashlib.blake2b(identity, digest_size=6).hexdigest()
        self.folder, self.size = cache_root() / "decoded" / f"{digest}-{size}", size
        self.entries: dict[str, Entry] = {}
        self.pixels: PixelFile | None = None
        self.is_partial = False
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._read()

    def _read(self) -> None:
        index = self.folder / "index.json"
        content = json.loads(index.read_text())
        if content["version"] != _VERSION:
            return
        if content["digest"] != _digest(content["files"]):
            return
        entries = {name: Entry(*fields) for name, fields in content["files"].items()}
        if content["readers"] != readers():  # what was refused may be readable now
            entries = {name: entry for name, entry in entries.items() if entry.problem is None}
        if content["pixels"] is not None:
            path = self.folder / content["pixels"]
            rows = int(content["rows"])
            if path.stat().st_size != rows * 3 * self.size**2:
                return  # cut short: to read past its end would end the process
            self.pixels = PixelFile(path, rows, self.size)
        self.entries, self.is_partial = entries, bool(content.get("partial"))
        os.utime(index)  # used just now

    def drop_damaged(self, names: Sequence[str]) -> list[str]:
        """Forget the images among these whose pixels are not those that were written; returns their names.

        All their pixels are read once, by one thread for every core.
        """
        pixels = self.pixels
        if pixels is None:
            return []

        def is_damaged(name: str) -> bool:
            entry = self.entries[name]
            if entry.row >= len(pixels):
                return True
            try:
                return pixel_digest(pixels[entry.row]) != entry.pixel_digest
            except OSError:  # cut since it was opened
                return True

        def damaged_of(part: Sequence[str]) -> list[str]:
            return [name for name in part if is_damaged(name)]

        kept = [name for name in names if name in self.entries and self.entries[name].row >= 0]
        count = cores()
        with ThreadPoolExecutor(count) as pool:
            found = pool.map(damaged_of, [kept[start::count] for start in range(count)])
        damaged = sorted(chain.from_iterable(found))
        for name in damaged:
            del self.entries[name]
        return damaged

    def locked(self, base: Path) -> AbstractContextManager[None]:
        """Hold the cache for this process alone, while it decodes the images of ``base``."""
        return locked(self.folder / "lock", f"it decodes the images of {printable(str(base))}")

    def continued(self, names: Sequence[str], known: Sequence[Entry | None]) -> NDArray[np.uint8] | None:
        """Return the pixels of a scan of the same images that was stopped, to be written to; None if there are none."""
        if not self.is_partial or self.pixels is None or len(self.pixels) != len(names):
            return None
        if any(entry is not None and entry.row not in (-1, i) for i, entry in enumerate(known)):
            return None
        with suppress(OSError):
            return np.memmap(self.pixels.path, np.uint8, "r+", shape=(len(names), 3, self.size, self.size))
        return None

    def room(self, rows: int) -> NDArray[np.uint8] | None:
        """Return zeros (rows, 3, size, size) in a new file, None when there is no room for them."""
        total = rows * 3 * self.size**2
        path = self.folder / f"pixels-{uuid.uuid4().hex[:8]}"
        if total > CACHE_BYTES:
            return None
        try:
            private_folder(self.folder)
            self._remove_pixels(None if self.pixels is None else self.pixels.path.name)  # those of killed scans
            self._evict(CACHE_BYTES - total)
            if total > shutil.disk_usage(self.folder).free // 2:
                return None
            with open(path, "wb", opener=private_file) as file:
                if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
                    os.posix_fallocate(file.fileno(), 0, total)
                else:
                    file.truncate(total)
            return np.memmap(path, np.uint8, "r+", shape=(rows, 3, self.size, self.size))
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def write(self, entries: Mapping[str, Entry], pixels: NDArray[np.uint8] | None, partially: bool = False) -> None:
        """Keep these entries and the pixels, which ``room`` or ``continued`` has given; older pixels are removed."""
        name = Path(pixels.filename).name if isinstance(pixels, np.memmap) and pixels.filename is not None else None
        content = {
            "version": _VERSION,
            "readers": readers(),
            "partial": partially,
            "pixels": name,
            "rows": 0 if pixels is None else len(pixels),
            "digest": _digest(entries),
            "files": entries,
        }
        with suppress(OSError):
            private_folder(self.folder)
            if isinstance(pixels, np.memmap):
                pixels.flush()
            with replacing(self.folder / "index.json", 0o600) as partial, partial.open("w") as file:
                json.dump(content, file)
            self._remove_pixels(name)

    def _remove_pixels(self, kept: str | None) -> None:
        """Remove all files of pixels but one."""
        for path in self.folder.glob("pixels-*"):
            if path.name != kept:
                path.unlink(missing_ok=True)

    def reopened(self, pixels: np.memmap[Any, np.dtype[np.uint8]]) -> PixelFile:
        """Return the file of pixels that were written, to be read from now on instead of mapped."""
        return PixelFile(Path(str(pixels.filename)), len(pixels), self.size)

    def discard(self, pixels: NDArray[np.uint8]) -> None:
        """Remove a new file of pixels that was not finished."""
        if isinstance(pixels, np.memmap) and pixels.filename is not None:
            with suppress(OSError):
                Path(pixels.filename).unlink(missing_ok=True)

    def _evict(self, allowed: int) -> None:
        """Remove what was used longest ago until the other caches take no more than ``allowed`` bytes."""

        def used(folder: Path) -> float:
            index = folder / "index.json"
            return index.stat().st_mtime if index.exists() else 0.0

        others = [each for each in self.folder.parent.iterdir() if each != self.folder and each.is_dir()]
        taken = {each: sum(file.stat().st_size for file in each.iterdir()) for each in sorted(others, key=used)}
        for each in list(taken):
            if sum(taken.values()) <= allowed:
                return
            shutil.rmtree(each, ignore_errors=True)
            del taken[each]


def _digest(files: Mapping[str, Any]) -> str:
    """The digest of an index's entries, whose order is kept."""
    return hashlib.blake2b(json.dumps(files).encode(), digest_size=12).hexdigest()
