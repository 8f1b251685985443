"""Maps of a run's features in two dimensions: at its end, over its epochs, and of several runs in comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.data.dataset import subset
from antipodes.evaluation import map_figures
from antipodes.evaluation.map_figures import Column, Panel
from antipodes.methods import Method
from antipodes.pages.plane import have_spread
from antipodes.pairs import normalise
from antipodes.runs.folder import Run
from antipodes.runs.snapshots import Snapshot, load_snapshots, pseudo_labels, sample
from antipodes.runs.towers import tower_features

if TYPE_CHECKING:
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
    return map_figures.coloured_map_figure(
        points, f"Features of {len(ids)} images of {data.name}, {how}", panels, images
    )


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
    return map_figures.maps_figure(title, columns, rows)


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
    return map_figures.rows_figure(title, rows, true_panel(data, first.ids))


def _some_snapshots(run: Run) -> list[Snapshot]:
    """Return the first snapshot of a run, the last, and others evenly between them."""
    snapshots = load_snapshots(run)
    places = torch.linspace(0, len(snapshots) - 1, min(MAPS_SHOWN, len(snapshots))).round().int().tolist()
    return [snapshots[place] for place in places]


def _columns(chosen: Sequence[Snapshot], seed: int) -> tuple[list[Column], str]:
    """Return a map of every snapshot, each starting from the previous one, and how they were computed."""
    columns, last, how = [], None, ""
    for snapshot in chosen:
        points, how = planar(snapshot.features.float(), seed, last)
        columns.append(Column(f"epoch {snapshot.epoch}" if snapshot.epoch else "before training", points))
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
        columns.append(Column(name, points))
        below.append(pseudo_panel(pseudo_labels(method, ids, done), features))
    rows = [[true_panel(data, ids)] * len(columns)]
    if any(bool((panel.classes >= 0).any()) for panel in below):
        rows.append(below)
    return map_figures.maps_figure(f"Features of {len(ids)} images of {data.name}, {how}", columns, rows)


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
        if labels is not None and int(labels.max()) < map_figures.MOST_CLASSES:
            numbers = [number for number in labels.unique().tolist() if number >= 0]
            return labels, {number: classes[number] if classes else f"label {number}" for number in numbers}, level
    return data.labels, {}, "true"
