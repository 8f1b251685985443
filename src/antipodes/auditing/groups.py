"""Samples that are the same thing, as groups: what `Known` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


def join(count: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Groups (count,) of samples that pairs connect, directly or through others; -1 for a sample that is alone.

    Groups are numbered 0, 1, ... by their first sample.

    Example:
        >>> join(6, [(4, 1), (5, 3), (3, 1)]).tolist()
        [-1, 0, -1, 0, 0, 0]
    """
    parents = list(range(count))

    def root(sample: int) -> int:
        while parents[sample] != sample:
            parents[sample] = sample = parents[parents[sample]]
        return sample

    for first, second in pairs:
        one, other = root(first), root(second)
        parents[max(one, other)] = min(one, other)
    roots = np.array([root(sample) for sample in range(count)], dtype=np.int64)
    _, number, size = np.unique(roots, return_inverse=True, return_counts=True)
    groups = np.full(count, -1, dtype=np.int64)
    shared = size > 1
    groups[shared[number]] = (np.cumsum(shared) - 1)[number][shared[number]]
    return groups


def listed_pairs(groups: NDArray[np.int64], whole: int = 50) -> list[tuple[int, int]]:
    """Pairs (a, b), a < b, of samples that share a group: all of them, but in groups of more than `whole` samples only
    the first with every other.

    Example:
        >>> listed_pairs(np.array([0, -1, 0, 0, 1, 1]))
        [(0, 2), (0, 3), (2, 3), (4, 5)]
    """
    members: dict[int, list[int]] = {}
    for sample in np.flatnonzero(groups >= 0).tolist():
        members.setdefault(int(groups[sample]), []).append(sample)
    found: list[tuple[int, int]] = []
    for rows in members.values():
        found += combinations(rows, 2) if len(rows) <= whole else ((rows[0], other) for other in rows[1:])
    return found


def pairs_within(groups: NDArray[np.int64]) -> int:
    """How many pairs of samples share a group.

    Example:
        >>> pairs_within(np.array([-1, 0, 0, 0, 1, 1, -1]))
        4
    """
    sizes = np.bincount(groups[groups >= 0]) if (groups >= 0).any() else np.zeros(0, dtype=np.int64)
    return int((sizes * (sizes - 1) // 2).sum())


def equal_rows(vectors: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Pairs of the first and every other of the rows (n, F) that are equal to the last bit; zero rows say nothing."""
    firsts: dict[bytes, int] = {}
    found = []
    for row in np.flatnonzero(vectors.any(axis=1)).tolist():
        first = firsts.setdefault(hashlib.blake2b(vectors[row].tobytes(), digest_size=16).digest(), row)
        if first != row:
            found.append((first, row))
    return found
