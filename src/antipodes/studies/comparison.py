"""`antipodes.compare`: scores of finished runs, by variant, over seeds.

1. Runs that differ only in their seed form a group.
2. Groups that were not trained or measured alike are refused, since a difference would not be that of the methods.
3. Every group is compared with that of the baseline over the seeds that both have (`statistics.summarise`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodes.evaluation.protocol import is_setting
from antipodes.evaluation.scores import are_outdated, read_measured, read_scores
from antipodes.runs.configuration import MAY_CHANGE
from antipodes.runs.folder import Run
from antipodes.studies.definition import Options, flatten_options
from antipodes.studies.report import differences, text_table
from antipodes.studies.statistics import Line, summarise
from antipodes.tables import require_out, write_table

CONDITIONS = ("data", "encoder", "encoders", "epochs", "batch_size")
"""Options that have to be the same for scores to be comparable; the others are what is compared."""
MEASURED_ALIKE = ("data", "epochs", "checkpoint", "test_limit", "seed")
"""The settings of evaluation, kept with the scores, that have to be the same."""
OUTDATED = "scores of earlier weights"
FORMATS = (".csv", ".parquet", ".json")
"""The files that `Comparison.save` writes."""


@dataclass
class SeedGroup:
    """Runs that differ only in their seed: seed -> run."""

    options: Options
    runs: dict[int, Run] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Groups of runs against the group of a baseline.

    Args:
        lines: a score of a group each: mean, spread, paired difference to the baseline, its p.
        baseline: the name of the baseline's group.
        groups: group -> seed -> folder of the run.
        different: option -> group -> value, of the conditions in which the groups differ.
        results: group -> seed -> score -> number.
    """

    lines: tuple[Line, ...]
    baseline: str
    groups: dict[str, dict[int, str]]
    different: dict[str, dict[str, Any]]
    results: dict[str, dict[int, dict[str, float]]] = field(repr=False)

    def __str__(self) -> str:
        """Return one table: mean ± spread of every group, and the paired difference to the baseline with its p."""
        return text_table(self.lines)

    @cached_property
    def table(self) -> dict[str, NDArray[Any]]:
        """The lines by column."""
        rows = [asdict(line) for line in self.lines]
        return {name: _column([row[name] for row in rows]) for name in (rows[0] if rows else ())}

    def save(self, path: str | Path) -> None:
        """Write the table to a .csv, .parquet or .json file."""
        write_table(require_out(path, FORMATS), self.table)

    def draw(self, path: str | Path) -> None:
        """Draw every seed of every group as a PNG.

        Raises:
            ValueError: if matplotlib is missing.
        """
        from antipodes.evaluation.figures import save
        from antipodes.studies.figure import scores_figure

        file = Path(path)
        report = {"title": "Every seed", "baseline": self.baseline, "records": [], "results": self.results}
        file.parent.mkdir(parents=True, exist_ok=True)
        save(scores_figure(report | {"summary": [asdict(line) for line in self.lines]}), file, "png")


