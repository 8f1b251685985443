"""Errors as one sentence and an exit code; a traceback only for what nobody foresaw."""

from __future__ import annotations

import errno
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antipodes.plain_text import printable

STOPPED = 130  # as shells have it for Control-C
TERMINATED = 143  # and for SIGTERM


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
        from antipodes.training.loop import TrainingFailed

        if not isinstance(error, (TrainingFailed, OSError, MemoryError)) and not _lacks_memory(error):
            raise
        say(_reason(error))
        return 1
    except KeyboardInterrupt as error:
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


def _lacks_memory(error: Exception) -> bool:
    """Whether torch says that memory is short: of a GPU, or of the machine, which has no kind of its own."""
    from torch import OutOfMemoryError

    return isinstance(error, OutOfMemoryError) or "can't allocate memory" in str(error)


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
