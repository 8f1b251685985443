"""An audit in numbers and as tables: pairs, groups, samples that stand out."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.decisions import DIFFERENT, SAME, counts_of
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import DUPLICATES, FALSE_NEGATIVE, OTHER_CLASS, Findings, Pair
from antipodes.auditing.groups import join, pairs_within
from antipodes.auditing.keep import LEAVE_OUT
from antipodes.files import MARK, is_marked, replacing
from antipodes.tables import Columns as Columns
from antipodes.tables import is_table_of, object_array, write_table

PAIRS, GROUPS, SAMPLES, SUMMARY = "pairs.parquet", "groups.parquet", "samples.parquet", "summary.json"
KEEP_TABLE, SKIPPED, DECISIONS, REPORT = "keep.csv", "skipped.csv", "decisions.json", "report.html"
FILES = (PAIRS, GROUPS, SAMPLES, KEEP_TABLE, SKIPPED, DECISIONS, SUMMARY, REPORT)
"""What an audit writes into its folder."""

COLUMNS = {
    PAIRS: ("path_a", "path_b", "similarity", "threshold", "kind"),
    GROUPS: ("row", "path", "group"),
    SAMPLES: ("row", "path", "kind", "score", "bound"),
    KEEP_TABLE: ("path", "action", "why", "represented_by", "group"),
    SKIPPED: ("file", "reason"),
}
"""Columns of each table by which an earlier result is recognised."""


@dataclass(frozen=True)
class Number:
    """A number of an audit, its unit, and the list that has what was counted."""

    name: str
    value: Any
    unit: str
    listed: str


def numbers_of(data: AuditedData, findings: Findings, keep: Columns, batch_size: int) -> list[Number]:
    """The audit in numbers: how many of each kind, and what a batch of `batch_size` random samples does wrong.

    Of P pairs that are the same, such a batch holds P B (B - 1) / (n (n - 1)) on average, and pushes them apart.
    """
    n, units = len(data), f"{data.unit}s"
    duplicates = findings.pairs.of_kinds(DUPLICATES)
    copies = join(n, duplicates.rows())
    grouped = int((copies >= 0).sum())
    numbers = [Number("samples", n, units, KEEP_TABLE)]
    kinds = [*data.pair_kinds, *(kind for kind in (SAME, DIFFERENT) if findings.count(kind))]
    numbers += [Number(f"{kind} pairs", findings.count(kind), "pairs", f"{PAIRS}: kind is {kind}") for kind in kinds]
    numbers += [
        Number("samples with a duplicate", grouped, units, f"{KEEP_TABLE}: group is not negative"),
        Number("could be left out", list(keep["action"]).count(LEAVE_OUT), units, f"{KEEP_TABLE}: action is leave out"),
        Number("groups", len(set(findings.groups[findings.groups >= 0].tolist())), "groups", GROUPS),
    ]
    named = [*data.notice_kinds, *(notice.kind for notice in findings.notices if notice.kind != OTHER_CLASS)]
    for kind in dict.fromkeys(named):
        count = findings.count(kind)
        name = f"{kind}s" if kind == "outlier" else kind
        numbers.append(Number(name, count, units, f"{SAMPLES}: kind is {kind}"))
    numbers += _of_batches(data, findings, pairs_within(copies), batch_size)
    if data.vectors.labels is not None:
        numbers += _of_labels(data, findings)
    if findings.recall < 1:
        numbers.append(
            Number("neighbours found", round(findings.recall, 3), "share of a sample's true neighbours", PAIRS)
        )
    numbers.append(Number("skipped files", len(data.skipped), "files or rows", SKIPPED))
    if data.splits:
        name = f"duplicates across {' and '.join(dict.fromkeys(data.splits))}"
        numbers.append(Number(name, sum(is_leak(data, p) for p in duplicates), "pairs", f"{PAIRS}: leak is true"))
    if len(findings.pairs.decided):
        numbers += [
            Number(f"decided: {name}", count, "pairs", f"{PAIRS}: decision is {name}")
            for name, count in counts_of(findings.pairs).items()
        ]
    return numbers


def _of_batches(data: AuditedData, findings: Findings, duplicates: int, batch_size: int) -> list[Number]:
    n, likely = len(data), findings.count(FALSE_NEGATIVE)
    size = min(batch_size, n)
    share = size * (size - 1) / (n * (n - 1)) if n > 1 else 0.0
    unit = f"pairs in a batch of {size:,}, on average"
    chance = round(-math.expm1(-(duplicates + likely) * share), 4) + 0.0  # not -0.0
    same = f"{PAIRS}: kind is exact duplicate or near duplicate"
    return [
        Number("duplicate pairs pushed apart per batch", round(duplicates * share, 4), unit, same),
        Number(
            "false negative pairs pushed apart per batch",
            round(likely * share, 4),
            unit,
            f"{PAIRS}: kind is {FALSE_NEGATIVE}",
        ),
        Number("batches with such a pair", chance, f"share of batches of {size:,}", PAIRS),
    ]


def _of_labels(data: AuditedData, findings: Findings) -> list[Number]:
    labels = data.vectors.labels
    assert labels is not None
    likely = findings.pairs.of_kinds((FALSE_NEGATIVE,))
    first, second = labels[likely.a], labels[likely.b]
    judged = (first >= 0) & (second >= 0)
    share = round(float((first == second)[judged].mean()), 4) if judged.any() else None
    twice = sum(has_two_labels(data, pair) for pair in findings.pairs.of_kinds(DUPLICATES))
    like = f"{SAMPLES}: kind is {OTHER_CLASS}"
    return [
        Number("samples like another class", findings.count(OTHER_CLASS), f"{data.unit}s", like),
        Number("duplicates with two labels", twice, "pairs", f"{PAIRS}: two_labels is true"),
        Number("false negatives of one class", share, "share of pairs", f"{PAIRS}: label_a is label_b"),
    ]


def is_leak(data: AuditedData, pair: Pair) -> bool:
    """Whether two samples are the same thing in two splits."""
    return bool(data.splits) and pair.kind in DUPLICATES and data.splits[pair.a] != data.splits[pair.b]


def has_two_labels(data: AuditedData, pair: Pair) -> bool:
    """Whether two samples are the same thing and have different labels."""
    labels = data.vectors.labels
    if labels is None or pair.kind not in DUPLICATES:
        return False
    return bool(labels[pair.a] >= 0 and labels[pair.b] >= 0 and labels[pair.a] != labels[pair.b])


def tables_of(data: AuditedData, findings: Findings) -> tuple[Columns, Columns, Columns]:
    """The tables of pairs, of groups and of samples that stand out, by column.

    The groups (negative = alone) are those of the samples that are trained on, and so are `row` and `other` of pairs:
    -1 for a sample of another split.
    """
    vectors = data.vectors
    paths, pairs, notices = vectors.paths, findings.pairs, findings.notices
    trained = data.training
    names = object_array(paths)
    columns: dict[str, Any] = {
        "path_a": names[pairs.a],
        "path_b": names[pairs.b],
        "similarity": pairs.similarity,
        "threshold": pairs.threshold,
        "kind": pairs.column("kind"),
        "row": np.where(pairs.a < trained, pairs.a, -1),
        "other": np.where(pairs.b < trained, pairs.b, -1),
        "decision": pairs.column("decision"),
        "found_as": pairs.column("found"),
    }
    standing_out: dict[str, list[Any]] = {
        "row": [notice.row for notice in notices],
        "path": [paths[notice.row] for notice in notices],
        "kind": [notice.kind for notice in notices],
        "score": [notice.score for notice in notices],
        "bound": [notice.bound for notice in notices],
        "reason": [notice.reason for notice in notices],
    }
    if any(data.text(row) for row in range(min(len(data), 10))):
        columns["text_a"] = [data.text(row) for row in pairs.a.tolist()]
        columns["text_b"] = [data.text(row) for row in pairs.b.tolist()]
        standing_out["text"] = [data.text(notice.row) for notice in notices]
    if data.splits:
        splits = object_array(data.splits)
        columns["split_a"], columns["split_b"] = splits[pairs.a], splits[pairs.b]
        columns["leak"] = [is_leak(data, pair) for pair in pairs]
        standing_out["split"] = [data.splits[notice.row] for notice in notices]
    if vectors.labels is not None:
        classes = object_array([vectors.class_of(row) for row in range(len(vectors))])
        columns["label_a"], columns["label_b"] = classes[pairs.a], classes[pairs.b]
        columns["two_labels"] = [has_two_labels(data, pair) for pair in pairs]
        standing_out["label"] = [vectors.class_of(notice.row) for notice in notices]
        standing_out["suggestion"] = [
            class_name(vectors, notice.suggestion) if notice.kind == OTHER_CLASS else "" for notice in notices
        ]
    groups = {"row": np.arange(trained), "path": names[:trained], "group": findings.groups[:trained]}
    return columns, groups, standing_out


def write_tables(folder: Path, tables: dict[str, Columns], facts: dict[str, Any], numbers: list[Number]) -> None:
    """Write the tables by their file names, and summary.json, into a folder that exists.

    The summary has every number by name, and under `units` and `lists` its unit and the list that has what was counted.
    """
    for name, columns in tables.items():
        write_table(folder / name, columns)
    content = {"generator": MARK, **facts, **{number.name: number.value for number in numbers}}
    content["units"] = {number.name: number.unit for number in numbers}
    content["lists"] = {number.name: number.listed for number in numbers}
    with replacing(folder / SUMMARY) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


def is_finding(path: Path) -> bool:
    """Return True if an audit may have written a file: it has our mark, or a table its columns.

    Raises:
        Exception: of the reader, if the file has another format.
    """
    return is_table_of(path, COLUMNS[path.name]) if path.name in COLUMNS else is_marked(path)


def class_name(vectors: Vectors, label: int) -> str:
    """The name of a label."""
    classes = vectors.classes
    return classes[label] if classes is not None and label < len(classes) else f"label {label}"
