"""Workers: the tiles of a pass shared out among threads.

torch would share out every operation of every tile, and all threads would wait for each other after each. Next to other
programs some thread is always late, so those waits add up. Here every thread has tiles of its own, does them alone, and
is waited for once, at the end. Which tiles it has is fixed, so that sums come out the same every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from antipodes.functional._tiles import Tile

Result = TypeVar("Result")

MOST = 8  # each has sums and gradients of its own: more of them would take memory, so they get more threads instead

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def workers(device: torch.device) -> int:
    """How many share the tiles of a pass: as many as torch has threads here."""
    return min(torch.get_num_threads(), MOST) if device.type == "cpu" else 1


def share_out(tiles: Sequence[Tile], device: torch.device, part: Callable[[Sequence[Tile]], Result]) -> list[Result]:
    """Do the tiles in parts, one for every worker, and return what the parts came to, in a fixed order.

    Args:
        tiles: All of them.
        device: Where the numbers are.
        part: Does some of the tiles, without gradient; it must not change anything that another part looks at.
    """
    count = max(1, min(workers(device), len(tiles)))
    if count == 1:
        return [part(tiles)]
    threads, pool = torch.get_num_threads(), _pool(count - 1)
    each = max(1, threads // count)
    own, *rest = _even(tiles, count)
    others = [pool.submit(_alone, part, theirs, each) for theirs in rest]
    torch.set_num_threads(each)
    try:
        first = part(own)
    finally:
        wait(others)
        torch.set_num_threads(threads)  # also for threads that do not exist yet, which the workers have spoken for
    return [first, *(other.result() for other in others)]


def _even(tiles: Sequence[Tile], count: int) -> list[list[Tile]]:
    """Deal the tiles out so that everybody has about as many pairs: the largest first, to who has least."""
    shares: list[list[Tile]] = [[] for _ in range(count)]
    pairs = [0] * count
    for tile in sorted(tiles, key=lambda tile: tile.shape[0] * tile.shape[1], reverse=True):
        least = pairs.index(min(pairs))
        shares[least].append(tile)
        pairs[least] += tile.shape[0] * tile.shape[1]
    return shares


def _alone(part: Callable[[Sequence[Tile]], Result], tiles: Sequence[Tile], threads: int) -> Result:
    """Do a part in a worker: threads are counted, and gradients switched off, for each by itself."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        return part(tiles)


def _pool(count: int) -> ThreadPoolExecutor:
    """So many workers; a forked process has none of its parent's."""
    key = os.getpid(), count
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(count, "antipodes")
    return _pools[key]
