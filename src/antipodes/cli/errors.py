"""Errors as one sentence and an exit code; a traceback only for unexpected errors."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antipodes.plain_text import printable

STOPPED = 130  # as shells have it for Control-C
TERMINATED = 143  # and for SIGTERM

_NO_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST)
"""Errors of paths that cannot be: the call was wrong."""

_TOO_LARGE = ("can't allocate memory", "Storage size calculation overflowed")
"""What torch says of a tensor that does not fit into the machine's memory, or into any."""

_CLOSED = re.compile("closed by peer|reset by peer|broken pipe|timed out", re.IGNORECASE)
"""What gloo says of a connection whose other end is gone."""


def exit_code(command: Callable[[list[str]], None], arguments: list[str]) -> int:
    """Run a command: 0 when it is done, 1 when it failed, 2 when the call was wrong, 130 or 143 when it was stopped."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {printable(str(message))}", file=sys.stderr)
    received: list[int] = []
    try:
        with _terminated_like_interrupted(received):
            command(arguments)
    except (ValueError, FileNotFoundError) as error:
        say(str(error))
        return 2
    except (RuntimeError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno in _NO_PATH:
            say(f"{error.filename} cannot be used as a path: {error.strerror}")
            return 2
        from antipodes.training.loop import TrainingFailed

        lost = _lost_a_process(error)
        if not isinstance(error, (TrainingFailed, OSError, MemoryError)) and not lost and not _lacks_memory(error):
            raise
        if not (lost and _is_helper()):  # the process that has ended, or the first one, says what happened
            say("another process of this run has ended, so this one stops as well" if lost else _reason(error))
        return 1
    except KeyboardInterrupt as error:
        if not _is_helper():
            say(str(error) or "stopped")
        return TERMINATED if received else STOPPED
    return 0


@contextmanager
def _terminated_like_interrupted(received: list[int]) -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that whatever cleans up after Control-C cleans up after it as well.

    Args:
        received: gets the signal's number.
    """

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # only the main thread may say so
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def say(sentence: str) -> None:
    """Say it on standard error, in one line."""
    print(f"antipodes: {printable(' '.join(sentence.split()))}", file=sys.stderr)


def _is_helper() -> bool:
    """Return True in all processes of a run on one machine but the first, which speaks for them."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) != "0"


def _lost_a_process(error: Exception) -> bool:
    """Return True if a collective operation failed because another process of the run is gone."""
    from torch import distributed

    kinds = getattr(distributed, "DistError", ())  # of torch without distributed there is none
    return isinstance(error, kinds) or ("gloo" in str(error) and _CLOSED.search(str(error)) is not None)


def _lacks_memory(error: Exception) -> bool:
    """Whether torch says that memory is short: of a GPU, or of the machine, which has no kind of its own."""
    from torch import OutOfMemoryError

    return isinstance(error, OutOfMemoryError) or any(said in str(error) for said in _TOO_LARGE)


def _reason(error: Exception) -> str:
    if _lacks_memory(error):
        wanted = re.search(r"allocate (\d+ bytes|[\d.]+ ?[KMGT]i?B)", str(error), re.IGNORECASE)
        asked = f", {wanted[1]} at once" if wanted else ""
        return f"there is not enough memory for this{asked}: take a smaller batch, encoder or image size"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for this ({error})" if str(error) else "there is not enough memory for this"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full: {error.filename or 'nothing more can be written'}"
    return str(error) or type(error).__name__
