"""Maps of a run's features in two dimensions: at its end, over its epochs, and of several runs in comparison.

The first half computes them, from runs; the second half draws them, from plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.data.dataset import subset
from antipodes.evaluation.figures import COLOURS, GREY, new_figure
from antipodes.methods import Method
from antipodes.pages.plane import have_spread
from antipodes.pairs import normalise
from antipodes.runs.folder import Run
from antipodes.runs.snapshots import Snapshot, load_snapshots, pseudo_labels, sample
from antipodes.runs.towers import tower_features

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAP_SAMPLES = 2000
MAPS_SHOWN = 4  # epochs in a figure


def feature_map_figure(method: Method, data: Samples, progress: float, seed: int) -> Figure:
    """Draw the encoder's features in two dimensions, coloured by label and by IFND's pseudo labels."""
    ids = sample(len(data), MAP_SAMPLES, seed)
    features = normalise(tower_features(method, subset(data, ids)))
    points, how = planar(features, seed)
    panels = [true_panel(data, ids)]
    if pseudo := pseudo_labels(method, ids, progress):
        panels.append(pseudo_panel(pseudo, features))
    images = data.fetch(ids) if data.labels is None else None
    return coloured_map_figure(points, f"Features of {len(ids)} images of {data.name}, {how}", panels, images)


def epoch_maps(run: Run, data: Samples, seed: int) -> Figure | None:
    """Draw the features of the same images after several epochs; return None if the run kept no snapshots."""
    chosen = _some_snapshots(run)
    if not chosen:
        return None
    columns, how = _columns(chosen, seed)
    rows = [[true_panel(data, snapshot.ids) for snapshot in chosen]]
    if any(snapshot.pseudo_labels for snapshot in chosen):
        rows.append([pseudo_panel(snapshot.pseudo_labels, snapshot.features.float()) for snapshot in chosen])
    title = f"Features of {len(chosen[0].ids)} images of {data.name}, {how}, from epoch to epoch"
    return maps_figure(title, columns, rows)


def compared_epochs_figure(runs: Sequence[tuple[str, Run]], data: Samples, seed: int) -> Figure | None:
    """Draw the features of the same images after several epochs, with a row for every run that kept snapshots.

    Returns None if fewer than two did.
    """
    found = {name: chosen for name, run in runs if (chosen := _some_snapshots(run))}
    if len(found) < 2:
        return None
    rows, how = {}, ""
    for name, chosen in found.items():
        rows[name], how = _columns(chosen, seed)
    first = next(iter(found.values()))[0]
    title = f"Features of {len(first.ids)} images of {data.name}, {how}, from epoch to epoch"
    return rows_figure(title, rows, true_panel(data, first.ids))


def _some_snapshots(run: Run) -> list[Snapshot]:
    """Return the first snapshot of a run, the last, and others evenly between them."""
    snapshots = load_snapshots(run)
    places = torch.linspace(0, len(snapshots) - 1, min(MAPS_SHOWN, len(snapshots))).round().int().tolist()
    return [snapshots[place] for place in places]


def _columns(chosen: Sequence[Snapshot], seed: int) -> tuple[list[MapColumn], str]:
    """Return a map of every snapshot, each starting from the previous one, and how they were computed."""
    columns, last, how = [], None, ""
    for snapshot in chosen:
        points, how = planar(snapshot.features.float(), seed, last)
        columns.append(MapColumn(f"epoch {snapshot.epoch}" if snapshot.epoch else "before training", points))
        last = points if snapshot.epoch else None  # the map of an untrained encoder is no useful start
    return columns, how


def compared_maps_figure(
    methods: Sequence[tuple[str, Method]], data: Samples, progress: Sequence[float], seed: int
) -> Figure:
    """Draw the features of the same images under several methods, each with its name, with the same colours."""
    ids = sample(len(data), MAP_SAMPLES, seed)
    some = subset(data, ids)
    columns, below = [], []
    for (name, method), done in zip(methods, progress, strict=True):
        features = normalise(tower_features(method, some))
        points, how = planar(features, seed)
        columns.append(MapColumn(name, points))
        below.append(pseudo_panel(pseudo_labels(method, ids, done), features))
    rows = [[true_panel(data, ids)] * len(columns)]
    if any(bool((panel.classes >= 0).any()) for panel in below):
        rows.append(below)
    return maps_figure(f"Features of {len(ids)} images of {data.name}, {how}", columns, rows)


def planar(features: Tensor, seed: int, start: Tensor | None = None) -> tuple[Tensor, str]:
    """Reduce features (n, F) to two dimensions, (n, 2), and say how: t-SNE after PCA, or PCA without scikit-learn.

    Args:
        features: (n, F).
        seed: Seed of t-SNE.
        start: Points (n, 2) of a similar map of the same samples. t-SNE starts from them, and its result is rotated and
            shifted onto them, so that a sample stays about where it was: rotation, reflection and shift do not matter
            in such a map, and t-SNE drifts as a whole because its step sizes differ between the two coordinates.
    """
    if not have_spread(features):
        return torch.zeros(len(features), 2), "which are all equal, so there is nothing to map"
    centred = (features - features.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        points = centred @ directions[:2].T
        return points if start is None else turned(points, start), "PCA"
    reduced = (centred @ directions[:50].T).float().numpy()
    perplexity = min(30.0, (len(reduced) - 1) / 3)
    options: dict[str, Any] = {"perplexity": perplexity, "random_state": seed}
    if start is not None:  # the start is sorted already, and exaggeration would scatter its points again
        options |= {"init": start.float().numpy(), "early_exaggeration": 1.0}
    points = torch.from_numpy(TSNE(**options).fit_transform(reduced))
    return points if start is None else turned(points, start), "t-SNE after PCA"


def turned(points: Tensor, others: Tensor) -> Tensor:
    """Rotate or reflect, and shift, points (n, 2) so that they are nearest to others (n, 2)."""
    centred, middle = points - points.mean(0), others.mean(0).to(points)
    left, _, right = torch.linalg.svd(centred.T @ (others.to(points) - middle))
    result: Tensor = centred @ left @ right + middle
    return result


def true_panel(data: Samples, ids: Tensor) -> Panel:
    """Return the colouring of some samples by the finest labels that fit into a legend."""
    labels, names, level = _few_labels(data)
    classes = torch.full_like(ids, -1) if labels is None else labels[ids]
    return Panel(f"{level} labels" if labels is not None else "no labels", classes, names)


def pseudo_panel(labels_by_clusters: dict[int, Tensor], features: Tensor) -> Panel:
    """Return the colouring by the coarsest pseudo labels (m,) of samples with features (m, F).

    A centroid is shown at the sample that is most similar to the mean of the cluster's samples.
    """
    if not labels_by_clusters:
        return Panel("no pseudo labels yet", torch.full((len(features),), -1), {})
    clusters, labels = min(labels_by_clusters.items())
    centroids = torch.full((clusters,), -1)
    for number in labels.unique().tolist():
        if number >= 0:
            members = (labels == number).nonzero()[:, 0]
            centroids[number] = members[(features[members] @ features[members].mean(0)).argmax()]
    share = 100 * (labels >= 0).float().mean().item()
    return Panel(f"{clusters} pseudo labels, {share:.0f} % accepted", labels, {}, "not accepted", centroids)


def _few_labels(data: Samples) -> tuple[Tensor | None, dict[int, str], str]:
    """Return the finest labels that fit into a legend; if there are none, the finest labels without names."""
    for labels, classes, level in (
        (data.labels, data.classes, "true"),
        (data.coarse_labels, data.coarse_classes, "coarse"),
    ):
        if labels is not None and int(labels.max()) < MOST_CLASSES:
            numbers = [number for number in labels.unique().tolist() if number >= 0]
            return labels, {number: classes[number] if classes else f"label {number}" for number in numbers}, level
    return data.labels, {}, "true"


MARKERS = "o^sDvP*X"  # another marker for each further ten classes
MOST_CLASSES = 20  # classes in a legend, at most
THUMBNAILS = 16  # thumbnails along a side of a map without labels
FEW = 0.01  # share of points on each side that may lie outside the map's frame


class MapColumn(NamedTuple):
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


def maps_figure(title: str, columns: Sequence[MapColumn], rows: Sequence[Sequence[Panel]]) -> Figure:
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


def rows_figure(title: str, rows: Mapping[str, Sequence[MapColumn]], panel: Panel) -> Figure:
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
