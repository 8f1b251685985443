"""Curves over epochs as SVG, in the page's own colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 28, 30
COLOURS = 8


def draw(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], order: Sequence[str]) -> str:
    """One drawing: a line for each name, coloured by the name's place in `order`; the title is above.

    Returns:
        SVG text in which every string is escaped.

    Raises:
        ValueError: if there is no point to draw.
    """
    from markupsafe import Markup, escape

    points = [point for line in lines.values() for point in line if math.isfinite(point[1])]
    if not points:
        raise ValueError(f"there is nothing to draw for {title}")
    across, up = _scale([x for x, _ in points]), _scale([y for _, y in points])
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="heading" x="{LEFT}" y="16">{escape(title)}</text>',
    ]
    for tick in _ticks(*up):
        y = _down(tick, up)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(*across, whole=True):
        x = _right(tick, across)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    for name, line in lines.items():
        colour = order.index(name) % COLOURS
        kept = [(x, y) for x, y in line if math.isfinite(y)]
        path = " ".join(f"{_right(x, across):.1f},{_down(y, up):.1f}" for x, y in kept)
        if len(kept) > 1:
            parts.append(f'<polyline class="line c{colour}" points="{path}"/>')
        for x, y in kept if len(kept) <= 60 else kept[-1:]:
            tip = escape(f"{name}: {y:.4g} at epoch {x:g}")
            parts.append(
                f'<circle class="dot c{colour}" cx="{_right(x, across):.1f}" cy="{_down(y, up):.1f}" r="2.6">'
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


def _right(x: float, scale: tuple[float, float]) -> float:
    return LEFT + (x - scale[0]) / (scale[1] - scale[0]) * (WIDTH - LEFT - RIGHT)


def _down(y: float, scale: tuple[float, float]) -> float:
    return HEIGHT - BOTTOM - (y - scale[0]) / (scale[1] - scale[0]) * (HEIGHT - TOP - BOTTOM)
