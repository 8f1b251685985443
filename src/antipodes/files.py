"""Files that are written whole or not at all, only over what this package wrote, and private ones with a lock."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
"""The pattern of temporary files' names."""

MARK = "written by antipodes"
"""A text in the metadata of our files, by which a later call recognises earlier results."""

_NEAR = 1 << 16  # bytes from either end of a file in which the mark lies
_TRAILER = b"\nsha256 "
_PATIENCE = 1.0  # seconds of waiting for a lock that are not worth a word
_HELD: set[IO[str]] = set()  # the files of the locks that this process holds or waits for


class DataError(ValueError):
    """Data that is missing, unreachable or unreadable, in one sentence that says what to do."""


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary file in the folder of `path`, which replaces `path` when the block ends without an error.

    Args:
        path: The file to write.
        mode: Permissions of the file, before the process's umask.

    The temporary file has a random name and is created exclusively, so it cannot be a link that was placed there
    before. The file and its folder are flushed to the disk before this returns.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder to which no other process writes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def refuse_foreign(path: str | Path, option: str, ours: Callable[[Path], bool], force: bool = False) -> None:
    """Refuse to write over a file that is not an earlier result of the same kind.

    Args:
        path: The file that will be written.
        option: The name of the argument that gave it, for the error.
        ours: Returns True if an existing file is an earlier result; if it raises, the file is not.
        force: Write over any file, because the user said so.

    Raises:
        ValueError: there is a folder at the path, or a file that something else has written.
    """
    file = Path(path).expanduser()
    try:
        mode = file.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be written: {error.strerror}") from error
    if stat.S_ISDIR(mode) or file.is_dir():
        raise ValueError(f"{option} {path} is a folder: give the name of the file to write")
    if force:
        return
    try:
        known = ours(file)
    except Exception:  # any error that a reader raises for a file of another format
        known = False
    if not known:
        raise ValueError(
            f"{option} {path} exists and is not an earlier result of this command: choose another name, "
            "or add --force to replace it"
        )


def is_marked(path: Path) -> bool:
    """Return True if the beginning or the end of a file holds `MARK`."""
    with path.open("rb") as file:
        found = MARK.encode() in file.read(_NEAR)
        file.seek(max(0, path.stat().st_size - _NEAR))
        return found or MARK.encode() in file.read()


def append_digest(path: Path) -> None:
    """Append the SHA-256 of a file to it, for `check_digest`; zip archives such as torch's allow bytes at the end."""
    digest = _digest(path, path.stat().st_size)
    with path.open("ab") as file:
        file.write(_TRAILER + digest)


def check_digest(path: Path, required: bool = True) -> None:
    """Compare a file with the digest at its end, which `append_digest` wrote.

    Args:
        path: The file.
        required: Also refuse a file without a digest; False for files that other programs may have written.

    Raises:
        ValueError: the digest is missing, or the bytes before it have another one.
    """
    length = path.stat().st_size - len(_TRAILER) - 64
    with path.open("rb") as file:
        file.seek(max(length, 0))
        end = file.read()
    if length < 0 or not end.startswith(_TRAILER):
        if required:
            raise ValueError(f"{path} does not end with its digest: it is damaged, or of another version of antipodes")
    elif _digest(path, length) != end.removeprefix(_TRAILER):
        raise ValueError(f"{path} is damaged: its content does not match the digest at its end")


def _digest(path: Path, length: int) -> bytes:
    """The SHA-256 of the first bytes of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while length > 0 and (chunk := file.read(min(length, 1 << 20))):
            digest.update(chunk)
            length -= len(chunk)
    return digest.hexdigest().encode()


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder where the system can, to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


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


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Hold a lock as `locked` does, unless another process or thread holds it: yield False then, without waiting.

    Where the system has no locks, or the file cannot be made, the answer is True.
    """
    with ExitStack() as stack:
        mine = True
        with suppress(OSError, ImportError):
            import fcntl

            private_folder(file.parent)
            handle = stack.enter_context(open(file, "w", opener=private_file))
            _HELD.add(handle)
            stack.callback(_HELD.discard, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mine = False
        yield mine


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
    print(f"antipodes: waiting for another process: {purpose}", file=sys.stderr, flush=True)
    fcntl.flock(handle, fcntl.LOCK_EX)


def _close_in_child() -> None:
    """Close the files of locks in a forked process; its parent keeps the locks."""
    for handle in _HELD:
        handle.close()
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
