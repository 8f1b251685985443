"""Pictures of a finished run: its thresholds, its flags over time and in images, maps of its features.

Each picture is a function of a `Subject` that returns a figure, or raises `Skipped` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.data.dataset import subset
from antipodes.evaluation import figures
from antipodes.evaluation.false_negatives import judged_embeddings
from antipodes.evaluation.thresholds import errors, measure
from antipodes.methods import Method
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.pairs import Pairs, Rule, normalise
from antipodes.runs.embedding import embed
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_epochs
from antipodes.runs.snapshots import Snapshot, load_snapshots, pseudo_labels, sample
from antipodes.runs.views import build_augmentation, plain_view
from antipodes.seeding import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGGED_SHOWN = 8  # images beside an anchor
MAP_SAMPLES = 2000
MAPS_SHOWN = 4  # epochs beside each other


class Skipped(Exception):
    """A picture does not apply to a run; the message says why."""


class Picture(NamedTuple):
    """A picture's name, and either its file or the reason why there is none."""

    name: str
    file: Path | None
    reason: str = ""


class Flags(NamedTuple):
    """What one anchor flags: the ids of the samples, most similar first, and their similarities."""

    anchor: int
    ids: list[int]
    similarities: list[float]


@dataclass(frozen=True)
class Subject:
    """A run as the pictures see it.

    Args:
        run: The run.
        method: Its method, with its last weights.
        data: Its training data.
        anchors: How many anchors the grid of flags shows.
        seed: Of the choice of samples.
    """

    run: Run
    method: Method
    data: ImageDataset
    anchors: int = 8
    seed: int = 0

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's configuration."""
        return self.run.config()

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The epoch lines of metrics.jsonl."""
        return read_epochs(self.run.folder)

    @property
    def progress(self) -> float:
        """The share of training that is done, by the epoch lines; 1 where there are none."""
        return min(1.0, self.epochs[-1]["epoch"] / self.config["epochs"]) if self.epochs else 1.0

    def require_policy(self) -> Policy:
        """The run's policy; a picture that asks for it is skipped where there is none."""
        if self.method.objective.negatives is None:
            raise Skipped("the run has no policy, train with --negatives")
        return self.method.objective.negatives

    @cached_property
    def embeddings(self) -> Tensor:
        """What the policy judges, (n, D): embeddings of views as in training, those of the false-negatives protocol."""
        if len(self.method.channels) > 1:
            raise Skipped("the method has several encoders, this looks at methods with one")
        recipe = build_augmentation(self.config["augmentation"], self.data.image_size, self.method.normalised)
        return judged_embeddings(self.method, self.data, recipe, self.seed)


