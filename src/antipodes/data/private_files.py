"""Folders and files that only their owner may read, and a lock on them that ends with its process.

What the cache holds is made of the user's photos, whose own folder may be closed to others.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from antipodes.plain_text import printable

_PATIENCE = 1.0  # seconds of waiting that are not worth a word
_HELD: set[IO[str]] = set()  # the files of the locks that this process holds or waits for


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter, and likewise those above it that are missing.

    Raises:
        OSError: if that cannot be done.
    """
    if not folder.parent.exists():
        private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_mode & 0o077:  # made by an earlier version
        folder.chmod(0o700)


def private_file(path: str | Path, flags: int) -> int:
    """Open a file that only its owner may read: the `opener` of Python's `open`."""
    return os.open(path, flags, 0o600)


@contextmanager
def locked(file: Path, purpose: str) -> Iterator[None]:
    """Hold a lock for this process alone, where the system can.

    A lock goes with its process, also when that is killed: processes that were forked from it do not hold it.

    Args:
        file: the file of the lock; it is made if it is missing.
        purpose: what the lock is for. Whoever waits longer than a second says so on standard error.
    """
    with ExitStack() as stack:
        with suppress(OSError, ImportError):
            private_folder(file.parent)
            handle = stack.enter_context(open(file, "w", opener=private_file))
            _HELD.add(handle)
            stack.callback(_HELD.discard, handle)
            _lock(handle, purpose)
        yield


def _lock(handle: IO[str], purpose: str) -> None:
    import fcntl

    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
    print(f"antipodes: waiting for another process: {printable(purpose)}", file=sys.stderr, flush=True)
    fcntl.flock(handle, fcntl.LOCK_EX)


def _close_in_child() -> None:
    """Close the files of locks in a forked process; its parent keeps the locks."""
    for handle in _HELD:
        handle.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