def compare(
    runs: Sequence[str | Path],
    *,
    baseline: str | Path | None = None,
    scores: Sequence[str] | None = None,
    anyway: bool = False,
) -> Comparison:
    """Compare runs that `evaluate` has scored, over seeds.

    Args:
        runs: folders of runs; those that differ only in their seed are one group.
        baseline: the run whose group the others are compared with; the first if not given.
        scores: names of scores; all if not given.
        anyway: compare runs that were not trained or measured alike.

    Raises:
        ValueError: if a run has no scores, two runs are the same, or they cannot be compared.
    """
    listed = [runs] if isinstance(runs, str | Path) else list(runs)
    if not listed:
        raise ValueError("runs is empty: name the folders of at least one run")
    first = baseline or listed[0]
    folders = {os.path.realpath(folder): Path(folder) for folder in (*listed, first)}
    groups = _label(_group([Run.open(folder) for folder in folders.values()]))
    results = {
        name: {seed: read_scores(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()
    }
    apart = _conditions_apart(groups)
    if apart and not anyway:
        raise ValueError(f"{_why_not(apart)}: --anyway does it all the same")
    reference_run = Run(folders[os.path.realpath(first)])
    reference = next(name for name, group in groups.items() if reference_run in group.runs.values())
    lines = [line for line in summarise(results, reference) if not is_setting(line.score)]
    if scores is not None:
        lines = _only(lines, scores)
    members = {name: {seed: str(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()}
    return Comparison(tuple(lines), reference, members, apart, results)


def _column(values: list[Any]) -> NDArray[Any]:
    """Values as an array: whole numbers, or floats where a missing one is NaN; everything else as objects."""
    if values and all(isinstance(value, int) for value in values):
        return np.array(values, dtype=np.int64)
    if all(isinstance(value, int | float) or value is None for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _only(lines: Sequence[Line], scores: Sequence[str]) -> list[Line]:
    known = dict.fromkeys(line.score for line in lines)
    for score in scores:
        if score not in known:
            raise ValueError(f"no run has the score {score!r}: there are {', '.join(known)}")
    return [line for score in scores for line in lines if line.score == score]


def _conditions_apart(groups: Mapping[str, SeedGroup]) -> dict[str, dict[str, Any]]:
    """Option -> group -> its value, of the conditions in which groups or their scores differ."""
    trained = {
        name: flatten_options({key: value for key, value in group.options.items() if key in CONDITIONS})
        for name, group in groups.items()
    }
    apart: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for options in trained.values() for key in options):
        values = {name: options.get(key) for name, options in trained.items()}
        if len({str(value) for value in values.values()}) > 1:
            apart[key] = values
    for key in MEASURED_ALIKE:
        used = {name: _measured_with(group, key) for name, group in groups.items()}
        if len({value for several in used.values() for value in several}) > 1:
            apart[f"measured with {key}"] = {name: ", ".join(several) or None for name, several in used.items()}
    outdated = {name: _outdated(group) for name, group in groups.items()}
    if any(outdated.values()):
        apart[OUTDATED] = {name: runs for name, runs in outdated.items() if runs}
    return apart


def _measured_with(group: SeedGroup, key: str) -> list[str]:
    """What the scores of a group were measured with, of those where it is known; the best epoch is each run's own."""
    measured = [read_measured(run.folder) for run in group.runs.values()]
    known = (one for one in measured if key in one and (key != "epochs" or one.get("checkpoint") != "best"))
    return sorted({str(one[key]) for one in known})


def _outdated(group: SeedGroup) -> str:
    """The runs of a group that were trained on since they were scored."""
    return ", ".join(str(run.folder) for run in group.runs.values() if are_outdated(run))


def _why_not(apart: Mapping[str, Mapping[str, Any]]) -> str:
    """Why runs cannot be compared, and what to do."""
    if runs := apart.get(OUTDATED):
        told = ", ".join(map(str, runs.values()))
        return f"the scores of {told} are of earlier weights than the run has now, run antipodes evaluate again"
    return f"these runs cannot be compared, they differ in {_in_words(apart)}"


def _in_words(apart: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{option} ({', '.join(dict.fromkeys(str(value) for value in values.values()))})"
        for option, values in apart.items()
    )


def _group(runs: list[Run]) -> list[SeedGroup]:
    groups: list[SeedGroup] = []
    for run in runs:
        config = run.config
        seed = config["seed"]
        options = {key: value for key, value in config.items() if key not in ("seed", "out", *MAY_CHANGE)}
        group = next((group for group in groups if group.options == options), None)
        if group is None:
            groups.append(group := SeedGroup(options))
        if seed in group.runs:
            raise ValueError(
                f"{group.runs[seed].folder} and {run.folder} have the same settings and the same seed {seed}: "
                "leave one of them out"
            )
        group.runs[seed] = run
    return groups


def _label(groups: list[SeedGroup]) -> dict[str, SeedGroup]:
    """Groups by what they trained; groups of one name are distinguished by the options in which they differ."""
    labels: dict[str, SeedGroup] = {}
    names = [next(iter(group.runs.values())).title() for group in groups]
    for name in dict.fromkeys(names):
        alike = [group for group, other in zip(groups, names, strict=True) if other == name]
        _, apart = differences({str(place): group.options for place, group in enumerate(alike)})
        for group, options in zip(alike, apart.values(), strict=True):
            labels[", ".join([name, *(f"{option} {value}" for option, value in options.items())])] = group
    return labels
