"""Pictures of a finished run: its thresholds, its flags over time and in images, maps of its features.

Each picture is a function of a `PicturedRun`, or of several to compare. It returns a figure, or raises `Skipped` with
the reason why it does not apply."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.evaluation import figures, maps
from antipodes.evaluation.compared import (
    ComparedEmbeddings,
    compared_embeddings,
    errors,
    judge_frozen,
    mean_share,
    policy_thresholds,
)
from antipodes.functional.masks import flagged_block
from antipodes.methods import Method
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_epochs
from antipodes.runs.views import build_augmentation
from antipodes.seeding import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure


CAPTION_WIDTH, CAPTION_LINES = 16, 4  # characters and lines of a caption below an image


class AnchorFlags(NamedTuple):
    """The samples that one anchor flags, most similar first, and their similarities."""

    anchor: int
    ids: list[int]
    similarities: list[float]


def flagged_tiles(data: Samples, flags: AnchorFlags, most: int) -> list[figures.ImageTile]:
    """Return the first of an anchor's flagged samples as tiles, with frames that say whether the flags are right."""
    tiles = []
    for other, similarity in zip(flags.ids[:most], flags.similarities, strict=False):
        right = None if data.labels is None else _same_label(data.labels, flags.anchor, other)
        tiles.append(tile(data, other, f"{similarity:.2f}", right))
    return tiles


def tile(data: Samples, sample: int, words: str, right: bool | None = None) -> figures.ImageTile:
    """Return a sample as an image with its label, some words, and its caption if it has one."""
    written = f"{words}\n{_wrapped(_text(data, sample))}" if data.captions(sample) else words
    return figures.ImageTile(data.fetch(torch.tensor([sample]))[0], _name(data, sample) + written, right)


def _text(data: Samples, sample: int) -> str:
    """Return the caption by which flags were computed: the row's own, without a random draw."""
    return str(data.inputs(torch.tensor([sample]))["text"][0])


def _wrapped(text: str) -> str:
    """Wrap a caption to at most CAPTION_LINES lines of an image's width."""
    lines = textwrap.wrap(text, CAPTION_WIDTH, max_lines=CAPTION_LINES, placeholder=" …")
    return "\n".join(lines)


def caption_lines(data: Samples) -> int:
    """Return the number of caption lines below every image of a dataset."""
    return CAPTION_LINES if len(data) and data.captions(0) else 0


def _same_label(labels: Tensor, first: int, second: int) -> bool:
    return bool(labels[first] == labels[second]) and bool(labels[first] >= 0)


def _name(data: Samples, sample: int) -> str:
    """Return a sample's label as a line, shortened to the width of an image; empty if labels are unknown."""
    if data.labels is None:
        return ""
    label = int(data.labels[sample])
    name = data.classes[label] if data.classes is not None and label >= 0 else f"label {label}"
    return (name if len(name) <= 16 else name[:15] + "…") + "\n"


FLAGGED_SHOWN = 8  # flagged images of an anchor


class Skipped(Exception):
    """A picture does not apply to a run; the message gives the reason."""


class DrawnPicture(NamedTuple):
    """A picture's name, and either its file or the reason why it was skipped."""

    name: str
    file: Path | None
    reason: str = ""


