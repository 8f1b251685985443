"""Tiles: how the pairs of anchors and candidates are cut into blocks that stay in cache."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BLOCK = 448  # at most, the edge of a tile on a CPU, where a few of them then fit into a core's cache
SMALL_BLOCK = 256  # likewise for few pairs in two directions, whose many blocks would be fresh memory in every call


class Tile(NamedTuple):
    """A block of pairs: some anchors with some candidates.

    Attributes:
        number: its number among the tiles.
        rows: the anchors.
        columns: the candidates.
        shape: how many of both.
        mirrored: whether the tile stands for its mirror image below the diagonal as well.
        excluded: flat positions in the tile of pairs that never count, or None.
    """

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, int]
    mirrored: bool
    excluded: Tensor | None


class Listing:
    """Single pairs, sorted by row, from which every tile takes its own."""

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        self.order = np.argsort(rows.cpu().numpy(), kind="stable")
        self.rows, self.columns = rows.cpu().numpy()[self.order], columns.cpu().numpy()[self.order]
        self.device = rows.device

    def within(self, rows: slice, columns: slice) -> Tensor | None:
        """Return the flat positions of the pairs in a tile, or None if there are none."""
        found = self.places(rows, columns)
        return None if found is None else found[0]

    def places(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        """Return the flat positions of the pairs in a tile and their places in the list, or None."""
        start, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        if start == stop:
            return None
        column = self.columns[start:stop]
        inside = (column >= columns.start) & (column < columns.stop)
        if not inside.any():
            return None
        row = self.rows[start:stop][inside] - rows.start
        flat = row * (columns.stop - columns.start) + column[inside] - columns.start
        return torch.from_numpy(flat).to(self.device), torch.from_numpy(self.order[start:stop][inside]).to(self.device)


def cut(
    anchors: int, candidates: int, height: int, width: int, symmetric: bool, excluded: Listing | None
) -> tuple[Tile, ...]:
    """Cut all pairs into tiles; when the anchors are the candidates, only those on and above the diagonal.

    Args:
        anchors: the number of anchors.
        candidates: the number of candidates.
        height: how many anchors are in a tile.
        width: how many candidates; as many, where they are the anchors.
        symmetric: whether the candidates are the anchors themselves.
        excluded: pairs that never count.
    """
    tiles: list[Tile] = []
    for start in range(0, anchors, height):
        rows = slice(start, min(start + height, anchors))
        first = 0
        edges = []
        if symmetric:
            edges, first = [(start, rows.stop)], rows.stop
        edges += [(left, min(left + width, candidates)) for left in range(first, candidates, width)]
        for left, right in edges:
            columns = slice(left, right)
            inside = None if excluded is None else excluded.within(rows, columns)
            shape = (rows.stop - start, right - left)
            tiles.append(Tile(len(tiles), rows, columns, shape, symmetric and left != start, inside))
    return tuple(tiles)


class Buffers:
    """Tile-sized buffers by name, allocated once per pass: fresh memory for each tile costs more than the sums."""

    def __init__(self, cells: int, like: Tensor) -> None:
        self.cells = cells
        self.like = like
        self.pool: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, int]], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Return the buffer of that name in that shape."""
        view = self.views.get((name, shape))
        if view is None:
            if name not in self.pool:
                self.pool[name] = self.like.new_empty(self.cells)
            view = self.views[name, shape] = self.pool[name][: shape[0] * shape[1]].view(shape)
        return view


class Sliced:
    """A tensor whose slices are made once a pass: making a view takes longer than looking it up."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.views: dict[tuple[int, int, bool], Tensor] = {}

    def __call__(self, where: slice, down: bool = False) -> Tensor:
        """Return the slice; with `down`, of a vector as a column and of a matrix turned over."""
        key = (where.start, where.stop, down)
        view = self.views.get(key)
        if view is None:
            view = self.tensor[where]
            if down:
                view = view[:, None] if view.ndim == 1 else view.T
            self.views[key] = view
        return view
