"""A study as figures: every seed of every variant, and how right the variants' flags were over epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from antipodes.evaluation import figures
from antipodes.studies.report import important_scores
from antipodes.studies.statistics import Histories

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = tuple[list[float], list[float]]
"""Epochs and values."""

MEASURES = ("precision", "recall", "f1")
DETECTION = "Precision, recall and F1 of the flags over epochs"
OVER_EPOCHS = "Over epochs, mean over seeds"
FAINT = "#888888"
MOST_CURVES = 8  # with more, only the variants with several seeds are drawn
MOST_ROWS = 24  # likewise
LONGEST = 30  # characters of a variant's name


def draw_figures(
    report: Mapping[str, Any], histories: Histories | None, folder: Path, name: str, curves: Sequence[str] = ()
) -> dict[str, str]:
    """Write the figures of a study into a folder.

    Args:
        report: Of `study_report`.
        histories: What the runs logged; None where that of some is gone, so that what was drawn of all of them stays.
        folder: Where to.
        name: Of the study; NAME.png shows its scores, NAME-detection.png its flags, if labels judged any, and
            NAME-curves.png the numbers in `curves`.
        curves: Numbers of the epochs' lines to draw over time.

    Returns:
        Caption -> file.

    Raises:
        ValueError: if matplotlib is missing.
    """
    figures.save(scores_figure(report), folder / f"{name}.png", "png")
    written = {"The first scores of every variant, seed by seed": f"{name}.png"}
    if histories is None:
        return written | drawn_over_epochs(folder, name)
    flags = {variant: curve for variant, seeds in histories.items() if (curve := detection_curves(seeds))}
    if flags:
        single = {variant for variant in flags if len(histories[variant]) == 1}
        figures.save(detection_figure(flags, single), folder / f"{name}-detection.png", "png")
        written[DETECTION] = f"{name}-detection.png"
    logged = {number: found for number in curves if (found := mean_curves(histories, number))}
    if logged:
        figures.save(curves_figure(report["title"], logged), folder / f"{name}-curves.png", "png")
        written[OVER_EPOCHS] = f"{name}-curves.png"
    return written


def drawn_over_epochs(folder: Path, name: str) -> dict[str, str]:
    """The figures over epochs that are there from an earlier report of a study; caption -> file."""
    files = {DETECTION: f"{name}-detection.png", OVER_EPOCHS: f"{name}-curves.png"}
    return {caption: file for caption, file in files.items() if (folder / file).is_file()}


def scores_figure(report: Mapping[str, Any]) -> Figure:
    """A panel for each of the first scores: variants below each other, a dot per seed, a bar at the mean.

    A variant with a single seed is fainter, and its dot hollow: its spread is not known.
    """
    scores = important_scores((line["score"] for line in report["summary"]), report["records"])
    shown = {line["variant"] for line in report["summary"] if line["score"] in scores}
    variants = [variant for variant in report["results"] if variant in shown]
    if len(variants) > MOST_ROWS:  # single seeds are the first to go
        several = [variant for variant in variants if len(report["results"][variant]) > 1]
        variants = several or variants[:MOST_ROWS]
    figure = figures.new_figure(1.5 + 0.25 * len(variants), report["title"])
    grid: Any = figure.subplots(1, len(scores), squeeze=False, sharey=True)
    for axes, score in zip(grid.flat, scores, strict=False):
        for place, variant in enumerate(variants):
            values = [found[score] for found in report["results"][variant].values() if score in found]
            if variant == report["baseline"] and values:
                label = f"mean of {variant}"
                axes.axvline(fmean(values), color=figures.ORANGE, linestyle="--", linewidth=1.2, label=label)
            if len(values) == 1:
                single: dict[str, Any] = {"facecolors": "none", "edgecolors": FAINT, "clip_on": False}
                axes.scatter(values, [place], s=26, **single, label="a single seed")
            elif values:
                axes.scatter(
                    values, [place] * len(values), s=16, color=figures.BLUE, alpha=0.6, clip_on=False, label="a seed"
                )
                mean: dict[str, Any] = {"s": 150, "color": "black", "linewidths": 1.8, "marker": "|", "clip_on": False}
                axes.scatter([fmean(values)], [place], **mean, label="mean over seeds")
        figures.finish(axes, score, "", "", columns=0)
        axes.title.set_fontsize(9)
    names = [variant if len(variant) <= LONGEST else variant[: LONGEST - 1] + "…" for variant in variants]
    grid[0][0].set_yticks(range(len(variants)), names)  # of all, as they share it
    grid[0][0].set_ylim(len(variants) - 0.4, -0.6)
    for axes in grid[:, 0]:
        for text, variant in zip(axes.get_yticklabels(), variants, strict=True):
            text.set(fontsize=8.5, color=FAINT if len(report["results"][variant]) == 1 else "black")
    figures.shared_legend(figure, grid.flat)
    return figure


def detection_curves(seeds: Mapping[int, Any]) -> dict[str, Curve]:
    """Precision, recall and F1 in percent over epochs, means over the seeds that have them; empty without flags.

    The precision of an epoch in which no seed flagged anything is NaN: the curve begins where there is one.
    """
    curves = {}
    for measure in MEASURES:
        by_epoch: dict[float, list[float]] = {}
        for lines in seeds.values():
            for line in lines:
                found, known = (
                    by_epoch.setdefault(line["epoch"], []),
                    figures.without_empty_precisions(line).get(measure),
                )
                found += [] if known is None else [100 * known]
        if any(by_epoch.values()):
            epochs = sorted(by_epoch)
            curves[measure] = (epochs, [fmean(by_epoch[epoch] or [math.nan]) for epoch in epochs])
    return curves if any(curves.get("recall", ([], []))[1]) else {}


def detection_figure(curves: Mapping[str, Mapping[str, Curve]], single: set[str]) -> Figure:
    """A panel each for precision, recall and F1 over epochs, a curve per variant; single seeds are dashed and faint.

    A variant that is always right, as one that reads the labels, is named in the title only: it would press the others
    against the axis. Where there are too many to tell apart, single seeds are left out.
    """
    perfect = [variant for variant, by_measure in curves.items() if _always_right(by_measure)]
    drawn = [variant for variant in curves if variant not in perfect] or list(curves)
    if len(drawn) > MOST_CURVES:
        drawn = [variant for variant in drawn if variant not in single] or drawn[:MOST_CURVES]
    names = ", ".join(perfect) if len(perfect) < 3 else f"{len(perfect)} variants"
    remark = f" (100 % throughout: {names})" if 0 < len(perfect) < len(curves) else ""
    figure = figures.new_figure(3.3 + 0.2 * ((len(drawn) + 2) // 3), f"Flags judged by labels, mean over seeds{remark}")
    panels: Any = figure.subplots(1, len(MEASURES))
    for axes, measure in zip(panels, MEASURES, strict=True):
        for place, variant in enumerate(drawn):
            if measure not in curves[variant]:
                continue
            style: dict[str, Any] = {"color": figures.COLOURS[place % len(figures.COLOURS)]}
            style |= {"linestyle": ":", "alpha": 0.85} if variant in single else {"linestyle": "-"}
            label = f"{variant}, a single seed" if variant in single else variant
            axes.plot(*curves[variant][measure], **style, linewidth=1.5, label=label)
        figures.finish_epochs(axes, "F1" if measure == "f1" else measure, "", columns=0)
    panels[0].set_ylabel("%")
    figures.shared_legend(figure, panels, columns=3)
    return figure


def mean_curves(histories: Histories, number: str) -> dict[str, Curve]:
    """A logged number over epochs, variant by variant, means over the seeds that have it; empty if none has."""
    curves = {}
    for variant, seeds in histories.items():
        by_epoch: dict[float, list[float]] = {}
        for line in (line for lines in seeds.values() for line in lines):
            value, epoch = line.get(number), line.get("epoch")
            if value is not None and epoch is not None:
                by_epoch.setdefault(epoch, []).append(value)
        if by_epoch:
            epochs = sorted(by_epoch)
            curves[variant] = (epochs, [fmean(by_epoch[epoch]) for epoch in epochs])
    return curves


def curves_figure(title: str, logged: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """A panel for every logged number: a curve per variant over epochs."""
    variants = list(dict.fromkeys(variant for curves in logged.values() for variant in curves))
    figure = figures.new_figure(3.6 + 0.2 * ((len(variants) + 2) // 3), title)
    panels: Any = figure.subplots(1, len(logged), squeeze=False)[0]
    for axes, (number, curves) in zip(panels, logged.items(), strict=True):
        for variant, curve in curves.items():
            place = variants.index(variant)
            style: dict[str, Any] = {"color": figures.COLOURS[place % len(figures.COLOURS)]}
            style["linestyle"] = ("-", "--", ":", "-.")[place // len(figures.COLOURS) % 4]
            axes.plot(*curve, **style, linewidth=1.5, label=variant)
        figures.finish(axes, number.replace("_", " "), "epoch", "", columns=0)
    figures.shared_legend(figure, panels, columns=3)
    return figure


def _always_right(curves: Mapping[str, Curve]) -> bool:
    return all(value > 99.9 or math.isnan(value) for _, values in curves.values() for value in values)
