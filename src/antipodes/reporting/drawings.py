"""Curves over epochs and bars as SVG, in the colours of the page, and the titles of the numbers that they show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 420, 240
RIGHT, TOP, BOTTOM = 16, 8, 30
LETTER = 6.2  # pixels of a letter of a label, at most
SHORT = 26  # letters of a name next to a bar
COLOURS = 8
BUCKETS = 256  # of a line that is thinned; the drawing is not much wider in pixels
_LONGEST_BUCKET = 64  # points that a bucket collects before its extremes are looked for

Point = tuple[float, float]


class Thinned:
    """A line of any number of points, of which a bounded number is kept.

    Points fall into buckets of equally many points; of each the first, the last, the least and the greatest are kept.
    When there are too many buckets, every two become one. So extremes stay, and a short line is kept whole.

    Example:
        >>> line = Thinned()
        >>> for step in range(100_000):
        ...     line.add(step, 7.0 if step == 31_415 else 0.0)
        >>> kept = line.points()
        >>> len(kept) <= 4 * BUCKETS, kept[0], (31_415, 7.0) in kept, kept[-1]
        (True, (0, 0.0), True, (99999, 0.0))
    """

    def __init__(self) -> None:
        self._buckets: list[list[Point]] = []
        self._size, self._in_last = 1, 0

    def add(self, x: float, y: float) -> None:
        """Add the next point; one that is not finite is left out."""
        if not math.isfinite(y):
            return
        if not self._buckets or self._in_last == self._size:
            if len(self._buckets) == BUCKETS:
                pairs = zip(self._buckets[::2], self._buckets[1::2], strict=True)
                self._buckets = [_extremes(first + second) for first, second in pairs]
                self._size *= 2
            self._buckets.append([])
            self._in_last = 0
        self._buckets[-1].append((x, y))
        self._in_last += 1
        if len(self._buckets[-1]) == _LONGEST_BUCKET:
            self._buckets[-1] = _extremes(self._buckets[-1])

    def points(self) -> list[Point]:
        """Return the points that were kept, in their order."""
        return [point for bucket in self._buckets for point in _extremes(bucket)]


def _extremes(points: list[Point]) -> list[Point]:
    """The first, the last, the least and the greatest of some points, in their order."""
    if len(points) <= 4:
        return points
    places = range(len(points))
    kept = {0, len(points) - 1, min(places, key=lambda i: points[i][1]), max(places, key=lambda i: points[i][1])}
    return [points[place] for place in sorted(kept)]


@dataclass(frozen=True)
class Bar:
    """A bar: its name, and a value for every seed; its length is their mean."""

    name: str
    values: Sequence[float]


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Draw percentages as bars from 0, with a line from the least to the greatest value and a dot for every seed.

    Returns:
        A caption and SVG text, in which every string is escaped.
    """
    from markupsafe import Markup, escape

    names = [bar.name if len(bar.name) <= SHORT else bar.name[: SHORT - 1] + "…" for bar in bars]
    left = 12 + LETTER * max(map(len, names))
    room = WIDTH - left - 12 - LETTER * len("100.0 ± 10.0")
    most = max(max(bar.values) for bar in bars) or 1.0
    height = 26 * len(bars) + 8
    parts = [
        f'<figcaption class="heading">{escape(title)}</figcaption>',
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">',
    ]
    for number, (bar, name) in enumerate(zip(bars, names, strict=True)):
        mean, middle = statistics.mean(bar.values), 26 * number + 17
        spread = f" ± {statistics.stdev(bar.values):.1f}" if len(bar.values) > 1 else ""
        end = left + room * mean / most
        colour = f"c{number % COLOURS}"
        parts.append(f'<text class="tick" x="{left - 8:.1f}" y="{middle + 4}" text-anchor="end">{escape(name)}')
        parts.append(f"<title>{escape(bar.name)}</title></text>")
        parts.append(
            f'<rect class="bar {colour}" x="{left:.1f}" y="{middle - 8}" width="{end - left:.1f}" height="16"/>'
        )
        low, high = (left + room * extreme / most for extreme in (min(bar.values), max(bar.values)))
        if len(bar.values) > 1:
            parts.append(f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
            parts += [
                f'<circle class="seed" cx="{left + room * value / most:.1f}" cy="{middle}" r="2.6"/>'
                for value in bar.values
            ]
        parts.append(f'<text class="value" x="{max(end, high) + 7:.1f}" y="{middle + 4}">{mean:.1f}{spread}</text>')
    return Markup("".join([*parts, "</svg>"]))


def draw_lines(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], order: Sequence[str]) -> str:
    """Draw a line for each name, coloured by the name's place in `order`; the title is a caption above.

    Returns:
        A caption and SVG text, in which every string is escaped.

    Raises:
        ValueError: if there is no point to draw.
    """
    from markupsafe import Markup, escape

    points = [point for line in lines.values() for point in line if math.isfinite(point[1])]
    if not points:
        raise ValueError(f"there is nothing to draw for {title}")
    across, up = _scale([x for x, _ in points]), _scale([y for _, y in points])
    labels = {tick: f"{tick:g}" for tick in _ticks(*up)}
    left = 14 + LETTER * max(map(len, labels.values()))  # wide enough for the longest label
    parts = [
        f'<figcaption class="heading">{escape(title)}</figcaption>',
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
    ]
    for tick, label in labels.items():
        y = _down(tick, up)
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6:.1f}" y="{y + 3.5:.1f}" text-anchor="end">{label}</text>')
    for tick in _ticks(*across, whole=True):
        x = _right(tick, across, left)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    for name, line in lines.items():
        colour = order.index(name) % COLOURS
        kept = [(_right(x, across, left), _down(y, up), x, y) for x, y in line if math.isfinite(y)]
        path = " ".join(f"{place:.1f},{height:.1f}" for place, height, _, _ in kept)
        if len(kept) > 1:
            parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
        for place, height, x, y in kept if len(kept) <= 60 else kept[-1:]:
            tip = escape(f"{name}: {y:.4g} at epoch {x:g}")
            parts.append(
                f'<circle class="dot c{colour}" cx="{place:.1f}" cy="{height:.1f}" r="2.6">'
                f"<title>{tip}</title></circle>"
            )
    return Markup("".join([*parts, "</svg>"]))


