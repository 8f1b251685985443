"""An audit in numbers and as tables: pairs, groups, samples that stand out."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import EXACT, FALSE_NEGATIVE, KINDS, NEAR, OTHER_CLASS, OUTLIER, Findings
from antipodes.auditing.groups import join, pairs_within
from antipodes.files import MARK, is_marked, replacing
from antipodes.tables import Columns as Columns
from antipodes.tables import is_table_of, write_table

PAIRS, GROUPS, SAMPLES, SUMMARY = "pairs.parquet", "groups.parquet", "samples.parquet", "summary.json"
COLUMNS = {
    PAIRS: ("path_a", "path_b", "similarity", "threshold", "kind"),
    GROUPS: ("row", "path", "group"),
    SAMPLES: ("row", "path", "kind", "score", "bound"),
}
"""Columns of each table by which an earlier result is recognised."""


def summarise(data: AuditedData, findings: Findings, batch_size: int) -> dict[str, Any]:
    """The audit in numbers: how many of each kind, and what a batch of `batch_size` random samples does wrong.

    Of P pairs that are the same, such a batch holds P B (B - 1) / (n (n - 1)) on average, and pushes them apart.
    """
    n, vectors = len(data), data.vectors
    copies = join(n, ((pair.a, pair.b) for pair in findings.pairs if pair.kind in (EXACT, NEAR)))
    duplicates, likely = pairs_within(copies), findings.count(FALSE_NEGATIVE)
    size = min(batch_size, n)
    share = size * (size - 1) / (n * (n - 1)) if n > 1 else 0.0
    numbers: dict[str, Any] = {"samples": n, "dimensions": int(vectors.embeddings.shape[1])}
    numbers |= {f"{kind} pairs": findings.count(kind) for kind in KINDS}
    numbers |= {
        "samples with a duplicate": int((copies >= 0).sum()),
        "could be left out": int((copies >= 0).sum()) - len(set(copies[copies >= 0].tolist())),
        "groups": len(set(findings.groups[findings.groups >= 0].tolist())),
        "outliers": findings.count(OUTLIER),
        "batch size": size,
        "duplicate pairs pushed apart per batch": round(duplicates * share, 4),
        "false negative pairs pushed apart per batch": round(likely * share, 4),
        "batches with such a pair": round(-math.expm1(-(duplicates + likely) * share), 4) + 0.0,  # not -0.0
    }
    if vectors.labels is not None:
        labels = vectors.labels
        known = [pair for pair in findings.pairs if labels[pair.a] >= 0 and labels[pair.b] >= 0]
        judged = [pair for pair in known if pair.kind == FALSE_NEGATIVE]
        right = sum(bool(labels[pair.a] == labels[pair.b]) for pair in judged)
        numbers["samples like another class"] = findings.count(OTHER_CLASS)
        numbers["duplicates with two labels"] = sum(
            bool(labels[pair.a] != labels[pair.b]) for pair in known if pair.kind != FALSE_NEGATIVE
        )
        numbers["false negatives of one class"] = round(right / len(judged), 4) if judged else None
    numbers["skipped files"] = len(data.skipped)
    if data.splits:
        name = " and ".join(dict.fromkeys(data.splits))
        numbers[f"duplicates across {name}"] = sum(
            data.splits[pair.a] != data.splits[pair.b] for pair in findings.pairs if "duplicate" in pair.kind
        )
    return numbers


def tables_of(
    data: AuditedData, findings: Findings
) -> tuple[dict[str, list[Any]], dict[str, list[Any]], dict[str, list[Any]]]:
    """The tables of pairs, of groups and of samples that stand out, by column.

    The groups (negative = alone) are those of the samples that are trained on.
    """
    vectors = data.vectors
    paths, pairs, notices = vectors.paths, findings.pairs, findings.notices
    columns: dict[str, list[Any]] = {
        "path_a": [paths[pair.a] for pair in pairs],
        "path_b": [paths[pair.b] for pair in pairs],
        "similarity": [pair.similarity for pair in pairs],
        "threshold": [pair.threshold for pair in pairs],
        "kind": [pair.kind for pair in pairs],
        "row_a": [pair.a for pair in pairs],
        "row_b": [pair.b for pair in pairs],
    }
    standing_out: dict[str, list[Any]] = {
        "row": [notice.row for notice in notices],
        "path": [paths[notice.row] for notice in notices],
        "kind": [notice.kind for notice in notices],
        "score": [notice.score for notice in notices],
        "bound": [notice.bound for notice in notices],
    }
    if vectors.labels is not None:
        columns["label_a"] = [vectors.class_of(pair.a) for pair in pairs]
        columns["label_b"] = [vectors.class_of(pair.b) for pair in pairs]
        standing_out["label"] = [vectors.class_of(notice.row) for notice in notices]
        standing_out["suggestion"] = [
            class_name(vectors, notice.suggestion) if notice.kind == OTHER_CLASS else "" for notice in notices
        ]
    trained = list(paths[: data.training])
    groups = findings.groups[: len(trained)].tolist()
    return columns, {"row": list(range(len(trained))), "path": trained, "group": groups}, standing_out


def write_findings(folder: Path, pairs: Columns, groups: Columns, samples: Columns, summary: dict[str, Any]) -> None:
    """Write pairs.parquet, groups.parquet, samples.parquet and summary.json into a folder that exists."""
    write_table(folder / PAIRS, pairs)
    write_table(folder / GROUPS, groups)
    write_table(folder / SAMPLES, samples)
    with replacing(folder / SUMMARY) as temporary:
        temporary.write_text(json.dumps({"generator": MARK, **summary}, indent=1) + "\n")


def is_finding(path: Path) -> bool:
    """Return True if `write_findings` may have written a file: the summary has our mark, a table its columns.

    Raises:
        Exception: of the reader, if the file has another format.
    """
    return is_marked(path) if path.name == SUMMARY else is_table_of(path, COLUMNS[path.name])


def class_name(vectors: Vectors, label: int) -> str:
    """The name of a label."""
    classes = vectors.classes
    return classes[label] if classes is not None and label < len(classes) else f"label {label}"
