"""The scores of runs as the first section of their page: a table, and bars with the spread over seeds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from antipodes.evaluation.protocol import is_setting
from antipodes.evaluation.scores import FILE, NO_PERCENT, are_outdated, read_measured, read_scores
from antipodes.pages.page import Cell, Scores, Section, Spread, Table
from antipodes.reporting.drawings import Bar, draw_bars
from antipodes.runs.folder import Run

MOST_BARS = 4  # scores that are drawn
TRAINING = "kNN while training"
"""The score of the last epoch, which stands in for runs that were not evaluated."""


@dataclass(frozen=True)
class RunScores:
    """The scores of one run.

    Args:
        scores: Name -> number, of antipodes evaluate; empty if it was not called.
        data: What they were measured on; empty if it is not known.
        outdated: True if the run was trained on since.
        in_training: The kNN accuracy of the last epoch that has one, in percent; None if there is none.
    """

    scores: Mapping[str, float]
    data: str = ""
    outdated: bool = False
    in_training: float | None = None


def measured_of(run: Run, in_training: float | None) -> RunScores:
    """Read the scores of a run.

    Raises:
        ValueError: if its file of scores is damaged.
    """
    if not (run.folder / FILE).is_file():
        return RunScores({}, in_training=in_training)
    scores = read_scores(run.folder)
    return RunScores(scores, str(read_measured(run.folder).get("data", "")), are_outdated(run), in_training)


def score_sections(
    runs: Mapping[str, Run], configs: Mapping[str, Mapping[str, Any]], measured: Mapping[str, RunScores]
) -> tuple[Section, list[Section]]:
    """Return the section of scores, and the folded tables that explain it.

    1. Runs that differ only in their seed, scored on one data, are one row: mean ± standard deviation.
    2. The first scores that are percentages are drawn as bars, a dot for every seed.
    3. What makes scores incomparable is said above the table.
    """
    groups = _groups(runs, configs, measured)
    names = list(dict.fromkeys(name for one in measured.values() for name in one.scores))
    shown = [name for name in names if not is_setting(name)]
    values = {label: [_row(measured[run], shown) for run in members] for label, members in groups.items()}
    if any(not one.scores for one in measured.values()) and any(one.in_training for one in measured.values()):
        shown.append(TRAINING)
    kept = {
        label: {name: [row[name] for row in rows if name in row] for name in shown} for label, rows in values.items()
    }
    table: list[list[Cell]] = [[label, *(_cell(found[name]) for name in shown)] for label, found in kept.items()]
    drawn = [name for name in shown if not name.endswith(NO_PERCENT)][:MOST_BARS]
    bars = {name: [Bar(label, found[name]) for label, found in kept.items() if found[name]] for name in drawn}
    drawings = [
        draw_bars(name, rows)
        for name, rows in bars.items()
        if rows and all(0 <= value <= 100 for bar in rows for value in bar.values)
    ]
    section = Scores("Scores", ["run", *shown], table, drawings, _note(measured, groups))
    return section, _every_run(names, groups, measured)


def _groups(
    runs: Mapping[str, Run], configs: Mapping[str, Mapping[str, Any]], measured: Mapping[str, RunScores]
) -> dict[str, list[str]]:
    """Return runs that differ only in their seed by what they are called; runs of old scores stay alone."""
    found: dict[str, list[str]] = {}
    for run, config in configs.items():
        same = {name: value for name, value in config.items() if name not in ("seed", "out")}
        apart = run if measured[run].outdated else ""
        found.setdefault(json.dumps([same, measured[run].data, apart], sort_keys=True, default=str), []).append(run)
    titles = [runs[members[0]].title() for members in found.values()]
    named = {}
    for title, members in zip(titles, found.values(), strict=True):
        several = f"{title}, {len(members)} seeds" + (f": {', '.join(members)}" if titles.count(title) > 1 else "")
        alone = members[0] + " †" * measured[members[0]].outdated
        named[several if len(members) > 1 else alone] = members
    return named


def _row(one: RunScores, shown: Sequence[str]) -> dict[str, float]:
    """Return the scores of a run that a table shows, with the one of training."""
    row = {name: one.scores[name] for name in shown if name in one.scores}
    return row if one.in_training is None else {**row, TRAINING: one.in_training}


def _cell(values: Sequence[float]) -> Cell:
    if not values:
        return None
    return values[0] if len(values) == 1 else Spread(statistics.mean(values), statistics.stdev(values))


def _note(measured: Mapping[str, RunScores], groups: Mapping[str, Sequence[str]]) -> str:
    """Say what the numbers are, what is missing, and what is not comparable."""
    note = "In percent unless the name says otherwise"
    several = any(len(members) > 1 for members in groups.values())
    note += "; mean ± standard deviation over runs that differ only in their seed." if several else "."
    if missing := [run for run, one in measured.items() if not one.scores]:
        note += f" Not evaluated yet: {', '.join(missing)} (antipodes evaluate RUN)."
    if any(one.outdated for one in measured.values()):
        note += " † Of earlier weights: the run was trained on since, antipodes evaluate measures it again."
    if len({one.data for one in measured.values() if one.data}) > 1:
        told = "; ".join(f"{run}: {one.data or 'not known'}" for run, one in measured.items() if one.scores)
        note += f" Measured on different data, so not comparable: {told}."
    return note


def _every_run(
    names: Sequence[str], groups: Mapping[str, Sequence[str]], measured: Mapping[str, RunScores]
) -> list[Section]:
    """Return the tables below: every number of every run, and the extremes over seeds."""
    if not names:
        return []
    rows: list[list[Cell]] = [
        [run + " †" * one.outdated, *(one.scores.get(name) for name in names)] for run, one in measured.items()
    ]
    sections: list[Section] = [Table("Every run", ["run", *names], rows, "All that antipodes evaluate kept.", True)]
    spread: list[list[Cell]] = []
    for members in groups.values():
        for name in names:
            values = [measured[run].scores[name] for run in members if name in measured[run].scores]
            if len(values) > 1:
                numbers = [statistics.mean(values), statistics.stdev(values), min(values), max(values), len(values)]
                spread.append([", ".join(members), name, *numbers])
    if spread:
        columns = ["runs", "score", "mean", "standard deviation", "least", "most", "seeds"]
        sections.append(Table("Scores over seeds", columns, spread, "Runs that differ only in their seed.", True))
    return sections
