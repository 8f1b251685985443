"""Scores as a table for people, as a dictionary for scripts, and as the file that a run folder keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from antipodes.evaluation.protocol import is_setting
from antipodes.files import replacing
from antipodes.runs.folder import Run, fingerprint, load_checkpoint

Row = Mapping[str, str | float]
NO_PERCENT = ("MAE", "RMSE", "alignment", "uniformity")
"""Suffixes of the scores that are distances or cosines, not percentages."""


def results_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """Return a table with a line per row and a column per score, in percent with one decimal.

    Args:
        rows: such as ``{"encoder": "trained", "linear top-1": 62.14}``; a score that a row lacks shows as a dash,
            and settings that a protocol chose (see names.is_setting) are left out.
        title: above the table.
    """
    columns = [name for name in _columns(rows) if not is_setting(name)]
    table = Table(title=title)
    for name in columns:
        text = any(isinstance(row.get(name), str) for row in rows)
        table.add_column(name, justify="left" if text else "right", no_wrap=text)
    for row in rows:
        table.add_row(*(_cell(name, row.get(name)) for name in columns))
    return table


def scores_table(row: Row, title: str | None = None) -> Table:
    """Return the scores of one encoder in one column, which fits any terminal."""
    table = Table("score", title=title)
    table.add_column(str(row["encoder"]), justify="right")
    for name in _columns([row]):
        if not is_setting(name) and name != "encoder":
            table.add_row(name, _cell(name, row[name]))
    return table


def results_dictionary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the scores for JSON: encoder -> score -> percent with three decimals (settings are not rounded).

    Raises:
        ValueError: if a row has no encoder, or two rows have the same.

    Example:
        >>> results_dictionary([{"encoder": "trained", "knn top-1": 61.00000001}])
        {'trained': {'knn top-1': 61.0}}
    """
    names = [str(row.get("encoder", "")) for row in rows]
    if "" in names or len(set(names)) < len(names):
        raise ValueError(f"every row needs an 'encoder' of its own, got {names}")
    return {
        name: {
            key: float(value) if is_setting(key) else round(float(value), 3)
            for key, value in row.items()
            if key != "encoder"
        }
        for name, row in zip(names, rows, strict=True)
    }


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(name: str, value: str | float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:.3f}" if name.endswith(NO_PERCENT) else f"{value:.1f}"


FILE = "evaluation.json"
MEASURED = "measured with"  # the key next to the run's scores
UNKNOWN: dict[str, Any] = {"weights": None}  # differs from all measurements
FOR_PEOPLE = ("data_path",)
"""Settings that tell people where data was; they may change while the scores stay valid."""


def keep_scores(folder: Path, row: Row, measured: Mapping[str, Any]) -> str | None:
    """Add a row of scores to the folder's scores, or replace them all if they were measured differently.

    Args:
        folder: The run's folder.
        row: The scores, and the run's name as `encoder`.
        measured: The `weights` (see `fingerprint`) and the settings. Earlier scores of other weights, or with another
            value of the same setting, are dropped.

    Returns:
        A sentence why earlier scores were dropped; None if they were kept.
    """
    file = folder / FILE
    now: dict[str, Any] = json.loads(json.dumps(measured))  # tuples as lists, as they come back
    ((name, scores),) = results_dictionary([row]).items()
    changed: list[str] = []
    if file.is_file():
        before = _measured_before(file)
        changed = [
            setting
            for setting, value in now.items()
            if setting not in FOR_PEOPLE and before.get(setting, value) != value
        ]
        if not changed:
            scores, now = read_scores(folder) | scores, before | now
    with replacing(file) as temporary:
        temporary.write_text(json.dumps({name: scores, MEASURED: now}, indent=2) + "\n")
    return (
        f"the scores in {file} were replaced: their {', '.join(changed)} differ or are not known" if changed else None
    )


def _measured_before(file: Path) -> dict[str, Any]:
    """Return what earlier scores were measured with; `UNKNOWN` if the file does not say."""
    try:
        found = json.loads(file.read_text()).get(MEASURED, UNKNOWN)
    except (ValueError, AttributeError, RecursionError, OSError):
        return UNKNOWN
    return found if isinstance(found, dict) else UNKNOWN


def read_scores(folder: Path) -> dict[str, float]:
    """Return the scores that `antipodes evaluate` wrote into a run folder.

    Raises:
        ValueError: if there are none, or the file is damaged.
    """
    file = folder / FILE
    if not os.path.lexists(file):  # a loop of links is damaged, not absent
        raise ValueError(f"{folder} has no scores yet: run antipodes evaluate {folder}")
    try:
        (scores,) = (value for name, value in json.loads(file.read_text()).items() if name != MEASURED)
        return {str(name): float(value) for name, value in scores.items()}
    except (ValueError, AttributeError, TypeError, RecursionError, OSError) as error:
        raise ValueError(f"{file} is damaged: remove it and run antipodes evaluate {folder} again") from error


def read_measured(folder: Path) -> dict[str, Any]:
    """Return what the scores in a run folder were measured with; empty if unknown."""
    file = folder / FILE
    if not file.is_file():
        return {}
    found = _measured_before(file)
    return {} if found == UNKNOWN else found


def are_outdated(run: Run) -> bool:
    """Return True if the scores in a run's folder are of older weights than its checkpoint, which was trained on since.

    Unknown scores and runs count as up to date.

    Raises:
        ValueError: if the checkpoint is damaged.
    """
    measured = read_measured(run.folder)
    checkpoint = run.best if measured.get("checkpoint") == "best" else run.last
    if measured.get("weights") is None or not checkpoint.is_file():
        return False
    return bool(fingerprint(load_checkpoint(checkpoint)["model"]) != measured["weights"])
