"""What a run sees in its training data: the pairs that its policy flags, and a map of its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from antipodes.audit.embeddings import Embeddings
from antipodes.audit.findings import FALSE_NEGATIVE, find
from antipodes.audit.photos import Photos, photos_of
from antipodes.data import ImageDataset, Samples
from antipodes.data.dataset import subset
from antipodes.methods import Method
from antipodes.negatives.flags import find_flags
from antipodes.pairs import Pairs, normalise
from antipodes.report.album import Album
from antipodes.report.page import Card, Cell, Gallery, Picture, Section
from antipodes.report.plane import choose, map_of
from antipodes.runs.embedding import embed
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import plain_view


@dataclass
class Seen:
    """Sections of the page, and facts about the data."""

    sections: list[Section] = field(default_factory=list)
    facts: list[tuple[str, Cell]] = field(default_factory=list)


@dataclass(frozen=True)
class _Flag:
    """Two of the samples that were looked at, with their similarity and the threshold, infinite where none is."""

    a: int
    b: int
    similarity: float
    threshold: float


def look(run: Run, name: str, samples: int, shown: int, album: Album) -> Seen:
    """Look at a run's training data with its own eyes.

    Args:
        run: the run, with its last weights.
        name: what the page calls it.
        samples: how many samples are looked at.
        shown: how many pairs are shown.
        album: takes the pictures.
    """
    seen = Seen()
    try:
        method, data = open_method(run)
    except (ValueError, OSError) as error:  # moved data or a run that has not come far: the rest can be shown
        seen.facts.append(("not looked at", str(error)))
        return seen
    seen.facts += _facts(data)
    if not isinstance(data, ImageDataset):
        seen.facts.append(("pictures", f"none, the data has {' and '.join(data.modalities)}"))
        return seen
    rows = torch.from_numpy(choose(len(data), samples))
    part = subset(data, rows)
    view = plain_view(method, data.image_size)
    features = embed(method.backbone(), part, preprocess=view)
    photos = photos_of(data)
    embeddings = _embeddings(features, data, photos, rows)
    pairs, how = _flagged(method, part, rows, embeddings)
    if pairs:
        cards = [_card(pair, embeddings, rows, photos, album, name) for pair in pairs[:shown]]
        labelled = [card.right for card in cards if card.right is not None]
        note = f"{how} {len(pairs):,} pairs of {len(rows):,} samples, the {len(cards):,} most similar are shown."
        if labelled:
            note += f" {100 * sum(labelled) / len(labelled):.0f} % of these have one label."
        seen.sections.append(Gallery(f"Flagged by {name}", cards, note))
    images = album.add_pixels([(name, int(row)) for row in rows], part.fetch(torch.arange(len(rows))))
    seen.sections.append(map_of(f"Map of {name}", embeddings, np.arange(len(rows)), images, "Point at one to see it."))
    return seen


def _facts(data: Samples) -> list[tuple[str, Cell]]:
    """What was found and what was skipped."""
    facts: list[tuple[str, Cell]] = [("data", data.name), ("samples", len(data))]
    if data.labels is not None:
        facts.append(("classes", len(data.labels[data.labels >= 0].unique())))
    skipped: Sequence[tuple[str, str]] = getattr(data, "skipped", ())
    facts.append(("skipped files", len(skipped)))
    facts += [(f"skipped {file}", why) for file, why in skipped[:10]]
    return facts


def _embeddings(features: Tensor, data: ImageDataset, photos: Photos, rows: Tensor) -> Embeddings:
    paths = tuple(photos.paths[row] for row in rows.tolist())
    labels = None if data.labels is None else data.labels[rows].numpy()
    return Embeddings(features.numpy(), paths, labels, data.classes)


def _flagged(method: Method, part: ImageDataset, rows: Tensor, embeddings: Embeddings) -> tuple[list[_Flag], str]:
    """What the run's policy flags among some samples, or without a policy what an audit of its features does."""
    direction, policy = next(iter(method.policies()), (None, None))
    tower = None if direction is None else method.anchor_tower(direction)
    if policy is not None and tower is not None and tower == method.candidate_tower(str(direction)):
        view = plain_view(method, part.image_size)
        vectors = normalise(embed(method.evaluated(tower, head=True), part, preprocess=view))
        pairs = Pairs(vectors, rows, torch.ones(len(rows)))
        try:
            if (look := method.objectives()[str(direction)].look) is not None:
                pairs = replace(pairs, guide=look(pairs))
            flags = find_flags(pairs, policy.judge(pairs, 1.0, learn=False))
        except ValueError:  # a policy that needs a guide, or more than embeddings
            flags = None
        if flags is not None:
            bounds = flags.thresholds[flags.rules, flags.anchors]
            found = _strongest(flags.anchors, flags.candidates, flags.similarities, bounds)
            return found, f"{type(policy).__name__} calls these false negatives, judged on plain images:"
    findings = find(embeddings)
    likely = [
        _Flag(pair.a, pair.b, pair.similarity, pair.threshold) for pair in findings.pairs if pair.kind == FALSE_NEGATIVE
    ]
    return likely, "An audit of the features calls these likely false negatives:"


def _strongest(anchors: Tensor, candidates: Tensor, similarities: Tensor, thresholds: Tensor) -> list[_Flag]:
    """Flags, the most similar first, each pair once."""
    found: dict[tuple[int, int], _Flag] = {}
    for place in similarities.argsort(descending=True, stable=True).tolist():
        a, b = int(anchors[place]), int(candidates[place])
        key = (min(a, b), max(a, b))
        found.setdefault(key, _Flag(a, b, float(similarities[place]), float(thresholds[place])))
    return list(found.values())


def _card(pair: _Flag, embeddings: Embeddings, rows: Tensor, photos: Photos, album: Album, name: str) -> Card:
    pictures = []
    for place in (pair.a, pair.b):
        row = int(rows[place])
        image = album.add((name, "large", row), lambda row=row: photos.image(row))  # type: ignore[misc]
        pictures.append(Picture(image, embeddings.paths[place], embeddings.class_of(place)))
    text = f"similarity {pair.similarity:.3f}"
    if pair.threshold < torch.inf:
        text += f", threshold {pair.threshold:.3f}"
    right = None
    if embeddings.labels is not None:
        first, second = embeddings.labels[pair.a], embeddings.labels[pair.b]
        right = bool(first == second) if first >= 0 and second >= 0 else None
    return Card("false negative", pictures, round(pair.similarity, 6), text, right)
