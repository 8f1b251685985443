"""Samples as tiles of a grid of images: the image, its label or caption, and whether a flag on it is right."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.evaluation import figures

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