def _scale(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    edge = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return low - edge, high + edge


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Four to eight round numbers between two, or fewer where only whole ones are wanted.

    Example:
        >>> _ticks(0.9, 3.1, whole=True)
        [1, 2, 3]
    """
    step: float = 10 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 6)
    step = max(1, round(step)) if whole else step
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]


def _right(x: float, scale: tuple[float, float], left: float) -> float:
    return left + (x - scale[0]) / (scale[1] - scale[0]) * (WIDTH - left - RIGHT)


def _down(y: float, scale: tuple[float, float]) -> float:
    return HEIGHT - BOTTOM - (y - scale[0]) / (scale[1] - scale[0]) * (HEIGHT - TOP - BOTTOM)


TITLES = {
    "loss": "loss",
    "knn": "kNN accuracy while training, %",
    "flagged_share": "share of candidates flagged",
    "precision": "precision of the flags",
    "recall": "recall of the flags",
    "f1": "F1 of the flags",
    "threshold": "mean threshold",
    "loss_above_chance": "loss above that of chance",
    "positive_similarity": "similarity of positives",
    "negative_similarity": "mean similarity of candidates",
    "kept_per_anchor": "negatives kept per anchor",
    "pulled_per_anchor": "candidates pulled per anchor",
    "without_negatives": "share of anchors without negatives",
    "mtpr": "mean true positive rate of the flags",
    "mtnr": "mean true negative rate of the flags",
    "anchor_precision": "precision of the flags, mean over anchors",
    "anchor_recall": "recall of the flags, mean over anchors",
    "anchor_f1": "F1 of the flags, mean over anchors",
    "hard_same_label": "share of hard negatives with the anchor's label",
    "refined_mass": "label mass off the positive",
    "refined_mass_same_class": "share of that mass on the anchor's class",
    "refined_p": "weight of the soft labels p",
    "refined_q": "weight of the soft labels q",
    "temperature": "temperature",
    "at_floor": "share of anchors at the floor of the corrected sum",
    "ring_outer": "share of candidates in the outer ball",
    "positive_term": "loss of positives",
    "negative_term": "loss of negatives",
    "negative_distance": "mean distance of negatives",
    "lr": "learning rate",
    "learning_rate": "learning rate",
    "images_per_second": "images per second",
}
"""The numbers that training records, in the order of the page's drawings, with their titles."""


def importance(number: str) -> tuple[bool, int]:
    """Return a key that sorts numbers of training: the order of `TITLES`, coarse labels last.

    Example:
        >>> sorted(["lr", "coarse_precision", "mine", "loss", "precision"], key=importance)
        ['loss', 'precision', 'lr', 'mine', 'coarse_precision']
    """
    name = number.rpartition("/")[2]
    plain = name.removeprefix("coarse_")
    places = list(TITLES)
    return plain != name, places.index(plain) if plain in TITLES else len(places)


def title_of(number: str) -> str:
    """What to call a number of training; a number without a title is called by its own name.

    Example:
        >>> title_of("image_to_text/coarse_f1"), title_of("my_score")
        ('F1 of the flags, by coarse labels, image to text', 'my score')
    """
    direction, _, name = number.rpartition("/")
    plain = name.removeprefix("coarse_")
    title = TITLES.get(plain, plain.replace("_", " "))
    title += ", by coarse labels" if plain != name else ""
    return title + (f", {direction.replace('_', ' ')}" if direction else "")
