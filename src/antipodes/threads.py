"""Control of the number of threads that torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST_WORKERS = 1024
"""Threads or processes that a call may ask for; more than any machine has cores for."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check_workers(workers: int, least: int = 1) -> None:
    """Refuse a number of workers that cannot be started.

    Raises:
        ValueError: if it is too small or too large.
    """
    if not least <= workers <= MOST_WORKERS:
        raise ValueError(f"workers must be at least {least} and at most {MOST_WORKERS}, got {workers}")