@dataclass(frozen=True)
class PicturedRun:
    """A run with everything that pictures need.

    Args:
        run: The run.
        method: Its method, with the weights of the last checkpoint.
        data: Its training data.
        anchors: Number of anchors in the grid of flags.
        seed: Seed of the choice of samples.
    """

    run: Run
    method: Method
    data: Samples
    anchors: int = 8
    seed: int = 0

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's configuration."""
        return self.run.config

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The lines of epochs in metrics.jsonl."""
        return read_epochs(self.run.folder)

    @property
    def progress(self) -> float:
        """The share of training that is done, by the lines of epochs; 1 if there are none."""
        return min(1.0, self.epochs[-1]["epoch"] / self.config["epochs"]) if self.epochs else 1.0

    def require_policy(self, direction: str | None = None) -> Policy:
        """Return the policy of a direction, by default the first; without a policy the picture is skipped."""
        policies = {name: each.negatives for name, each in self.method.pair_losses().items()}
        found = [policies[name] for name in ([direction] if direction else policies) if policies[name] is not None]
        if not found or found[0] is None:
            raise Skipped("the run has no policy, train with --negatives")
        return found[0]

    @property
    def name(self) -> str:
        """A short name of the run: method and policy."""
        policy = self.config["negatives"]["name"]
        return str(self.config["method"]["name"]) + ("" if policy == "none" else f" + {policy}")

    @cached_property
    def judged(self) -> ComparedEmbeddings:
        """The embeddings that the policy compares, on views as in training."""
        return self.judged_in(None)

    def judged_in(self, direction: str | None) -> ComparedEmbeddings:
        """Return the embeddings that the policy of a direction compares."""
        recipe = build_augmentation(self.config["augmentation"], self.data.image_size, self.method.normalised)
        return compared_embeddings(self.method, self.data, recipe, self.seed, direction)


def draw_pictures(
    run: Run, folder: Path, anchors: int = 8, file_format: str = "png", seed: int = 0
) -> Iterator[DrawnPicture]:
    """Draw every picture that applies to a run into a folder; yield each when it is done.

    Raises:
        ValueError: if matplotlib is missing, anchors is below 1, or the run cannot be opened.
    """
    _check(anchors)
    subject = PicturedRun(run, *open_method(run), anchors, seed)
    yield from _draw({name: partial(picture, subject) for name, picture in PICTURES.items()}, folder, file_format)


def draw_compared_pictures(
    runs: Sequence[Run], folder: Path, anchors: int = 8, file_format: str = "png", seed: int = 0
) -> Iterator[DrawnPicture]:
    """Draw several runs of the same data in comparison: maps of their features, and the images that they flag.

    Raises:
        ValueError: as `draw_pictures`, or if the runs were trained on different data.
    """
    _check(anchors)
    subjects = [PicturedRun(run, *open_method(run), anchors, seed) for run in runs]
    for other in subjects[1:]:
        if other.data.fingerprint != subjects[0].data.fingerprint:
            raise ValueError(
                f"{other.run.folder} was trained on other data than {subjects[0].run.folder}: "
                "compared pictures need the same images"
            )
    yield from _draw({name: partial(picture, subjects) for name, picture in COMPARED.items()}, folder, file_format)


def _check(anchors: int) -> None:
    if anchors < 1:
        raise ValueError(f"anchors must be at least 1, got {anchors}: it is the number of rows in the grid of flags")
    figures.new_figure(1.0, "")  # raises without matplotlib, before a run is opened


def _draw(pictures: Mapping[str, Callable[[], Figure]], folder: Path, file_format: str) -> Iterator[DrawnPicture]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        try:
            figure = picture()
        except Skipped as reason:
            yield DrawnPicture(name, None, str(reason))
            continue
        file = folder / f"{name}.{file_format}"
        figures.save(figure, file, file_format)
        yield DrawnPicture(name, file)


def thresholds(subject: PicturedRun) -> Figure:
    """Draw the distributions of thresholds, true quantiles and batch quantiles (GloFND and FNC)."""
    policy, batch_size = subject.require_policy(), subject.config["batch_size"]
    if not any(isinstance(part, (GloFND, FNC)) for part in policy.modules()):
        raise Skipped("the policy has no thresholds, GloFND and FNC do")
    drawn = []
    for part, truth, found in policy_thresholds(policy, subject.judged, batch_size, subject.seed):
        names = {"threshold": "learned", "batch": "batch quantile (FNC)"}
        judged = {
            names[name]: (found[name].flatten(), errors(found[name], truth)[0]) for name in names if name in found
        }
        title = f"{type(part).__name__}, alpha {mean_share(part.alpha):g}, batches of {batch_size}"
        drawn.append(figures.Thresholds(title, truth, judged))
    return figures.thresholds_figure(drawn)


def flagged(subject: PicturedRun) -> Figure:
    """Draw the share of flagged candidates over epochs."""
    parts = subject.require_policy().modules()
    lines = [line for line in subject.epochs if line.get("flagged_share") is not None]
    if not lines:
        raise Skipped("metrics.jsonl has no epoch with a flagged share")
    alphas = {type(part).__name__: mean_share(part.alpha) for part in parts if isinstance(part, (GloFND, FNC))}
    return figures.flagged_figure([line["epoch"] for line in lines], [line["flagged_share"] for line in lines], alphas)


def detection(subject: PicturedRun) -> Figure:
    """Draw precision, recall and F1 of the flags over epochs."""
    subject.require_policy()
    if subject.data.labels is None:
        raise Skipped("the data has no labels, by which flags are scored")
    lines = [line for line in subject.epochs if "precision" in line]
    if not lines:
        raise Skipped("no epoch has a step whose flags were scored, train with a lower --log_every")
    coarse = any("coarse_precision" in line for line in lines)
    return figures.flag_quality_figure(lines, {"": ", fine labels", "coarse_": ", coarse"} if coarse else {"": ""})


def flags(subject: PicturedRun) -> Figure:
    """Draw anchors with the images that they flag; for images with captions, a block for each direction."""
    directions = [name for name, each in subject.method.pair_losses().items() if each.negatives is not None]
    several = len(directions) > 1 and bool(subject.data.captions(0))
    asked: list[str | None] = [*directions] if several else [None]
    found = [strongest_flags(subject, direction=name) for name in asked]
    if not any(row.ids for rows in found for row in rows):
        raise Skipped(f"the policy flags nothing for {len(found[0])} anchors of a batch")
    data, columns = subject.data, FLAGGED_SHOWN // len(found)
    tiles = []
    for flagged in zip(*found, strict=True):
        counts = " / ".join(str(len(flags.ids)) for flags in flagged)
        blocks = [flagged_tiles(data, flags, columns) for flags in flagged]
        tiles.append([[tile(data, flagged[0].anchor, f"flags {counts}")], *blocks])
    names = [name.replace("_", " ") for name in directions] if several else []
    return figures.flags_figure(tiles, columns, data.labels is not None, names, caption_lines(data))


def strongest_flags(
    subject: PicturedRun, batch_size: int | None = None, direction: str | None = None
) -> list[AnchorFlags]:
    """Return the flags of the first anchors of a random batch, most similar first; a flag of any rule counts."""
    policy = subject.require_policy(direction)
    judged = subject.judged if direction is None else subject.judged_in(direction)
    order = torch.randperm(len(subject.data), generator=generator("pictures", subject.seed))
    ids = order[: batch_size or subject.config["batch_size"]]
    pairs = judged.pairs(ids)
    samples = subject.data.sample_ids(ids)
    rules = judge_frozen(policy, pairs, subject.progress)
    found = []
    for row in range(min(subject.anchors, len(ids))):
        similarity = pairs.keys()[0] @ pairs.anchors[row]
        guided = None if pairs.guide is None else (pairs.guide.keys() @ pairs.guide.anchors[row])[None]
        place = slice(row, row + 1)
        flags = [flagged_block(rule, similarity[None], place, guide_similarities=guided)[0] for rule in rules]
        chosen = torch.stack(flags).any(0)
        chosen &= samples != samples[row]
        ranked = similarity.masked_fill(~chosen, -torch.inf).argsort(descending=True, stable=True)[: int(chosen.sum())]
        found.append(AnchorFlags(int(ids[row]), ids[ranked].tolist(), similarity[ranked].tolist()))
    return found


def feature_map(subject: PicturedRun) -> Figure:
    """Draw the encoder's features in two dimensions, coloured by label and by IFND's pseudo labels."""
    return maps.feature_map_figure(subject.method, subject.data, subject.progress, subject.seed)


def feature_maps(subject: PicturedRun) -> Figure:
    """Draw the features of the same images after several epochs, coloured by label and by IFND's pseudo labels."""
    figure = maps.epoch_maps(subject.run, subject.data, subject.seed)
    if figure is None:
        raise Skipped("the run kept no snapshots, train with --snapshot_every 10 (or another number of epochs)")
    return figure


