"""The files in which decoded images are kept: pixels to be mapped into memory, and an index that names them.

A cache belongs to one folder (or archive) at one size. Its index takes the place of an earlier one at once and names
its own file of pixels, so that a reader finds both old or both new. All caches together stay below a bound; those used
longest ago make room. A cache that cannot be read or written is as good as none: nothing here raises.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antipodes.data.download import cache_root
from antipodes.files import replacing

CACHE_BYTES = 20_000_000_000
"""Bytes of decoded images that are kept in the cache folder."""

_VERSION = 1


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


class PixelCache:
    """The cache of one folder or archive at one size.

    Args:
        base: the folder or archive.
        size: side of the decoded squares.
        part: which of several lists of images in it, such as a split.

    Attributes:
        entries: the images that an earlier scan has seen, by their names.
        pixels: (rows, 3, size, size) uint8, mapped into memory; None when only the entries were kept.
    """

    def __init__(self, base: Path, size: int, part: str = "") -> None:
        identity = os.fsencode(base.resolve()) + b"\0" + part.encode()
        digest = hashlib.blake2b(identity, digest_size=6).hexdigest()
        self.folder, self.size = cache_root() / "decoded" / f"{digest}-{size}", size
        self.entries: dict[str, Entry] = {}
        self.pixels: NDArray[np.uint8] | None = None
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._read()

    def _read(self) -> None:
        index = self.folder / "index.json"
        content = json.loads(index.read_text())
        if content["version"] != _VERSION:
            return
        entries = {name: Entry(*fields) for name, fields in content["files"].items()}
        if content["pixels"] is not None:
            path = self.folder / content["pixels"]
            rows = path.stat().st_size // (3 * self.size**2)
            if rows <= max((entry.row for entry in entries.values()), default=-1):
                return  # cut short
            # Copy on write: torch wants memory that it may write to, and the file stays as it is.
            self.pixels = np.memmap(path, np.uint8, "c", shape=(rows, 3, self.size, self.size))
        self.entries = entries
        os.utime(index)  # used just now

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cache for this process alone, where the system can; the lock of a process that ends goes with it."""
        with ExitStack() as stack:
            with suppress(OSError, ImportError):
                import fcntl

                self.folder.mkdir(parents=True, exist_ok=True)
                fcntl.flock(stack.enter_context((self.folder / "lock").open("w")), fcntl.LOCK_EX)
            yield

    def room(self, rows: int) -> NDArray[np.uint8] | None:
        """Return zeros (rows, 3, size, size) in a new file, None when there is no room for them."""
        total = rows * 3 * self.size**2
        path = self.folder / f"pixels-{uuid.uuid4().hex[:8]}"
        if total > CACHE_BYTES:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._evict(CACHE_BYTES - total)
            if total > shutil.disk_usage(self.folder).free // 2:
                return None
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):  # a disk that fills up later would end the process
                    os.posix_fallocate(file.fileno(), 0, total)
                else:
                    file.truncate(total)
            return np.memmap(path, np.uint8, "r+", shape=(rows, 3, self.size, self.size))
        except OSError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def write(self, entries: Mapping[str, Entry], pixels: NDArray[np.uint8] | None) -> None:
        """Keep these entries and the pixels, which ``room`` has given; older pixels are removed."""
        name = Path(pixels.filename).name if isinstance(pixels, np.memmap) and pixels.filename is not None else None
        content = {"version": _VERSION, "pixels": name, "files": entries}
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if isinstance(pixels, np.memmap):
                pixels.flush()
            with replacing(self.folder / "index.json") as partial:
                partial.write_text(json.dumps(content))
            for path in self.folder.glob("pixels-*"):
                if path.name != name:
                    path.unlink(missing_ok=True)

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
