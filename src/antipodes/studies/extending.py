"""Going on from a report: runs whose folders are gone count as finished where a study's JSON has their scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipodes.studies.definition import Options, Study, Trial, flatten
from antipodes.studies.grid import Grid
from antipodes.studies.in_process import InProcess


def read_report(file: Path, study: Study) -> dict[str, Any]:
    """The report of a study from its JSON.

    Raises:
        ValueError: if there is none, or it measured in another way than the study does now.
    """
    if not file.is_file():
        raise ValueError(f"--extend goes on from {file}, which does not exist: leave it out for the first report")
    report: dict[str, Any] = json.loads(file.read_text())
    for name in ("budget", "protocols", "test_limit", "transfer", "transfer_limit", "transfer_normalise"):
        now, then = getattr(study, name), report.get(name, "run" if name == "transfer_normalise" else None)
        if then != now:
            raise ValueError(f"{file} was made with {name} {then}, the study now says {now}: run it again")
    return report


def keep_reported(
    grid: Grid | InProcess,
    configurations: Mapping[Trial, Options],
    described: Mapping[Trial, Options],
    report: Mapping[str, Any],
) -> int:
    """Put the scores of a report into the folders of its runs, where these have none and the options are the same.

    Args:
        grid: The runs of the study.
        configurations: Their options.
        described: The same as a report names them.
        report: From `read_report`.

    Returns:
        How many runs were taken over.
    """
    kept = 0
    for trial in grid.trials:
        scores = report["results"].get(trial.variant, {}).get(str(trial.seed))
        if scores is None or trial.folder.exists():
            continue
        before = {**report["common"], **report["variants"].get(trial.variant, {})}
        if _is_same(before, described[trial], exactly=isinstance(grid, InProcess)):
            grid.keep(trial, scores, configurations[trial])
            kept += 1
    return kept


def _is_same(before: Mapping[str, Any], asked: Options, exactly: bool) -> bool:
    """Whether a run had these options.

    Those of training runs are complete, so that one which only one of both knows came with another version of
    antipodes and is let pass, unless it names another tower; a runner's are compared exactly.
    """
    now = json.loads(json.dumps(flatten(asked), default=str))
    if exactly:
        return bool(before == now)
    towers = [{name for name in options if name.startswith("encoders.")} for options in (before, now)]
    return towers[0] == towers[1] and all(before[name] == value for name, value in now.items() if name in before)
