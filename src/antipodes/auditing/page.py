"""The page of an audit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import DUPLICATES, FALSE_NEGATIVE, OTHER_CLASS, Findings, Notice, Pair
from antipodes.auditing.pair_columns import PairColumns
from antipodes.auditing.summary import class_name, has_two_labels, is_leak
from antipodes.pages.page import (
    Card,
    Facts,
    Gallery,
    Map,
    Page,
    Picture,
    Review,
    ReviewPair,
    Section,
    Table,
    path_ends,
    short_paths,
)
from antipodes.pages.picture_store import PictureStore
from antipodes.pages.plane import choose, map_of
from antipodes.plain_text import printable
from antipodes.tables import escaped

if TYPE_CHECKING:
    from antipodes.auditing.audit import Audit

MAPPED = 600
LARGE = 224  # side of the pictures that are compared
LISTED = 2000
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it, modulo 1, fill the interval evenly from the first ones on


def audit_page(found: Audit, progress: Callable[[int, int], None] | None = None) -> Page:
    """The page of an audit: the answer, pairs to decide on, samples that stand out, all numbers, a map and a table.

    Args:
        found: the audit.
        progress: called with (pairs done, pairs in all).
    """
    data, findings, summary, shown = found.data, found.findings, found.summary, found.shown
    picture_store = PictureStore()
    vectors = replace(data.vectors, paths=tuple(map(printable, short_paths(data.vectors.paths))))
    chosen = _chosen(data, findings.pairs, found.keep["group"], shown)
    reviewed = []
    for done, (pair, group) in enumerate(chosen):
        reviewed.append(_review_pair(pair, group, vectors, picture_store, data))
        if progress is not None:
            progress(done + 1, len(chosen))
    sections: list[Section] = [Facts("The answer", _answer(found), _advice(summary))]
    if reviewed:
        counts = {kind: len(places) for kind, places in findings.pairs.kinds().items()}
        hidden = [f"{shown:,} of {count:,} {kind} pairs" for kind, count in counts.items() if count > shown]
        note = "Decide which pairs are the same, save the decisions, and audit again with them."
        note += f" Shown: {', '.join(hidden)}." if hidden else ""
        sections.append(Review("Pairs", reviewed, _store(found), note))
    notices = _first(findings.notices, shown)
    if notices:
        standing = [_notice_card(notice, vectors, picture_store, data) for notice in notices]
        sections.append(Gallery("Samples that stand out", standing))
    numbers = [[number.name, number.value, number.unit, number.listed] for number in found.numbers]
    facts = [[name, summary[name], "", ""] for name in summary if name not in {n.name for n in found.numbers}]
    facts = [[name, path_ends([str(value)])[0] if name == "subject" else value, *rest] for name, value, *rest in facts]
    sections.append(Table("All numbers", ["what", "number", "unit", "listed in"], [*numbers, *facts]))
    rows = choose(len(vectors), MAPPED)
    thumbnails = data.thumbnails(rows)
    images = [-1] * len(rows)
    if thumbnails is not None:
        images = picture_store.add_pixels([("small", int(row)) for row in rows], thumbnails)
    sections.append(map_of_vectors("Map", vectors, rows, images))
    sections.append(_table(vectors, findings))
    if data.skipped:
        skipped = [(printable(file), printable(reason)) for file, reason in data.skipped]
        sections.append(Table("Skipped files", ["file", "reason"], skipped))
    title = PurePath(str(summary["subject"])).name or str(summary["subject"])
    subtitle = f"{len(vectors):,} {data.unit}s, {path_ends([str(summary['encoder'])])[0]}"
    return Page(f"Audit of {printable(title)}", subtitle, sections, picture_store.pictures)


def _answer(found: Audit) -> list[tuple[str, Any]]:
    """The first numbers that a reader wants, each with its unit in its name."""
    unit = f"{found.data.unit}s"
    wanted = [("samples", unit), ("could be left out", f"{unit} that could be left out")]
    wanted += [(f"{kind} pairs", f"{kind} pairs") for kind in found.data.pair_kinds]
    wanted += [("duplicates with two labels", "pairs of one thing with two labels")]
    wanted += [("samples like another class", f"{unit} that look like another class")]
    shown = [(title, found.summary[name]) for name, title in wanted if name in found.summary]
    leaks = [(name, value) for name, value in found.summary.items() if name.startswith("duplicates across")]
    standing = len({notice.row for notice in found.findings.notices})
    return [*shown, *leaks, (f"{unit} that stand out", standing)]


def _store(found: Audit) -> str:
    """A name of the data under which a browser keeps decisions."""
    digest = hashlib.blake2b(digest_size=8)
    for row in range(len(found.data)):
        digest.update(escaped(found.data.key(row)).encode() + b"\0")
    return digest.hexdigest()


def _chosen(data: AuditedData, pairs: PairColumns, group_of: NDArray[np.int64], most: int) -> list[tuple[Pair, int]]:
    """The pairs to show, each with its group (-1: none): the first so many of each kind.

    Leaks and samples with two labels come before others, and pairs of one group follow each other. Likely false
    negatives are ordered so that any first ones are spread evenly over the similarities, as `calibrate` needs them.
    """
    kept: list[tuple[Pair, int]] = []
    for kind, places in pairs.kinds().items():
        some = pairs.take(places)
        if kind == FALSE_NEGATIVE:
            order = np.argsort(places * _GOLDEN % 1, kind="stable")[:most]
            kept += [(pair, -1) for pair in some.take(order)]
            continue
        groups = group_of[some.a] if kind in DUPLICATES else np.full(len(some), -1)
        tagged = [is_leak(data, pair) or has_two_labels(data, pair) for pair in some]
        first: dict[int, int] = {}
        begins = [at if group < 0 else first.setdefault(group, at) for at, group in enumerate(groups.tolist())]
        order = np.lexsort((np.array(begins), ~np.array(tagged)))[:most]
        kept += [(some[at], int(groups[at])) for at in order.tolist()]
    return kept


def _review_pair(
    pair: Pair, group: int, vectors: Vectors, picture_store: PictureStore, data: AuditedData
) -> ReviewPair:
    rows = (pair.a, pair.b)
    numbers = f"similarity {pair.similarity:.3f}"
    if pair.found == FALSE_NEGATIVE:
        numbers += f", threshold {pair.threshold:.3f}"
    if pair.found != pair.kind:
        numbers += f", found as {pair.found}"
    tags = [name for name, has in (("leak", is_leak), ("two labels", has_two_labels)) if has(data, pair)]

    def both(one: Callable[[int], Any]) -> Any:
        return one(rows[0]), one(rows[1])

    return ReviewPair(
        both(lambda row: escaped(data.key(row))),
        both(lambda row: vectors.paths[row]),
        pair.kind,
        pair.found,
        round(pair.similarity, 6),
        numbers,
        both(lambda row: picture_store.add(("large", row), lambda: data.image(row), LARGE)),
        both(lambda row: _shown_text(data.text(row))),
        both(lambda row: printable(vectors.class_of(row))),
        tuple(tags),
        pair.decision,
        group,
    )


def _shown_text(text: str) -> str:
    """A text whose control characters are escapes, with its lines."""
    return "\n".join(printable(line) for line in text.splitlines())


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
    caption = _shown_text(data.text(row)) or printable(vectors.class_of(row))
    return Picture(picture_store.add(row, lambda: data.image(row)), vectors.paths[row], caption)


def _notice_card(notice: Notice, vectors: Vectors, picture_store: PictureStore, data: AuditedData) -> Card:
    if notice.kind == OTHER_CLASS:
        text = f"looks like {class_name(vectors, notice.suggestion)} ({100 * notice.score:.0f} % of its neighbours)"
    else:
        text = notice.reason or f"closeness of its neighbours {notice.score:.2f}, usual above {notice.bound:.2f}"
    return Card(notice.kind, [_picture(notice.row, vectors, picture_store, data)], round(notice.score, 6), text)


def _table(vectors: Vectors, findings: Findings) -> Table:
    columns = ["kind", "similarity", "threshold", "one", "other"]
    listed = [pair for places in findings.pairs.kinds().values() for pair in findings.pairs.take(places[: LISTED // 2])]
    rows: list[list[Any]] = [
        [pair.kind, pair.similarity, pair.threshold, vectors.paths[pair.a], vectors.paths[pair.b]] for pair in listed
    ]
    if vectors.labels is not None:
        columns += ["label of one", "label of the other"]
        for row, pair in zip(rows, listed, strict=True):
            row += [vectors.class_of(pair.a), vectors.class_of(pair.b)]
    return Table(
        "Pairs as a table", columns, rows, f"{len(rows):,} of {len(findings.pairs):,}; all are in the parquet file."
    )
