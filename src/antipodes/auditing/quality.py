"""The quality of photos: blank, dark, bright, blurred, odd in size or shape, little information, grey among colour.

Each issue has a score in [0, 1] that is low where a photo has the fault, a bound below which it is reported, and a
reason in words. The scores follow cleanvision's definitions (percentiles of brightness, entropy, ratio of the sides)
except for blur, which is measured where a photo has edges, so that a sharp photo of a plain wall is not blurred.

1. `measure` computes a few numbers of one photo while it is decoded for other reasons.
2. `Quality` turns the numbers of all photos into scores; size and colour are compared with the other photos.
3. `Quality.issues` lists the photos whose score is below the bound, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

NUMBERS = ("width", "height", "low", "high", "contrast", "entropy", "sharpness", "colour")
"""What `measure` finds out about a photo, in this order."""

_SIDE = 128  # pixels of the longer side of the photo that is measured
_GREY_MOST = 0.1  # the share of grey photos up to which a grey one is odd
_COLOURED = 0.02  # difference of a photo's channels from which it has colours


class Issue(NamedTuple):
    """A photo with a fault: its row, the kind of fault, the score, the bound that it is below, and why."""

    row: int
    kind: str
    score: float
    bound: float
    reason: str


class _Kind(NamedTuple):
    bound: float
    reason: Callable[[Quality, int], str]


@dataclass(frozen=True)
class Quality:
    """The numbers of n photos, each (n,) float32.

    Args:
        width: in pixels.
        height: in pixels.
        low: brightness in [0, 1] that 5 % of the pixels are below.
        high: brightness that 1 % of the pixels are above.
        contrast: standard deviation of the brightness.
        entropy: of the brightness, in bits; at most 8.
        sharpness: change of the slope at the strongest edges from one pixel to the next, as a share of their height.
        colour: mean difference of the largest and the smallest channel.
    """

    width: NDArray[np.float32]
    height: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    contrast: NDArray[np.float32]
    entropy: NDArray[np.float32]
    sharpness: NDArray[np.float32]
    colour: NDArray[np.float32]

    @classmethod
    def of(cls, numbers: NDArray[np.float32]) -> Quality:
        """From the rows (n, 8) that `measure` returns."""
        return cls(*np.ascontiguousarray(numbers.T))

    @cached_property
    def scores(self) -> dict[str, NDArray[np.float32]]:
        """Scores (n,) in [0, 1] by the kind of fault: 1 is without fault."""
        size = np.sqrt(np.maximum(self.width * self.height, 1e-6))
        usual = np.median(size) if len(size) else 1.0
        ratio = np.minimum(self.width, self.height) / np.maximum(np.maximum(self.width, self.height), 1e-6)
        grey = self.colour < _COLOURED
        odd = grey & (grey.mean() <= _GREY_MOST if len(grey) else False)
        found = {
            "blank": self.contrast / (self.contrast + 0.02),
            "dark": self.high,
            "bright": 1 - self.low,
            "blurred": self.sharpness,
            "low information": self.entropy / 8,
            "odd size": np.minimum(size / usual, usual / size),
            "odd ratio": ratio,
            "grey among colour": 1.0 - odd,
        }
        return {kind: score.clip(0, 1).astype(np.float32) for kind, score in found.items()}

    def issues(self) -> list[Issue]:
        """The photos with a fault, by kind, the worst first. Of a blank photo nothing else is said."""
        found = []
        blank = self.scores["blank"] < KINDS["blank"].bound
        for kind, (bound, reason) in KINDS.items():
            score = self.scores[kind]
            bad = score < bound
            if kind not in ("blank", "odd size", "odd ratio"):
                bad &= ~blank
            rows = sorted(np.flatnonzero(bad).tolist(), key=lambda row: (score[row], row))
            found += [Issue(row, kind, float(score[row]), bound, reason(self, row)) for row in rows]
        return found


def _size(quality: Quality, row: int) -> str:
    usual = int(np.median(np.sqrt(quality.width * quality.height)))
    return f"{quality.width[row]:.0f} x {quality.height[row]:.0f} pixels, where {usual} x {usual} is usual"


KINDS = {
    "blank": _Kind(0.1, lambda q, row: f"one grey: its deviation is {255 * q.contrast[row]:.1f} of 255"),
    "dark": _Kind(0.32, lambda q, row: f"99 % of the pixels are darker than {100 * q.high[row]:.0f} % of white"),
    "bright": _Kind(0.05, lambda q, row: f"95 % of the pixels are brighter than {100 * q.low[row]:.0f} % of white"),
    "blurred": _Kind(
        0.18,
        lambda q, row: f"even its strongest edges are soft: {q.sharpness[row]:.2f}, where sharp photos have over 0.3",
    ),
    "low information": _Kind(0.3, lambda q, row: f"{q.entropy[row]:.1f} of 8 bits of brightness"),
    "odd size": _Kind(0.2, _size),
    "odd ratio": _Kind(0.35, lambda q, row: f"{q.width[row]:.0f} x {q.height[row]:.0f} pixels"),
    "grey among colour": _Kind(0.5, lambda q, row: "without colours, where nearly all others have some"),
}
"""Kinds of faults: the bound of the score, and the reason in words."""


def measure(image: Image.Image, width: int, height: int) -> NDArray[np.float32]:
    """The numbers (8,) of a photo, in the order of `NUMBERS`.

    Args:
        image: the photo in RGB, as it is or smaller.
        width: of the photo as it is.
        height: of the photo as it is.

    Example:
        >>> dict(zip(NUMBERS, measure(Image.new("RGB", (40, 30), "white"), 40, 30).tolist()))["low"]
        1.0
    """
    small = reduced(image, _SIDE)
    grey = small.convert("L")
    counts = np.array(grey.histogram(), np.float64)
    shares = counts / counts.sum()
    low, high = np.searchsorted(shares.cumsum(), (0.05, 0.99)) / 255
    levels = np.arange(256) / 255
    contrast = np.sqrt(max(float(shares @ levels**2 - (shares @ levels) ** 2), 0.0))
    entropy = -float(shares[shares > 0] @ np.log2(shares[shares > 0])) + 0.0
    red, green, blue = (np.asarray(channel) for channel in small.split())
    largest, smallest = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    colour = float((largest - smallest).mean()) / 255
    sharpness = _sharpness(np.asarray(grey, np.int16))
    return np.array([width, height, low, high, contrast, entropy, sharpness, colour], np.float32)


def reduced(image: Image.Image, side: int) -> Image.Image:
    """A photo whose longer side has at most `side` pixels."""
    small = image.copy()
    small.thumbnail((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return small


def _sharpness(grey: NDArray[np.int16]) -> float:
    """How much the slope changes at the strongest edges from one pixel to the next, as a share of their height."""
    if min(grey.shape) < 16:
        return 1.0
    found = []
    for picture in (grey, grey.T):
        bend = np.abs(picture[:, 2:] - 2 * picture[:, 1:-1] + picture[:, :-2])
        height = np.abs(picture[:, 8:] - picture[:, :-8])
        found.append((_nearly_highest(bend), _nearly_highest(height)))
    bend, height = (max(each) for each in zip(*found, strict=True))
    return min(bend / height, 1.0) if height > 8 else 1.0


def _nearly_highest(values: NDArray[np.int16]) -> float:
    """The value that 1 % are above."""
    counted = np.bincount(values.ravel()).cumsum()
    return float(np.searchsorted(counted, int(0.99 * values.size), "right"))


assert tuple(each.name for each in fields(Quality)) == NUMBERS