def draw(run: Run, folder: Path, anchors: int = 8, file_format: str = "png", seed: int = 0) -> Iterator[Picture]:
    """Draw every picture that applies to a run into a folder, and tell of each as it is done.

    Raises:
        ValueError: if matplotlib is missing, anchors is below 1, or the run cannot be opened.
    """
    if anchors < 1:
        raise ValueError(f"anchors must be at least 1, got {anchors}: it is the number of rows in the grid of flags")
    figures.new_figure(1.0, "")  # without matplotlib nothing needs to be opened
    subject = Subject(run, *open_method(run), anchors, seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in PICTURES.items():
        try:
            figure = picture(subject)
        except Skipped as reason:
            yield Picture(name, None, str(reason))
            continue
        file = folder / f"{name}.{file_format}"
        figures.save(figure, file, file_format)
        yield Picture(name, file)


def thresholds(subject: Subject) -> Figure:
    """How thresholds, true quantiles and batch quantiles are distributed (GloFND and FNC)."""
    policy, batch_size = subject.require_policy(), subject.config["batch_size"]
    if not any(isinstance(part, (GloFND, FNC)) for part in policy.modules()):
        raise Skipped("the policy has no thresholds, GloFND and FNC do")
    drawn = []
    for part, truth, found in measure(policy, subject.embeddings, batch_size, subject.seed):
        names = {"threshold": "learned", "batch": "batch quantile (FNC)"}
        judged = {names[name]: (found[name], errors(found[name], truth)[0]) for name in names if name in found}
        title = f"{type(part).__name__}, alpha {part.alpha:g}, batches of {batch_size}"
        drawn.append(figures.Thresholds(title, truth, judged))
    return figures.thresholds_figure(drawn)


def flagged(subject: Subject) -> Figure:
    """The share of flagged candidates over epochs."""
    parts = subject.require_policy().modules()
    lines = [line for line in subject.epochs if line.get("flagged_share") is not None]
    if not lines:
        raise Skipped("metrics.jsonl has no epoch with a flagged share")
    alphas = {type(part).__name__: part.alpha for part in parts if isinstance(part, (GloFND, FNC))}
    return figures.flagged_figure([line["epoch"] for line in lines], [line["flagged_share"] for line in lines], alphas)


def detection(subject: Subject) -> Figure:
    """Precision, recall and F1 of the flags over epochs."""
    subject.require_policy()
    if subject.data.labels is None:
        raise Skipped("the data has no labels to judge flags by")
    lines = [line for line in subject.epochs if "precision" in line]
    if not lines:
        raise Skipped("no epoch has a step whose flags were judged, train with a lower --log_every")
    coarse = any("coarse_precision" in line for line in lines)
    return figures.detection_figure(lines, {"": ", fine labels", "coarse_": ", coarse"} if coarse else {"": ""})


def flags(subject: Subject) -> Figure:
    """Anchors with the images they flag most strongly."""
    rows = strongest_flags(subject)
    if not any(row.ids for row in rows):
        raise Skipped(f"the policy flags nothing for {len(rows)} anchors of a batch")
    data, tiles = subject.data, []
    for anchor, ids, similarities in rows:
        shown = ids[:FLAGGED_SHOWN]
        images = data.fetch(torch.tensor([anchor, *shown]))
        row = [figures.Tile(images[0], _name(data, anchor) + f"flags {len(ids)}")]
        for image, other, similarity in zip(images[1:], shown, similarities, strict=False):
            right = None if data.labels is None else _same_label(data.labels, anchor, other)
            row.append(figures.Tile(image, _name(data, other) + f"{similarity:.2f}", right))
        tiles.append(row)
    return figures.flags_figure(tiles, FLAGGED_SHOWN, framed=data.labels is not None)


def strongest_flags(subject: Subject) -> list[Flags]:
    """What the first anchors of a random batch flag among its samples; one flag of several rules is enough."""
    policy = subject.require_policy()
    order = torch.randperm(len(subject.data), generator=generator("pictures", subject.seed))
    ids = order[: subject.config["batch_size"]]
    pairs = Pairs(subject.embeddings[ids], ids, torch.ones(len(ids)))
    rules = policy.judge(pairs, subject.progress, learn=False)
    found = []
    for row in range(min(subject.anchors, len(ids))):
        similarity = pairs.anchors @ pairs.anchors[row]
        chosen = torch.stack([_flags_of(rule, row, similarity) for rule in rules]).any(0)
        chosen[row] = False
        ranked = similarity.masked_fill(~chosen, -torch.inf).argsort(descending=True, stable=True)[: int(chosen.sum())]
        found.append(Flags(int(ids[row]), ids[ranked].tolist(), similarity[ranked].tolist()))
    return found


def feature_map(subject: Subject) -> Figure:
    """The encoder's features in two dimensions, coloured by label and by IFND's pseudo labels."""
    data, method = subject.data, subject.method
    ids = sample(len(data), MAP_SAMPLES, subject.seed)
    view = plain_view(method, data.image_size)
    points, how = planar(normalise(embed(method.backbone(), subset(data, ids), preprocess=view)), subject.seed)
    panels = [_true_panel(data, ids)]
    if pseudo := pseudo_labels(method, ids, subject.progress):
        clusters, labels = min(pseudo.items())
        panels.append(figures.Panel(f"{clusters} pseudo labels of IFND, {_accepted(labels)}", labels, {}))
    return figures.map_figure(points, f"Features of {len(ids)} images of {data.name}, {how}", panels)


def feature_maps(subject: Subject) -> Figure:
    """The features of the same images after several epochs, coloured by label and by IFND's pseudo labels."""
    snapshots = load_snapshots(subject.run)
    if not snapshots:
        raise Skipped("the run kept no snapshots, train with --snapshot_every 10 (or another number of epochs)")
    places = torch.linspace(0, len(snapshots) - 1, min(MAPS_SHOWN, len(snapshots))).round().int().tolist()
    chosen = [snapshots[place] for place in places]  # the first, the last, and as even as can be between them
    columns, last = [], None
    for snapshot in chosen:
        points, how = planar(snapshot.features.float(), subject.seed, last)
        title = f"epoch {snapshot.epoch}" if snapshot.epoch else "before training"
        columns.append(figures.Column(title, points))
        last = points if snapshot.epoch else None  # what is not trained is no start for what is
    rows = [[_true_panel(subject.data, snapshot.ids) for snapshot in chosen]]
    if any(snapshot.pseudo_labels for snapshot in chosen):
        rows.append([_pseudo_panel(snapshot) for snapshot in chosen])
    title = f"Features of {len(chosen[0].ids)} images of {subject.data.name}, {how}, from epoch to epoch"
    return figures.maps_figure(title, columns, rows)


def planar(features: Tensor, seed: int, start: Tensor | None = None) -> tuple[Tensor, str]:
    """Two dimensions of features (n, F), and how they came about: t-SNE after PCA, or PCA without scikit-learn.

    Args:
        features: The features.
        seed: Of t-SNE.
        start: Points (n, 2) of a similar map of the same samples: t-SNE goes on from them, PCA is turned towards them,
            so that a sample stays about where it was.
    """
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
    if start is not None:  # it is sorted already: to exaggerate would throw its points about once more
        options |= {"init": start.float().numpy(), "early_exaggeration": 1.0}
    return torch.from_numpy(TSNE(**options).fit_transform(reduced)), "t-SNE after PCA"


def turned(points: Tensor, others: Tensor) -> Tensor:
    """Points (n, 2) after the rotation or reflection about their mean that brings them nearest to others (n, 2)."""
    centred = points - points.mean(0)
    left, _, right = torch.linalg.svd(centred.T @ (others - others.mean(0)).to(centred))
    result: Tensor = centred @ left @ right
    return result


PICTURES: dict[str, Callable[[Subject], Figure]] = {
    "thresholds": thresholds,
    "flagged": flagged,
    "detection": detection,
    "flags": flags,
    "map": feature_map,
    "maps": feature_maps,
}


def _true_panel(data: ImageDataset, ids: Tensor) -> figures.Panel:
    labels, names, level = _few_labels(data)
    classes = torch.full_like(ids, -1) if labels is None else labels[ids]
    return figures.Panel(f"{level} labels" if labels is not None else "no labels", classes, names)


def _pseudo_panel(snapshot: Snapshot) -> figures.Panel:
    if not snapshot.pseudo_labels:
        return figures.Panel("no pseudo labels yet", torch.full_like(snapshot.ids, -1), {})
    clusters, labels = min(snapshot.pseudo_labels.items())
    return figures.Panel(f"{clusters} pseudo labels, {_accepted(labels)}", labels, {})


def _accepted(labels: Tensor) -> str:
    return f"{100 * (labels >= 0).float().mean().item():.0f} % of them accepted"


def _flags_of(rule: Rule, row: int, similarity: Tensor) -> Tensor:
    """Which candidates a rule calls false negatives of one anchor, (C,) bool."""
    rule = rule.flags()
    flagged = torch.zeros_like(similarity, dtype=torch.bool)
    if rule.ceiling is not None:
        flagged |= similarity > rule.ceiling[row]
    for group in rule.groups:
        flagged |= (group.candidates == group.anchors[row]) & (group.candidates >= 0)
    return flagged


def _same_label(labels: Tensor, first: int, second: int) -> bool:
    return bool(labels[first] == labels[second]) and bool(labels[first] >= 0)


def _name(data: ImageDataset, sample: int) -> str:
    """A sample's label as a line, shortened to the width of an image; nothing where labels are unknown."""
    if data.labels is None:
        return ""
    label = int(data.labels[sample])
    name = data.classes[label] if data.classes is not None and label >= 0 else f"label {label}"
    return (name if len(name) <= 16 else name[:15] + "…") + "\n"


def _few_labels(data: ImageDataset) -> tuple[Tensor | None, dict[int, str], str]:
    """The finest labels that a legend can name; where there are none, the finest, without names."""
    for labels, classes, level in (
        (data.labels, data.classes, "true"),
        (data.coarse_labels, data.coarse_classes, "coarse"),
    ):
        if labels is not None and int(labels.max()) < figures.MOST_CLASSES:
            numbers = [number for number in labels.unique().tolist() if number >= 0]
            return labels, {number: classes[number] if classes else f"label {number}" for number in numbers}, level
    return data.labels, {}, "true"
