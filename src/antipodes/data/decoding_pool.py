"""Worker processes that decode images, and end when the process that started them does."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from multiprocessing.connection import wait

from rich.console import Console
from rich.progress import Progress

from antipodes.data.decode import Decoded
from antipodes.data.image_opening import Source

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
