"""What a run finds in its training data: the pairs that its policy flags, and a map of its features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import FALSE_NEGATIVE, audit_vectors
from antipodes.auditing.page import map_of_vectors
from antipodes.auditing.photos import Photos, photos_of
from antipodes.data import Samples
from antipodes.data.dataset import subset
from antipodes.evaluation.compared import compared_embeddings, judge_frozen
from antipodes.methods import Method
from antipodes.negatives.flags import find_flags
from antipodes.pages.page import Card, Cell, Facts, Gallery, Picture, Section, path_ends, short_paths
from antipodes.pages.picture_store import PictureStore
from antipodes.pages.plane import choose
from antipodes.pairs import Pairs
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import plain_view

SHOWN_FIRST = 9  # cards of a gallery that are shown before more are asked for


@dataclass
class Seen:
    """Sections of flagged pairs and of maps, and facts about the data."""

    flagged: list[Section] = field(default_factory=list)
    maps: list[Section] = field(default_factory=list)
    facts: list[tuple[str, Cell]] = field(default_factory=list)


@dataclass(frozen=True)
class _Flag:
    """Two of the samples that were looked at, with their similarity and the threshold, infinite where none is."""

    a: int
    b: int
    similarity: float
    threshold: float


def examine_run(run: Run, name: str, samples: int, shown: int, picture_store: PictureStore) -> Seen:
    """Examine a run's training data under the run's own encoder.

    Args:
        run: the run, with its last weights.
        name: what the page calls it.
        samples: how many samples are looked at.
        shown: how many pairs are shown.
        picture_store: takes the pictures.

    Raises:
        ValueError: if the run was opened with another place of its data, and that cannot be read.
    """
    seen = Seen()
    try:
        method, data = open_method(run)
    except (ValueError, OSError) as error:  # moved data or a run that has not come far: the rest can be shown
        if run.data is not None:
            raise  # the call itself says where the data is
        seen.facts.append(("not looked at", _without_folder(str(error), str(run.config["data"]["name"]))))
        return seen
    seen.facts += _facts(data)
    if data.modalities.get("image") != "image" or not method.network.seeing("image"):
        seen.facts.append(("pictures", f"none, the data has {' and '.join(data.modalities)}"))
        return seen
    rows = torch.from_numpy(choose(len(data), samples))
    part = subset(data, rows)
    view = plain_view(method, data.image_size, "image")
    features = embed_dataset(method.backbone("image"), part, preprocess=view, input_name="image")
    photos = photos_of(data)
    vectors = _vectors(features, data, photos, rows)
    texts = _texts(part)
    for title, pairs, how in _flagged(method, part, rows, vectors):
        cards = [_card(pair, vectors, rows, photos, picture_store, name, texts) for pair in pairs[:shown]]
        labelled = [card.right for card in cards if card.right is not None]
        note = f"{how} {len(pairs):,} pairs of {len(rows):,} samples, the {len(cards):,} most similar are shown."
        if labelled:
            note += f" {100 * sum(labelled) / len(labelled):.0f} % of these have one label."
        if cards:
            seen.flagged.append(Gallery(title.format(run=name), cards, note, SHOWN_FIRST))
        else:
            seen.flagged.append(Facts(title.format(run=name), [], f"None among the pairs of {len(rows):,} samples."))
    images = picture_store.add_pixels([(name, int(row)) for row in rows], part.fetch(torch.arange(len(rows))))
    seen.maps.append(map_of_vectors(f"Map of {name}", vectors, np.arange(len(rows)), images))
    return seen


def _without_folder(sentence: str, data: str) -> str:
    """A sentence that names the data by the end of its path."""
    return sentence.replace(data, path_ends([data])[0])


def _facts(data: Samples) -> list[tuple[str, Cell]]:
    """What was found and what was skipped."""
    facts: list[tuple[str, Cell]] = [("data", data.name), ("samples", len(data))]
    if data.labels is not None:
        facts.append(("classes", len(data.labels[data.labels >= 0].unique())))
    skipped: Sequence[tuple[str, str]] = getattr(data, "skipped", ())
    facts.append(("skipped files", len(skipped)))
    facts += [(f"skipped {file}", why) for file, why in skipped[:10]]
    return facts


def _texts(part: Samples) -> list[str] | None:
    """A text of every sample, where the data has texts as well as images."""
    name = next((name for name, modality in part.modalities.items() if modality == "text"), None)
    return None if name is None else list(cast("list[str]", part.inputs(torch.arange(len(part)))[name]))


def _vectors(features: Tensor, data: Samples, photos: Photos, rows: Tensor) -> Vectors:
    paths = tuple(short_paths([photos.paths[row] for row in rows.tolist()]))
    labels = None if data.labels is None else data.labels[rows].numpy()
    return Vectors(features.numpy(), paths, labels, data.classes)


def _flagged(method: Method, part: Samples, rows: Tensor, vectors: Vectors) -> Iterator[tuple[str, list[_Flag], str]]:
    """What the run's policies flag among some samples, or without a policy what an audit of its features does.

    Yields:
        A title with a place for the run's name, and for the direction where there are several; the pairs; and a
        sentence about them.
    """
    judged = False
    for direction, loss_fn in method.pair_losses().items():
        if loss_fn.negatives is None:
            continue
        try:
            pairs = _pairs(method, part, rows, direction)
            if loss_fn.ask_guide is not None:
                pairs = pairs.with_guide(loss_fn.ask_guide(pairs))
            flags = find_flags(pairs, judge_frozen(loss_fn.negatives, pairs))
        except ValueError:  # a policy that needs a guide, or more than embeddings
            continue
        judged = True
        bounds = flags.thresholds[flags.rules, flags.anchors]
        found = _strongest(flags.anchors, flags.candidates, flags.similarities, bounds)
        where = f", {direction.replace('_', ' ')}" if len(method.pair_losses()) > 1 else ""
        who = type(loss_fn.negatives).__name__
        yield f"Flagged by {{run}}{where}", found, f"{who} calls these false negatives, judged on plain images:"
    if not judged:
        findings = audit_vectors(vectors)
        likely = [
            _Flag(pair.a, pair.b, pair.similarity, pair.threshold)
            for pair in findings.pairs
            if pair.kind == FALSE_NEGATIVE
        ]
        yield "Likely false negatives by {run}", likely, "An audit of the features calls these likely false negatives:"


def _pairs(method: Method, part: Samples, rows: Tensor, direction: str) -> Pairs:
    """The samples that are looked at as one batch of a direction, each an anchor among all of them."""
    seen = compared_embeddings(method, part, None, 0, direction)
    candidates = seen.candidates if len(seen.candidates) == len(rows) else seen.candidates[rows]  # a bank of all
    positives, ids = (seen.anchors * candidates).sum(1), part.sample_ids(torch.arange(len(rows)))
    if part.samples is None:
        ids = rows
    if seen.candidates is seen.anchors:
        return Pairs(seen.anchors, ids, positives, supports=seen.supports, anchor_rows=rows)
    return Pairs(
        seen.anchors, ids, positives, candidates, ids, supports=seen.supports, anchor_rows=rows, candidate_rows=rows
    )


def _strongest(anchors: Tensor, candidates: Tensor, similarities: Tensor, thresholds: Tensor) -> list[_Flag]:
    """Flags, the most similar first, each pair once."""
    found: dict[tuple[int, int], _Flag] = {}
    for place in similarities.argsort(descending=True, stable=True).tolist():
        a, b = int(anchors[place]), int(candidates[place])
        key = (min(a, b), max(a, b))
        found.setdefault(key, _Flag(a, b, float(similarities[place]), float(thresholds[place])))
    return list(found.values())


def _card(
    pair: _Flag,
    vectors: Vectors,
    rows: Tensor,
    photos: Photos,
    picture_store: PictureStore,
    name: str,
    texts: list[str] | None,
) -> Card:
    pictures = []
    for place in (pair.a, pair.b):
        row = int(rows[place])
        image = picture_store.add((name, "large", row), lambda row=row: photos.image(row))  # type: ignore[misc]
        caption = vectors.class_of(place) if texts is None else texts[place]
        pictures.append(Picture(image, vectors.paths[place], caption))
    text = f"similarity {pair.similarity:.3f}"
    if pair.threshold < torch.inf:
        text += f", threshold {pair.threshold:.3f}"
    right = None
    if vectors.labels is not None:
        first, second = vectors.labels[pair.a], vectors.labels[pair.b]
        right = bool(first == second) if first >= 0 and second >= 0 else None
    kind = "flagged" if right is None else "right" if right else "wrong"
    return Card(kind, pictures, round(pair.similarity, 6), text, right)
