"""Pictures of a finished run: its thresholds, its flags over time and in images, a map of its features.

Each picture is a function of a `Subject` that returns a figure, or raises `Skipped` with the reason.
"""

from __future__ import annotations

import copy
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
from antipodes.evaluation.features import embed
from antipodes.evaluation.run import open_method
from antipodes.evaluation.thresholds import batch_quantiles, dataset_quantiles, errors
from antipodes.methods import Method
from antipodes.negatives import FNC, IFND, GloFND, Policy
from antipodes.pairs import Pairs, Rule, normalise
from antipodes.seeding import generator
from antipodes.training.components import plain_view
from antipodes.training.records import read_records
from antipodes.training.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGGED_SHOWN = 8  # images beside an anchor
MAP_SAMPLES = 2000


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
        return [line for line in read_records(self.run.folder) if line["kind"] == "epoch"]

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
        """What the policy judges, (n, D): normalised embeddings of plain images."""
        if len(self.method.channels) > 1:
            raise Skipped("the method has several encoders, this looks at methods with one")
        view = plain_view(self.method, self.data.image_size)
        return normalise(embed(self.method.network, self.data, preprocess=view))


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
    drawn = []
    batch_size = subject.config["batch_size"]
    for part in subject.require_policy().modules():
        if isinstance(part, (GloFND, FNC)):
            truth = dataset_quantiles(subject.embeddings, part.alpha)
            found = {"learned": part.threshold} if isinstance(part, GloFND) else {}
            found["batch quantile"] = batch_quantiles(subject.embeddings, part.alpha, batch_size, subject.seed)
            judged = {name: (values, errors(values, truth)[0]) for name, values in found.items()}
            title = f"{type(part).__name__}, alpha {part.alpha:g}, batches of {batch_size}"
            drawn.append(figures.Thresholds(title, truth, judged))
    if not drawn:
        raise Skipped("the policy has no thresholds, GloFND and FNC do")
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
    policy = copy.deepcopy(subject.require_policy())  # GloFND moves its thresholds when it judges
    order = torch.randperm(len(subject.data), generator=generator("pictures", subject.seed))
    ids = order[: subject.config["batch_size"]]
    pairs = Pairs(subject.embeddings[ids], ids, torch.ones(len(ids)))
    rules = policy.judge(pairs, subject.progress)
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
    ids = torch.randperm(len(data), generator=generator("map", subject.seed))[:MAP_SAMPLES]
    view = plain_view(method, data.image_size)
    points, how = planar(normalise(embed(method.backbone(), subset(data, ids), preprocess=view)), subject.seed)
    labels, names, level = _few_labels(data)
    classes = torch.full_like(ids, -1) if labels is None else labels[ids]
    panels = [figures.Panel(f"{level} labels" if labels is not None else "no labels", classes, names)]
    for part in method.objective.modules():
        if isinstance(part, IFND) and part.fitted_at >= 0:
            coarsest = min(range(len(part.clusters)), key=lambda level: part.clusters[level])
            accepted = part.standing[coarsest, ids] <= part.rate(subject.progress)
            pseudo = part.labels[coarsest, ids].long().masked_fill(~accepted, -1)
            share = 100 * accepted.float().mean().item()
            title = f"{part.clusters[coarsest]} pseudo labels of IFND, {share:.0f} % accepted, others grey"
            panels.append(figures.Panel(title, pseudo, {}))
    return figures.map_figure(points, f"Features of {len(ids)} images of {data.name}, {how}", panels)


def planar(features: Tensor, seed: int) -> tuple[Tensor, str]:
    """Two dimensions of features (n, F), and how they came about: t-SNE after PCA, or PCA without scikit-learn."""
    centred = (features - features.mean(0)).double()
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return centred @ directions[:2].T, "PCA"
    reduced = (centred @ directions[:50].T).float().numpy()
    perplexity = min(30.0, (len(reduced) - 1) / 3)
    return torch.from_numpy(TSNE(perplexity=perplexity, random_state=seed).fit_transform(reduced)), "t-SNE after PCA"


PICTURES: dict[str, Callable[[Subject], Figure]] = {
    "thresholds": thresholds,
    "flagged": flagged,
    "detection": detection,
    "flags": flags,
    "map": feature_map,
}


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
