"""Which samples to keep and which to leave out, and a folder of those that are kept.

Of a group of duplicates one sample represents the others:

1. one of the second split, if the group has any there: a test set stays whole, its copies leave the training data;
2. the largest, then the sharpest photo; the text of the most words (`AuditedData.rank`);
3. the first.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.findings import DUPLICATES, EXACT, Findings
from antipodes.auditing.groups import join
from antipodes.files import MARK, replacing
from antipodes.progress import Progress
from antipodes.tables import Columns

KEEP, LEAVE_OUT = "keep", "leave out"
COLUMNS = ("path", "action", "why", "represented_by", "group")
NOTE = ".antipodes-copy.json"
"""The file by which a folder of copies is recognised as our own."""

KEPT_TEXTS = "kept.jsonl"
CopyAs = Literal["link", "copy"]


def keep_table(data: AuditedData, findings: Findings) -> dict[str, list[Any]]:
    """A row for every sample: keep or leave out, why, which sample represents it, and its group (negative = alone)."""
    groups = join(len(data), findings.pairs.of_kinds(DUPLICATES).rows())
    exact = set(findings.pairs.of_kinds((EXACT,)).rows())
    members: dict[int, list[int]] = {}
    for row in np.flatnonzero(groups >= 0).tolist():
        members.setdefault(int(groups[row]), []).append(row)
    represented = list(range(len(data)))
    why = [""] * len(data)
    for rows in members.values():
        best = max(rows, key=lambda row: (_is_second(data, row), data.rank(row), -row))
        for row in rows:
            represented[row] = best
            kind = "equal to" if (min(row, best), max(row, best)) in exact else "a duplicate of"
            what = f"{kind} {data.vectors.paths[best]}"
            across = data.splits and data.splits[row] != data.splits[best]
            why[row] = f"represents {len(rows)}" if row == best else what + (", across splits" if across else "")
            if row != best and _is_second(data, row):  # a test set is never thinned out
                represented[row], why[row] = row, f"{data.splits[row]} stays as it is; {what}"
    paths = data.vectors.paths
    table: dict[str, list[Any]] = {
        "path": list(paths),
        "action": [KEEP if best == row else LEAVE_OUT for row, best in enumerate(represented)],
        "why": why,
        "represented_by": [paths[best] for best in represented],
        "group": groups.tolist(),
    }
    if data.splits:
        table["split"] = list(data.splits)
    return table


def _is_second(data: AuditedData, row: int) -> bool:
    return bool(data.splits) and data.splits[row] != data.splits[0]


def check_copy(folder: str | Path, how: str = "link") -> Path:
    """A folder to which kept samples can be copied: one that is new, empty, or our own.

    Raises:
        ValueError: if it is neither.
    """
    if how not in get_args(CopyAs):
        raise ValueError(f"--copy_as must be one of {', '.join(get_args(CopyAs))}, got {how!r}")
    place = Path(folder)
    if not str(folder):
        raise ValueError("--copy is empty: name a folder")
    if not place.absolute().parent.is_dir():
        raise ValueError(f"--copy {place}: the folder {place.parent} does not exist, make it first")
    if os.path.lexists(place) and not place.is_dir():
        raise ValueError(f"--copy {place} is a file: name a folder")
    if place.is_dir() and any(place.iterdir()) and _note(place) is None:
        raise ValueError(f"--copy {place} holds other files: name a new folder, nothing is ever deleted")
    return place


def _note(place: Path) -> dict[str, Any] | None:
    try:
        note = json.loads((place / NOTE).read_text())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) and note.get("generator") == MARK else None


def copy_kept(
    data: AuditedData,
    table: Columns,
    folder: str | Path,
    how: CopyAs = "link",
    progress: Progress | None = None,
) -> tuple[int, Path]:
    """Link or copy the files that are kept into a folder, with their folders below the one that holds all of them.

    1. Texts and pairs, which are rows of a file, become one file: kept.jsonl, a row for each. Of photos, hard links are
       made, which need no space; where the disk cannot (another disk, another system), copies.
    2. Files that are there already are left as they are, if they have the size of their original.

    Args:
        data: what was audited.
        table: as `keep_table` makes it.
        folder: new, empty or our own; see `check_copy`.
        how: `link` or `copy`.
        progress: called with (files done, files in all).

    Returns:
        How many files the folder has of those that are kept, and the folder.

    Raises:
        ValueError: if samples are not files, or our own folder has files that are now left out.
    """
    place = check_copy(folder, how)
    if data.text(0):
        return _write_texts(data, table, place)
    files = [str(path) for path, action in zip(table["path"], table["action"], strict=True) if action == KEEP]
    missing = next((file for file in files if not os.path.isfile(file)), None)
    if missing is not None:
        raise ValueError(f"--copy links files, and {missing} is none: take the rows that keep.csv says to keep")
    every = [os.path.abspath(str(path)) for path in table["path"]]
    root = os.path.commonpath([os.path.dirname(path) for path in every])
    for split in dict.fromkeys(data.splits or [""]):  # two folders that are compared may have one parent with `place`
        part = [path for row, path in enumerate(every) if not split or data.splits[row] == split]
        inner = os.path.commonpath([os.path.dirname(path) for path in part])
        if Path(inner).is_relative_to(place.absolute()) or place.absolute().is_relative_to(inner):
            raise ValueError(f"--copy {place} and the data lie in one another: name a folder outside of {inner}")
    names = {os.path.relpath(os.path.abspath(file), root): file for file in files}
    earlier = _note(place) or {}
    stale = sorted(set(earlier.get("files", ())) - set(names))
    stale = [name for name in stale if (place / name).exists()]
    if stale:
        raise ValueError(
            f"--copy {place} has {len(stale)} files of an earlier audit that are now left out, such as {stale[0]}: "
            "name a new folder, nothing is ever deleted"
        )
    place.mkdir(exist_ok=True)
    with replacing(place / NOTE) as temporary:  # first: a call that is interrupted can go on
        temporary.write_text(json.dumps({"generator": MARK, "files": sorted(names)}))
    for done, (name, file) in enumerate(sorted(names.items()), start=1):
        _place(Path(file), place / name, how)
        if progress is not None:
            progress(done, len(names))
    return len(names), place


def _write_texts(data: AuditedData, table: Columns, place: Path) -> tuple[int, Path]:
    """Write kept.jsonl: the texts that are kept, with their labels."""
    rows = [row for row, action in enumerate(table["action"]) if action == KEEP]
    place.mkdir(exist_ok=True)
    with replacing(place / NOTE) as temporary:
        temporary.write_text(json.dumps({"generator": MARK, "files": [KEPT_TEXTS]}))
    with replacing(place / KEPT_TEXTS) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            labelled = {"label": name} if (name := data.vectors.class_of(row)) else {}
            split = {"split": data.splits[row]} if data.splits else {}
            file.write(json.dumps({**data.fields(row), **labelled, **split}) + "\n")
    return len(rows), place


def _place(source: Path, target: Path, how: CopyAs) -> None:
    """Link or copy one file, unless it is there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    if os.path.lexists(target):
        raise ValueError(f"--copy: {target} exists and is another file: name a new folder")
    if how == "link":
        try:
            os.link(source.resolve(), target)
            return
        except OSError:
            pass
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def skipped_columns(skipped: Sequence[tuple[str, str]]) -> Mapping[str, list[str]]:
    """The table of what was left out."""
    return {"file": [file for file, _ in skipped], "reason": [reason for _, reason in skipped]}
