"""Figures of thresholds, flags and their quality, from plain numbers (`map_figures.py` draws maps).

matplotlib is imported when a figure is drawn. Figures use a canvas of their own, so pyplot and the user's backend are
not changed. They are sized for 900 pixels. Line styles, markers and signs repeat what colours show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from antipodes.files import MARK, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, DOTS = 9.0, 100  # inches, dots per inch
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC3311", "#BBBBBB"
COLOURS = ["#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499", "#222222"]
MOST_POINTS = 2000  # points in a scatter plot, at most: more would hide each other


class Thresholds(NamedTuple):
    """Thresholds (n,) by name, such as learned, each with its mean absolute error to the true ones (n,)."""

    title: str
    truth: Tensor
    found: Mapping[str, tuple[Tensor, float]]


class ImageTile(NamedTuple):
    """An image (3, H, W) uint8 with a caption; `right` gives it a green or red frame, None no frame."""

    image: Tensor
    caption: str
    right: bool | None = None


def new_figure(height: float, title: str) -> Figure:
    """Return an empty figure with a canvas that draws into memory.

    Raises:
        ValueError: if matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError("pictures need matplotlib: pip install '.[plots]'") from error
    figure = Figure(figsize=(WIDTH, height), dpi=DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=12)
    return figure


def save(figure: Figure, file: Path, file_format: str) -> None:
    """Write a figure to a file, whole or not at all."""
    key = "Software" if file_format == "png" else "Creator"
    with replacing(file) as temporary:
        figure.savefig(temporary, format=file_format, metadata={key: MARK})


def thresholds_figure(parts: Sequence[Thresholds]) -> Figure:
    """Draw a row for each policy part: the distribution of thresholds, and each threshold against the true one."""
    figure = new_figure(
        4.0 * len(parts), "Thresholds and the quantiles they stand for, on views augmented as in training"
    )
    rows: Any = figure.subplots(len(parts), 2, squeeze=False)
    for (left, right), part in zip(rows, parts, strict=True):
        known = {name: (values[~values.isnan()], error) for name, (values, error) in part.found.items()}
        everything = torch.cat([part.truth, *(values for values, _ in known.values())])
        low, high = everything.min().item(), everything.max().item()
        margin = 0.03 * (high - low) or 0.01
        edges = torch.linspace(low - margin, high + margin, 51).numpy()
        shown = min(len(part.truth), MOST_POINTS)
        some = torch.arange(shown) * len(part.truth) // shown
        left.hist(part.truth.numpy(), bins=edges, color=GREY, label="dataset quantile (truth)")
        for name, (values, error) in reversed(known.items()):  # the learned thresholds are drawn last, on top
            colour, width, marker = (BLUE, 2.2, "o") if name == "learned" else (ORANGE, 1.4, "x")
            label = f"{name}, MAE {error:.3f}"
            left.hist(values.numpy(), bins=edges, histtype="step", color=colour, linewidth=width, label=label)
            points = torch.stack((part.truth, part.found[name][0]))[:, some].numpy()
            right.scatter(*points, s=10, color=colour, marker=marker, linewidths=0.7, alpha=0.5, label=name)
        right.plot(edges[[0, -1]], edges[[0, -1]], color="black", linestyle="--", linewidth=1, label="equal")
        finish(left, part.title, "cosine similarity", "samples", columns=2)
        finish(right, f"a point for each of {shown} samples", "dataset quantile (truth)", "threshold")
    return figure


def flagged_figure(epochs: Sequence[float], shares: Sequence[float], alphas: Mapping[str, float]) -> Figure:
    """Draw the share of flagged candidates over epochs, in percent, and the share alpha that the policy targets."""
    figure = new_figure(3.6, "Candidates flagged as false negatives")
    axes = figure.subplots()
    _curve(axes, epochs, shares, BLUE, "-", "flagged")
    for (name, alpha), style in zip(alphas.items(), ("--", ":", "-."), strict=False):
        axes.axhline(100 * alpha, color="black", linestyle=style, linewidth=1.2, label=f"alpha of {name}")
    finish_epochs(axes, "", "share of candidates, %")
    return figure


