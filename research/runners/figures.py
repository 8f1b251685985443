"""The figures of studies with a runner of their own, drawn on `antipodes.evaluation.figures`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antipodes.evaluation.figures import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    ORANGE,
    RED,
    finish,
    new_figure,
    shared_legend,
)
from antipodes.evaluation.maps import MARKERS
from antipodes.studies.definition import Study
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mutual_information_figure(study: Study, lines: Sequence[Line], truth: float) -> Figure:
    """Left the estimates over w with the paper's; right those of all variants, by whether their bound is valid."""
    figure = new_figure(4.8, study.title)
    left, right = figure.subplots(1, 2)
    estimates = {line.variant: line for line in lines if line.score == "estimate"}
    balls = {100 * options.get("low", 0.0): name for name, options in study.variants.items() if _is_ball(study, name)}
    places = range(len(balls))
    left.axhline(truth, color="black", linestyle="--", linewidth=1.2, label=f"truth, {truth:.5f}")
    means = [estimates[name].mean for name in balls.values()]
    errors = [estimates[name].deviation or 0.0 for name in balls.values()]
    left.errorbar(places, means, errors, color=BLUE, marker="o", capsize=3, label="critic on fresh data")
    fitted = {line.variant: line.mean for line in lines if line.score == "estimate on its own points"}
    left.plot(places, [fitted[n] for n in balls.values()], color=GREY, marker="s", label="critic on its own points")
    for entry in study.paper:
        if "Table" in entry.source:
            published = [entry.scores.get(name, {}).get("estimate") for name in balls.values()]
            found = [(place, value) for place, value in zip(places, published, strict=True) if value is not None]
            left.plot(*zip(*found, strict=True), color=ORANGE, marker="^", linestyle=":", label="paper")
    left.set_yscale("symlog", linthresh=1e-5, linscale=0.5)
    left.set_yticks([0, 1e-5, 1e-4, 1e-3, 1e-2], ["0", "1e-5", "1e-4", "0.001", "0.01"])
    left.minorticks_off()
    left.set_xticks(list(places), ["NCE" if not w else f"{w:g}" for w in balls])
    finish(left, "negatives above the w-th percentile", "w", "information, nats (linear below 1e-5)", columns=2)

    valid = {line.variant: line.mean for line in lines if line.score == "bound valid"}
    names = list(estimates)
    validity = {
        "all": (GREEN, "o", "bound valid with every seed"),
        "some": (ORANGE, "D", "with some"),
        "none": (RED, "X", "with none"),
    }
    for place, name in enumerate(reversed(names)):
        colour, marker, _ = validity["all" if valid[name] == 1 else "some" if valid[name] else "none"]
        line = estimates[name]
        right.errorbar(line.mean, place, xerr=line.deviation or 0.0, color=colour, marker=marker, capsize=3)
    right.axvline(truth, color="black", linestyle="--", linewidth=1.2)
    for colour, marker, label in validity.values():
        right.plot([], [], color=colour, marker=marker, linestyle="", label=label)
    right.set_yticks(range(len(names)), list(reversed(names)), fontsize=8.5)
    right.set_xscale("symlog", linthresh=0.01, linscale=0.7)
    right.set_xticks([0, 0.01, 0.1, 1], ["0", "0.01", "0.1", "1"])
    right.minorticks_off()
    finish(right, "all variants, and the truth (dashed)", "information, nats (linear below 0.01)", "", columns=3)
    return figure


def label_recovery_figure(study: Study, lines: Sequence[Line], rates: Sequence[str]) -> Figure:
    """Accuracy over the share of flipped labels: of the labels, of the network on its crops, and on fresh ones."""
    figure = new_figure(4.6, study.title)
    panels = figure.subplots(1, 3, sharey=True)
    for axes, score in zip(panels, ("refined labels", "network, train", "network, test"), strict=True):
        for number, variant in enumerate(study.variants):
            found = {line.score: line for line in lines if line.variant == variant}
            points = [found[f"{score}, {rate} flipped"] for rate in rates if f"{score}, {rate} flipped" in found]
            axes.errorbar(
                [f"{rate}" for rate in rates][: len(points)],
                [point.mean for point in points],
                [point.deviation or 0.0 for point in points],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle="--" if variant == study.baseline else "-",
                zorder=3 if variant == study.baseline else 2,  # in front: other lines coincide with it
                markersize=4,
                capsize=2,
                label=variant,
            )
        finish(
            axes,
            f"{score} (alpha 0: as given)" if axes is panels[0] else score,
            "labels flipped",
            "accuracy, %" if axes is panels[0] else "",
            columns=0,
        )
    shared_legend(figure, panels, columns=4)
    return figure


def _is_ball(study: Study, variant: str) -> bool:
    """Whether a variant leaves out none of the most similar candidates and is trained as all."""
    common = study.variants[study.baseline]
    return {key: value for key, value in study.variants[variant].items() if key != "low"} == common


def variance_figure(study: Study, lines: Sequence[Line]) -> Figure:
    """A panel each for the variance of the gradient, that of the estimate (both as logarithms), and the bias."""
    panels = ("variance of the gradient", "variance of Z", "bias")
    figure = new_figure(1.4 + 0.3 * len(study.variants), study.title)
    row = figure.subplots(1, len(panels), sharey=True)
    variants = list(study.variants)
    for axes, score in zip(row, panels, strict=True):
        found = {line.variant: line for line in lines if line.score == score}
        for place, variant in enumerate(variants):
            if variant in found:
                line = found[variant]
                colour = ORANGE if variant == study.baseline else BLUE
                low = min(line.deviation or 0.0, 0.9 * abs(line.mean))  # a logarithm has no room for less than nothing
                style: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 5, "capsize": 2}
                axes.errorbar(line.mean, place, xerr=[[low], [line.deviation or 0.0]], **style)
        finish(axes, score, "nats" if score == "bias" else "", "", columns=0)
        if score != "bias":
            axes.set_xscale("log")
    row[0].set_yticks(range(len(variants)), variants, fontsize=8.5)
    row[0].set_ylim(len(variants) - 0.4, -0.6)
    return figure


def duplicates_figure(study: Study, lines: Sequence[Line]) -> Figure:
    """Precision, recall and F1 of every detector, a dot for each; the best F1 of one threshold as a line."""
    figure = new_figure(1.4 + 0.32 * len(study.variants), study.title)
    axes = figure.subplots()
    variants = list(study.variants)
    styles = {
        "precision": (BLUE, "o"),
        "recall": (ORANGE, "s"),
        "f1": (GREEN, "D"),
        "best f1 of one threshold": (GREY, "|"),
    }
    for score, (colour, marker) in styles.items():
        found = {line.variant: line for line in lines if line.score == score}
        for place, variant in enumerate(variants):
            if variant in found:
                line = found[variant]
                label = "F1" if score == "f1" else score.replace("f1", "F1")
                axes.errorbar(
                    line.mean,
                    place,
                    xerr=line.deviation or 0.0,
                    color=colour,
                    marker=marker,
                    markersize=11 if marker == "|" else 5,
                    linestyle="",
                    capsize=2,
                    label=label if place == 0 else None,
                )
    axes.set_yticks(range(len(variants)), variants, fontsize=8.5)
    axes.set_ylim(len(variants) - 0.4, -0.6)
    finish(axes, "of injected copies, mean and deviation over seeds", "%", "", columns=4)
    return figure
