"""Tiles: blocks of the (A, C) matrix of pairs, small enough that a few of them fit into a processor's cache."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CPU_EDGE, DEVICE_EDGE = 448, 4096
"""The largest edge of a tile on a CPU, where a few tiles then fit into a core's cache, and on other devices."""


class Tile(NamedTuple):
    """A block of pairs: some anchors with some candidates.

    Attributes:
        number: its number among the tiles.
        rows: the anchors.
        columns: the candidates.
        shape: (h, w), how many of both.
        mirrored: whether the tile also stands for its mirror image below the diagonal.
        excluded: flat positions in the tile of pairs that never count, or None.
    """

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, int]
    mirrored: bool
    excluded: Tensor | None


class Listing:
    """A list of single pairs, sorted by row, from which every tile takes its own.

    Args:
        rows: (L,) the anchors of the pairs.
        columns: (L,) their candidates.
    """

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        self.order = np.argsort(rows.cpu().numpy(), kind="stable")
        self.rows, self.columns = rows.cpu().numpy()[self.order], columns.cpu().numpy()[self.order]
        self.device = rows.device

    def places(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        """Return the flat positions in a tile of the pairs that lie in it, and their places in the list; or None."""
        start, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        column = self.columns[start:stop]
        inside = (column >= columns.start) & (column < columns.stop)
        if not inside.any():
            return None
        row = self.rows[start:stop][inside] - rows.start
        flat = row * (columns.stop - columns.start) + column[inside] - columns.start
        return torch.from_numpy(flat).to(self.device), torch.from_numpy(self.order[start:stop][inside]).to(self.device)


def whole(anchors: int, candidates: int) -> Tile:
    """Return one tile of all pairs."""
    return Tile(0, slice(0, anchors), slice(0, candidates), (anchors, candidates), False, None)


def cut(
    anchors: int, candidates: int, height: int, width: int, halved: bool, excluded: Listing | None
) -> tuple[Tile, ...]:
    """Cut all pairs into tiles.

    Args:
        anchors: the number of anchors.
        candidates: the number of candidates.
        height: how many anchors are in a tile.
        width: how many candidates are in a tile.
        halved: whether the anchors are the candidates and tiles below the diagonal are left out.
        excluded: pairs that never count.
    """
    tiles: list[Tile] = []
    for start in range(0, anchors, height):
        rows = slice(start, min(start + height, anchors))
        first, edges = 0, []
        if halved:
            edges, first = [(start, rows.stop)], rows.stop
        edges += [(left, min(left + width, candidates)) for left in range(first, candidates, width)]
        for left, right in edges:
            columns = slice(left, right)
            inside = None if excluded is None else excluded.places(rows, columns)
            positions = None if inside is None else inside[0]
            shape = (rows.stop - start, right - left)
            tiles.append(Tile(len(tiles), rows, columns, shape, halved and left != start, positions))
    return tuple(tiles)


def edges(anchors: int, candidates: int, most: int) -> tuple[int, int]:
    """Return the height and width of tiles of at most that edge, such that none of them is a narrow rest."""
    height, width = (
        8 * math.ceil(count / math.ceil(count / most) / 8) if count else 1 for count in (anchors, candidates)
    )
    return height, width


class Buffers:
    """Matrices by name that tiles use one after the other: fresh memory for each tile costs more than its sums."""

    def __init__(self, cells: int, like: Tensor) -> None:
        self.cells = cells
        self.like = like
        self.pool: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, int]], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Return the buffer of that name in that shape; what it holds is left over from the tile before."""
        view = self.views.get((name, shape))
        if view is None:
            if name not in self.pool:
                self.pool[name] = self.like.new_empty(self.cells)
            view = self.views[name, shape] = self.pool[name][: shape[0] * shape[1]].view(shape)
        return view
