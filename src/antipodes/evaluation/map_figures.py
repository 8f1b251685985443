"""Figures of two-dimensional maps of features, from plain numbers: coloured points, centroids, thumbnails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.evaluation.figures import COLOURS, GREY, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "o^sDvP*X"  # another marker for each further ten classes
MOST_CLASSES = 20  # classes in a legend, at most
THUMBNAILS = 16  # thumbnails along a side of a map without labels
FEW = 0.01  # share of points on each side that may lie outside the map's frame


class Column(NamedTuple):
    """One of several maps: its points (n, 2) and its title."""

    title: str
    points: Tensor


class Panel(NamedTuple):
    """A colouring of a map.

    `classes` (n,) is -1 for points without a class, which `unplaced` names; `names` are the classes' names in the
    legend, if there is one; `centroids` (k,) are the points nearest to each class's centroid, -1 for none.
    """

    title: str
    classes: Tensor
    names: Mapping[int, str]
    unplaced: str = ""
    centroids: Tensor | None = None


def coloured_map_figure(points: Tensor, title: str, panels: Sequence[Panel], images: Tensor | None = None) -> Figure:
    """Draw points (n, 2) once for each colouring, with a legend of at most MOST_CLASSES names.

    Args:
        points: The position of every sample.
        title: Title of the figure.
        panels: The colourings.
        images: (n, 3, H, W) uint8, drawn instead of grey points if a colouring has no classes.
    """
    figure = new_figure(5.8 if len(panels) > 1 else 7.0, title)
    row: Any = figure.subplots(1, len(panels), squeeze=False)
    for axes, panel in zip(row[0], panels, strict=True):
        if images is not None and not bool((panel.classes >= 0).any()):
            _thumbnails(axes, points, images)
        else:
            _map(axes, points, panel, size=13)
        axes.set_title(panel.title, fontsize=10)
        handles, names = axes.get_legend_handles_labels()
        if names:
            place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01)}
            style: dict[str, Any] = {"fontsize": 7.5, "frameon": False, "markerscale": 1.6, "handletextpad": 0.1}
            axes.legend(handles, names, ncols=4 if len(panels) == 1 else 3, **place, **style)
    return figure


def maps_figure(title: str, columns: Sequence[Column], rows: Sequence[Sequence[Panel]]) -> Figure:
    """Draw several maps in columns and their colourings in rows, with one legend of at most MOST_CLASSES names."""
    figure = new_figure(1.2 + 2.4 * len(rows), title)
    grid: Any = figure.subplots(len(rows), len(columns), squeeze=False)
    for number, (cells, panels) in enumerate(zip(grid, rows, strict=True)):
        for axes, column, panel in zip(cells, columns, panels, strict=True):
            _map(axes, column.points, panel, size=5)
            axes.set_title(column.title if number == 0 else "", fontsize=10)
            axes.set_xlabel(panel.title, fontsize=7.5)
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    if handles:
        place: dict[str, Any] = {"loc": "outside lower center", "title": rows[0][0].title, "title_fontsize": 8}
        figure.legend(
            list(handles.values()), list(handles), **place, ncols=5, fontsize=7.5, frameon=False, markerscale=2
        )
    return figure


def rows_figure(title: str, rows: Mapping[str, Sequence[Column]], panel: Panel) -> Figure:
    """Draw maps over time with a row for each name, all with the same colouring and one legend."""
    figure = new_figure(1.2 + 2.2 * len(rows), title)
    most = max(len(columns) for columns in rows.values())
    grid: Any = figure.subplots(len(rows), most, squeeze=False)
    for cells, (name, columns) in zip(grid, rows.items(), strict=True):
        for axes in cells[len(columns) :]:
            axes.set_axis_off()
        for axes, column in zip(cells, columns, strict=False):
            _map(axes, column.points, panel, size=5)
            axes.set_title(column.title, fontsize=9)
        cells[0].set_ylabel(name, fontsize=9)
    handles, labels = grid[0][0].get_legend_handles_labels()
    if handles:
        place: dict[str, Any] = {"loc": "outside lower center", "title": panel.title, "title_fontsize": 8}
        figure.legend(handles, labels, **place, ncols=5, fontsize=7.5, frameon=False, markerscale=2)
    return figure


def _map(axes: Axes, points: Tensor, panel: Panel, size: float) -> None:
    for number in panel.classes.unique().tolist():
        x, y = points[panel.classes == number].T.numpy()
        known = number >= 0
        colour = COLOURS[number % len(COLOURS)] if known else GREY
        marker = MARKERS[number // len(COLOURS) % len(MARKERS)] if known else "."
        label = panel.names.get(number) if known else panel.unplaced or None
        area = size if known else 2 * size  # matplotlib draws "." at half the width of the others
        axes.scatter(x, y, s=area, color=colour, marker=marker, alpha=0.8, linewidths=0, label=label, zorder=1 + known)
    if panel.centroids is not None:
        places = panel.centroids[panel.centroids >= 0]
        x, y = points[places].T.numpy()
        style: dict[str, Any] = {"marker": "X", "color": "white", "edgecolors": "black", "linewidths": 0.9}
        axes.scatter(x, y, s=6 * size, **style, label="nearest to a centroid", zorder=4)
    _frame(axes, points)


def _thumbnails(axes: Axes, points: Tensor, images: Tensor) -> None:
    """Draw images on a grid over the map, in each cell the one nearest to its middle; empty cells stay empty."""
    (left, right), (low, high) = _limits(points)
    side = max(right - left, high - low) / THUMBNAILS
    cell = ((points - torch.tensor([left, low])) / side).floor()
    offset = ((points - torch.tensor([left, low])) / side - cell - 0.5).square().sum(1)
    whole = torch.tensor([right - left, high - low]) / side - 1  # only thumbnails that lie inside as a whole are shown
    inside = ((cell >= 0) & (cell <= whole + 1e-6)).all(1)
    shown: dict[tuple[int, int], int] = {}
    for number in offset.argsort().tolist():
        place = (int(cell[number, 0]), int(cell[number, 1]))
        if inside[number] and place not in shown:
            shown[place] = number
    for (column, row), number in shown.items():
        x, y = left + column * side, low + row * side
        axes.imshow(images[number].permute(1, 2, 0).numpy(), extent=(x, x + 0.94 * side, y, y + 0.94 * side))
    _frame(axes, points)


def _frame(axes: Axes, points: Tensor) -> None:
    """Remove ticks, because the axes have no meaning, and set limits that a few far points do not stretch."""
    (left, right), (low, high) = _limits(points)
    axes.set(xticks=[], yticks=[])
    # not xlim and ylim, which conflict with the equal aspect
    axes.dataLim.set_points(np.array([[left, low], [right, high]]))
    axes.margins(0)
    axes.set_autoscale_on(True)
    axes.set_aspect("equal", adjustable="datalim")


def _limits(points: Tensor) -> list[tuple[float, float]]:
    """Return limits that include all but a few points, with a margin for whole markers."""
    limits = []
    for values in points.T.double():
        low, high = torch.quantile(values, torch.tensor([FEW, 1 - FEW], dtype=values.dtype)).tolist()
        margin = 0.12 * (high - low) or 1.0
        limits.append(
            (max(low - margin, float(values.min()) - margin / 2), min(high + margin, float(values.max()) + margin / 2))
        )
    return limits
