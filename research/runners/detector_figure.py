"""The figure of the study of detectors: precision and recall over steps, by dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antipodes.evaluation.figures import COLOURS, finish, new_figure, shared_legend
from antipodes.evaluation.maps import MARKERS
from antipodes.studies.definition import Study
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def detector_figure(study: Study, lines: Sequence[Line]) -> Figure:
    """A row of two panels for each dataset: precision, and recall on a logarithmic axis; a curve per detector.

    Variants are called `dataset, detector`.
    """
    from matplotlib.ticker import FuncFormatter

    datasets: dict[str, dict[str, str]] = {}  # data -> detector -> variant
    for variant, options in study.variants.items():
        datasets.setdefault(str(options.get("data", "cifar10")), {})[str(options.get("detector", "own"))] = variant
    figure = new_figure(0.9 + 3.1 * len(datasets), study.title)
    grid: Any = figure.subplots(len(datasets), 2, squeeze=False)
    for row, (data, variants) in zip(grid, datasets.items(), strict=True):
        for axes, score in zip(row, ("precision", "recall"), strict=True):
            for number, (detector, variant) in enumerate(variants.items()):
                curve = _curve(lines, variant, score)
                axes.errorbar(
                    [step for step, _ in curve],
                    [line.mean for _, line in curve],
                    [line.deviation or 0.0 for _, line in curve],
                    color="black" if detector == "chance" else COLOURS[number % len(COLOURS)],
                    marker=None if detector == "chance" else MARKERS[number % len(MARKERS)],
                    linestyle="--" if detector in ("chance", "own") else "-",
                    markersize=4,
                    capsize=2,
                    label=variant.rpartition(", ")[2],
                )
            if score == "recall":
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
            else:
                axes.set_ylim(bottom=0)
            name = next(iter(variants.values())).rpartition(", ")[0] or data
            logarithmic = ", logarithmic" if score == "recall" else ""
            finish(axes, f"{name}: {score}", "step", f"%{logarithmic}", columns=0)
    shared_legend(figure, grid.flat, columns=4)
    return figure


def _curve(lines: Sequence[Line], variant: str, score: str) -> list[tuple[int, Line]]:
    """The lines of a score of a variant by step."""
    prefix = f"{score}, step "
    found = [line for line in lines if line.variant == variant and line.score.startswith(prefix)]
    return sorted(((int(line.score.removeprefix(prefix)), line) for line in found), key=lambda point: point[0])
