"""The page of an audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import FALSE_NEGATIVE, OTHER_CLASS, Findings, Notice, Pair
from antipodes.auditing.summary import class_name
from antipodes.pages.page import Card, Facts, Gallery, Map, Page, Picture, Section, Table, path_ends, short_paths
from antipodes.pages.picture_store import PictureStore
from antipodes.pages.plane import choose, map_of

if TYPE_CHECKING:
    from antipodes.auditing.audit import Audit

MAPPED = 1000
LISTED = 2000


def audit_page(found: Audit, progress: Callable[[int, int], None] | None = None) -> Page:
    """The page of an audit: its numbers, its pairs and samples with their pictures, a map, and the pairs as a table.

    Args:
        found: the audit.
        progress: called with (cards done, cards in all).
    """
    data, findings, summary, shown = found.data, found.findings, found.summary, found.shown
    title = str(summary["subject"])
    picture_store = PictureStore()
    vectors = replace(data.vectors, paths=tuple(short_paths(data.vectors.paths)))
    summary = {name: path_ends([value])[0] if name == "subject" else value for name, value in summary.items()}
    pairs = _first(findings.pairs, shown)
    notices = _first(findings.notices, shown)
    cards = []
    for done, pair in enumerate(pairs):
        cards.append(_pair_card(pair, vectors, picture_store, data))
        if progress is not None:
            progress(done + 1, len(pairs))
    sections: list[Section] = [Facts("In numbers", list(summary.items()), _advice(summary))]
    if cards:
        counts = Counter(pair.kind for pair in findings.pairs)
        hidden = [f"{shown} of {count:,} {kind} pairs" for kind, count in counts.items() if count > shown]
        sections.append(Gallery("Pairs", cards, f"Shown: {', '.join(hidden)}." if hidden else ""))
    if notices:
        standing = [_notice_card(notice, vectors, picture_store, data) for notice in notices]
        sections.append(Gallery("Samples that stand out", standing))
    rows = choose(len(vectors), MAPPED)
    thumbnails = data.thumbnails(rows)
    images = [-1] * len(rows)
    if thumbnails is not None:
        images = picture_store.add_pixels([("small", int(row)) for row in rows], thumbnails)
    sections.append(map_of_vectors("Map", vectors, rows, images))
    sections.append(_table(vectors, findings))
    if data.skipped:
        sections.append(Table("Skipped files", ["file", "reason"], list(data.skipped)))
    subtitle = f"{len(vectors):,} samples, {summary.get('encoder', 'embeddings')}"
    return Page(f"Audit of {PurePath(title).name or title}", subtitle, sections, picture_store.pictures)


def map_of_vectors(title: str, vectors: Vectors, rows: NDArray[np.int64], images: list[int]) -> Map | Facts:
    """A map of some rows of vectors; `images` are the numbers of their pictures on the page."""
    labels = [-1] * len(rows) if vectors.labels is None else [max(int(vectors.labels[row]), -1) for row in rows]
    classes = {label: class_name(vectors, label) for label in set(labels)}
    names = [vectors.paths[row] for row in rows]
    note = f"{len(rows):,} of {len(vectors):,} samples"
    return map_of(title, vectors.embeddings[rows], names, labels, classes, images, note)


def _advice(summary: dict[str, Any]) -> str:
    """What the numbers mean for training, in a sentence."""
    pushed = summary["duplicate pairs pushed apart per batch"] + summary["false negative pairs pushed apart per batch"]
    return (
        f"A batch of {summary['batch size']} pushes {pushed:.3g} pairs apart, on average, that are or may be the same. "
        'Give groups.parquet to the loss: InfoNCE(negatives=Known.read("groups.parquet")).'
    )


def _first(found: Any, most: int) -> list[Any]:
    """The first so many of each kind."""
    seen: Counter[str] = Counter()
    kept = []
    for each in found:
        seen[each.kind] += 1
        if seen[each.kind] <= most:
            kept.append(each)
    return kept


def _picture(row: int, vectors: Vectors, picture_store: PictureStore, data: AuditedData) -> Picture:
    return Picture(picture_store.add(row, lambda: data.image(row)), vectors.paths[row], vectors.class_of(row))


def _pair_card(pair: Pair, vectors: Vectors, picture_store: PictureStore, data: AuditedData) -> Card:
    right = None
    if vectors.labels is not None:
        first, second = vectors.labels[pair.a], vectors.labels[pair.b]
        right = bool(first == second) if first >= 0 and second >= 0 else None
    text = f"similarity {pair.similarity:.3f}"
    if pair.kind == FALSE_NEGATIVE:
        text += f", threshold {pair.threshold:.3f}"
    pictures = [_picture(row, vectors, picture_store, data) for row in (pair.a, pair.b)]
    return Card(pair.kind, pictures, round(pair.similarity, 6), text, right)


def _notice_card(notice: Notice, vectors: Vectors, picture_store: PictureStore, data: AuditedData) -> Card:
    if notice.kind == OTHER_CLASS:
        text = f"looks like {class_name(vectors, notice.suggestion)} ({100 * notice.score:.0f} % of its neighbours)"
    else:
        text = f"closeness of its neighbours {notice.score:.2f}, usual above {notice.bound:.2f}"
    return Card(notice.kind, [_picture(notice.row, vectors, picture_store, data)], round(notice.score, 6), text)


def _table(vectors: Vectors, findings: Findings) -> Table:
    columns = ["kind", "similarity", "threshold", "one", "other"]
    rows: list[list[Any]] = [
        [pair.kind, pair.similarity, pair.threshold, vectors.paths[pair.a], vectors.paths[pair.b]]
        for pair in _first(findings.pairs, LISTED // 2)
    ]
    if vectors.labels is not None:
        columns += ["label of one", "label of the other"]
        for row, pair in zip(rows, _first(findings.pairs, LISTED // 2), strict=True):
            row += [vectors.class_of(pair.a), vectors.class_of(pair.b)]
    return Table(
        "Pairs as a table", columns, rows, f"{len(rows):,} of {len(findings.pairs):,}; all are in the parquet file."
    )