def compared_maps(subjects: Sequence[PicturedRun]) -> Figure:
    """Draw the features of the same images under several runs."""
    named = [(subject.name, subject.method) for subject in subjects]
    first = subjects[0]
    return maps.compared_maps_figure(named, first.data, [subject.progress for subject in subjects], first.seed)


def compared_epochs(subjects: Sequence[PicturedRun]) -> Figure:
    """Draw the features of the same images over epochs, with a row for every run."""
    figure = maps.compared_epochs_figure(
        [(subject.name, subject.run) for subject in subjects], subjects[0].data, subjects[0].seed
    )
    if figure is None:
        raise Skipped("fewer than two of the runs kept snapshots, train with --snapshot_every 10")
    return figure


def compared_flags(subjects: Sequence[PicturedRun]) -> Figure:
    """Draw the same anchors with the images that the policies of several runs flag for them."""
    judging = [subject for subject in subjects if any(subject.method.policies())]
    if len(judging) < 2:
        raise Skipped("fewer than two of the runs have a policy")
    size = min(subject.config["batch_size"] for subject in judging)
    found = [strongest_flags(subject, size) for subject in judging]
    if not any(flags.ids for rows in found for flags in rows):
        raise Skipped("no policy flags anything for these anchors")
    data, columns = judging[0].data, max(2, FLAGGED_SHOWN // len(judging))
    rows = []
    for flagged in zip(*found, strict=True):
        blocks = [flagged_tiles(data, flags, columns) for flags in flagged]
        anchor = flagged[0].anchor
        counts = " / ".join(str(len(flags.ids)) for flags in flagged)
        rows.append([[tile(data, anchor, f"flag {counts}")], *blocks])
    names = [subject.name for subject in judging]
    return figures.flags_figure(rows, columns, data.labels is not None, names, caption_lines(data))


PICTURES: dict[str, Callable[[PicturedRun], Figure]] = {
    "thresholds": thresholds,
    "flagged": flagged,
    "detection": detection,
    "flags": flags,
    "map": feature_map,
    "maps": feature_maps,
}

COMPARED: dict[str, Callable[[Sequence[PicturedRun]], Figure]] = {
    "compared-maps": compared_maps,
    "compared-epochs": compared_epochs,
    "compared-flags": compared_flags,
}
