"""The scores that a run folder keeps in evaluation.json, and what they were measured with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipodes.evaluation.report import Row, results_dictionary
from antipodes.files import replacing
from antipodes.runs.fingerprint import fingerprint
from antipodes.runs.folder import Run, load_checkpoint

FILE = "evaluation.json"
MEASURED = "measured with"  # the entry beside the run's scores
UNKNOWN: dict[str, Any] = {"weights": None}  # differs from everything
FOR_PEOPLE = ("data_path",)
"""What says where something was found: it may change while what was found is the same."""


def keep_scores(folder: Path, row: Row, measured: Mapping[str, Any]) -> str | None:
    """Add a row of scores to those the folder keeps, or replace them all if they do not belong together.

    Args:
        folder: Of the run.
        row: The scores, and the run's name as `encoder`.
        measured: The `weights` (see `fingerprint`) and the settings. Kept scores of other weights, or of another value
            of a setting that both name, are dropped.

    Returns:
        Why kept scores were dropped, in a sentence; None if they were not.
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
    """What kept scores were measured with; something that differs from everything where nobody can tell."""
    try:
        found = json.loads(file.read_text()).get(MEASURED, UNKNOWN)
    except (ValueError, AttributeError):
        return UNKNOWN
    return found if isinstance(found, dict) else UNKNOWN


def read_scores(folder: Path) -> dict[str, float]:
    """The scores that antipodes evaluate has left in a run folder.

    Raises:
        ValueError: if it has not, or the file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        raise ValueError(f"{folder} has no scores yet: run antipodes evaluate {folder}")
    try:
        (scores,) = (value for name, value in json.loads(file.read_text()).items() if name != MEASURED)
        return {str(name): float(value) for name, value in scores.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is damaged: remove it and run antipodes evaluate {folder} again") from error


def read_measured(folder: Path) -> dict[str, Any]:
    """What the scores in a run folder were measured with; empty where nobody knows."""
    file = folder / FILE
    if not file.is_file():
        return {}
    found = _measured_before(file)
    return {} if found == UNKNOWN else found


def are_outdated(run: Run) -> bool:
    """Whether the scores in a run's folder are of other weights than its checkpoint has by now: it was trained on.

    Scores and runs of which nobody can tell count as up to date.

    Raises:
        ValueError: if the checkpoint is damaged.
    """
    measured = read_measured(run.folder)
    checkpoint = run.best if measured.get("checkpoint") == "best" else run.last
    if measured.get("weights") is None or not checkpoint.is_file():
        return False
    return bool(fingerprint(load_checkpoint(checkpoint)["model"]) != measured["weights"])
