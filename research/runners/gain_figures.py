"""Figures of gains: over the precision of an oracle whose precision is set, and of every variant of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antipodes.evaluation.figures import BLUE, GREEN, GREY, ORANGE, RED, finish, new_figure, shared_legend
from antipodes.studies.definition import Study
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TREATMENTS = {
    "eliminate": (BLUE, "o", "dropped"),
    "attract": (ORANGE, "s", "pulled"),
    "refine": (GREEN, "^", "refined"),
}
ERRORS = {"chance": "wrong flags by chance", "similar": "wrong flags alike, as a detector's"}


def surface_figure(study: Study, lines: Sequence[Line]) -> Figure:
    """Gain over the precision of flags, a line for each treatment, with detectors of today where they lie.

    A panel for each kind of error. Only variants of the first recall are joined.
    """
    figure = new_figure(4.6, study.title)
    panels: Any = figure.subplots(1, len(ERRORS), sharey=True)
    score = lines[0].score
    gains = {line.variant: line for line in lines if line.score == score and line.difference is not None}
    precision = {line.variant: line.mean for line in lines if line.score == "flags precision"}
    for axes, (errors, title) in zip(panels, ERRORS.items(), strict=True):
        axes.axhline(0, color="black", linewidth=1.2)
        for treatment, (colour, marker, label) in TREATMENTS.items():
            points = _points(study, gains, treatment, errors)
            if points:
                places, means, bars = zip(*points, strict=True)
                style: dict[str, Any] = {"color": colour, "marker": marker, "capsize": 3, "linewidth": 1.8}
                axes.errorbar(places, means, bars, label=f"oracle's flags {label}", **style)
        _detectors(study, axes, gains, precision)
        axes.set_xscale("log")
        axes.set_xticks([5, 10, 20, 40, 70, 100], ["5", "10", "20", "40", "70", "100"])
        axes.minorticks_off()
        words = f"gain in {score}, points" if axes is panels[0] else ""
        finish(axes, title, "precision of the flags, %", words, columns=0)
    shared_legend(figure, panels, columns=3)
    return figure


def _points(study: Study, gains: dict[str, Line], treatment: str, errors: str) -> list[tuple[float, float, float]]:
    """Precision in percent, gain and its standard error of the oracles of a treatment and a kind of error."""
    oracles = {name: options for name, options in study.variants.items() if is_set_oracle(options)}
    recall = next((options["negatives"].get("recall", 1.0) for options in oracles.values()), 1.0)
    points = []
    for variant, options in oracles.items():
        policy = options["negatives"]
        perfect = policy["precision"] == 1  # makes no errors of any kind
        alike = policy.get("errors", "chance") == errors or perfect
        same = options.get("treatment", "eliminate") == treatment and policy.get("recall", 1.0) == recall
        if variant in gains and same and alike:
            line = gains[variant]
            assert line.difference is not None
            points.append((100 * policy["precision"], line.difference, line.error or 0.0))
    return sorted(points)


def _detectors(study: Study, axes: Axes, gains: dict[str, Line], precision: dict[str, float]) -> None:
    """A mark for every variant whose flags need no labels, at the precision that they had."""
    for variant, options in study.variants.items():
        if variant not in gains or variant not in precision or is_set_oracle(options):
            continue
        if options["negatives"]["name"] in ("oracle", "chance"):
            continue
        colour, *_ = TREATMENTS[options.get("treatment", "eliminate")]
        gain = gains[variant].difference
        assert gain is not None
        axes.scatter([precision[variant]], [gain], s=90, color=colour, marker="*", edgecolors="black", zorder=4)
        words: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "ha": "center"}
        axes.annotate(variant, (precision[variant], gain), (0, -14), **words)


def is_set_oracle(options: dict[str, Any]) -> bool:
    """Whether a variant's policy is an oracle whose precision is set."""
    return "precision" in options.get("negatives", {})


def gains_figure(study: Study, lines: Sequence[Line]) -> Figure:
    """The gain of every variant in the first score, with twice its standard error; grey where that reaches zero."""
    score = lines[0].score
    gains = [line for line in lines if line.score == score and line.difference is not None]
    figure = new_figure(1.4 + 0.28 * len(gains), study.title)
    axes: Any = figure.subplots()
    axes.axvline(0, color="black", linewidth=1.2)
    for place, line in enumerate(gains):
        assert line.difference is not None
        bar = 2 * (line.error or 0.0)
        clear = line.error is not None and abs(line.difference) > bar
        colour = GREY if not clear else BLUE if line.difference > 0 else RED
        style: dict[str, Any] = {"color": colour, "marker": "o", "capsize": 3}
        axes.errorbar([line.difference], [place], xerr=[bar], **style)
    axes.set_yticks(range(len(gains)), [_compared(line, study.baseline) for line in gains], fontsize=8.5)
    axes.set_ylim(len(gains) - 0.4, -0.6)
    finish(axes, "", f"difference in {score}, points, with two standard errors", "", columns=0)
    return figure


def _compared(line: Line, baseline: str) -> str:
    return line.variant if line.against == baseline else f"{line.variant} (to {line.against})"