def without_empty_precisions(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return an epoch's line of metrics.jsonl without precisions of no flags, which are logged as 0."""
    nothing = [f"{level}precision" for level in ("", "coarse_") if _flags_nothing(line, level)]
    return {name: value for name, value in line.items() if name not in nothing}


def _flags_nothing(line: Mapping[str, Any], level: str) -> bool:
    """Return True if no pair was flagged in the steps of an epoch that were scored by labels of a level.

    A ring has no flagged share; then the recall decides. If the epoch has flags but its scored steps have none, the
    mean precision over anchors shows it: an anchor without a flag counts as 1.
    """
    if not line.get("flagged_share", line.get("recall")):
        return True
    return line.get(f"{level}precision") == 0 and line.get(f"{level}anchor_precision") == 1


def flag_quality_figure(lines: Sequence[Mapping[str, Any]], levels: Mapping[str, str]) -> Figure:
    """Draw precision, recall and F1, and the rates over anchors, by epoch; `levels` maps a prefix to its name."""
    figure = new_figure(4.2, "Flags judged by labels")
    left, right = figure.subplots(1, 2)
    epochs = [line["epoch"] for line in lines]
    panels = ((left, ("precision", "recall", "f1")), (right, ("mtpr", "mtnr")))
    for axes, names in panels:
        for (prefix, level), style in zip(levels.items(), ("-", "--"), strict=False):
            for name, colour in zip(names, (BLUE, ORANGE, GREEN), strict=False):
                label = (name if len(name) > 4 else name.upper()) + level
                _curve(
                    axes,
                    epochs,
                    [without_empty_precisions(line).get(prefix + name) for line in lines],
                    colour,
                    style,
                    label,
                )
    columns = 2 if len(levels) > 1 else 3
    finish_epochs(left, "over all pairs", "%", columns)
    finish_epochs(right, "true positive and negative rate, mean over anchors", "%", columns)
    return figure


def flags_figure(
    rows: Sequence[Sequence[Sequence[ImageTile]]],
    columns: int,
    framed: bool,
    names: Sequence[str] = (),
    lines: int = 0,
) -> Figure:
    """Draw a grid of images with a row for each anchor: the anchor first, then blocks of the images it flags.

    Args:
        rows: For each anchor its own tile as a block of one, then a block for each policy.
        columns: Tiles in a block, at most.
        framed: True if right and wrong flags have frames.
        names: Names of the blocks, if there are several.
        lines: Caption lines below every image in addition to two.
    """
    key = ": green ✓ same label, red ✗ another" if framed else ""
    figure = new_figure(0.6 + (1.32 + 0.12 * lines) * len(rows), f"Anchors, and what their views flag{key}")
    blocks = len(rows[0]) - 1
    widths = [1.0] + blocks * [0.15, *[1.0] * columns]  # a gap before every block
    grid: Any = figure.subplots(len(rows), len(widths), squeeze=False, gridspec_kw={"width_ratios": widths})
    for number, (cells, (anchor, *flagged)) in enumerate(zip(grid, rows, strict=True)):
        for axes in cells:
            axes.set_axis_off()
        _show(cells[0], anchor[0])
        for block, tiles in enumerate(flagged):
            start = 2 + block * (columns + 1)
            for axes, tile in zip(cells[start : start + columns], tiles, strict=False):
                _show(axes, tile)
            if names and number == 0:
                cells[start].set_title(names[block], fontsize=9, loc="left")
    return figure


def _show(axes: Axes, tile: ImageTile) -> None:
    axes.set_axis_on()
    axes.imshow(tile.image.permute(1, 2, 0).numpy(), interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(tile.caption, fontsize=7, labelpad=3)
    if tile.right is not None:
        colour, sign = (GREEN, "✓") if tile.right else (RED, "✗")
        axes.spines[:].set(color=colour, linewidth=3)
        corner: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontweight": "bold"}
        box = {"boxstyle": "square,pad=0.1", "facecolor": colour, "edgecolor": "none"}
        axes.text(0.99, 0.99, sign, color="white", fontsize=10, bbox=box, **corner)


def _curve(
    axes: Axes, epochs: Sequence[float], shares: Sequence[float | None], colour: str, style: str, label: str
) -> None:
    percent = [float("nan") if share is None else 100 * share for share in shares]
    axes.plot(epochs, percent, color=colour, linestyle=style, marker="o", markersize=3, label=label)


def finish_epochs(axes: Axes, title: str, y: str, columns: int = 3) -> None:
    """Finish axes over epochs as `finish` does, with whole epochs along x and y starting at 0."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    finish(axes, title, "epoch", y, columns)


def finish(axes: Axes, title: str, x: str, y: str, columns: int = 3) -> None:
    """Set titles, a light grid, and a legend with `columns` columns below the axes; 0 draws no legend."""
    axes.set_title(title, fontsize=10)
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if columns:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=8.5, frameon=False)


def shared_legend(figure: Figure, panels: Any, columns: int = 5) -> None:
    """Draw one legend for all panels below them."""
    handles: dict[str, Any] = {}
    for axes in panels:
        found, labels = axes.get_legend_handles_labels()
        handles |= {label: handle for label, handle in zip(labels, found, strict=True) if label not in handles}
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "fontsize": 8.5, "frameon": False}
    figure.legend(list(handles.values()), list(handles), **place)
