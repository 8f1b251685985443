"""`antipodes compare`: scores of finished runs side by side, over seeds."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.cli.train import MAY_CHANGE
from antipodes.evaluation.names import is_setting
from antipodes.evaluation.scores import are_outdated, read_measured, read_scores
from antipodes.files import is_marked, refuse_foreign
from antipodes.runs.folder import Run
from antipodes.studies.definition import Options, flatten
from antipodes.studies.report import SINGLE, SINGLE_LEGEND, Cells, differences, overview
from antipodes.studies.statistics import Line, summarise

DESCRIPTION = """Compare runs that antipodes evaluate has scored. Runs that differ only in their seed are one group: its
mean and spread, and its paired difference, over the seeds both have, to the group of the baseline. Runs that differ in
their data, encoder, epochs or batch, whose scores were measured differently or on other data, or that were trained on
since they were scored, are refused, since a difference would not be that of the methods; --anyway shows in what they
differ and compares all the same."""

CONDITIONS = ("data", "encoder", "encoders", "epochs", "batch_size")
"""Options that have to be the same for scores to be comparable; the others are what is compared."""
MEASURED_ALIKE = ("data", "epochs", "checkpoint", "test_limit", "seed")
"""What antipodes evaluate wrote beside the scores that has to be the same."""
OUTDATED = "scores of earlier weights"
TEXTS = ("variant", "against")
TEXT_WIDTH = 24
EDGES = 3
"""Letters of a column's borders."""


@dataclass
class Group:
    """Runs that differ only in their seed: seed -> run."""

    options: Options
    runs: dict[int, Run] = field(default_factory=dict)


def main(arguments: list[str]) -> None:
    """Parse, read, group, report."""
    parser = ArgumentParser(prog="antipodes compare", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=str, help="Folders that antipodes train wrote.")
    parser.add_argument("--baseline", type=str | None, default=None, metavar="RUN", help="By default the first run.")
    parser.add_argument("--scores", type=str, nargs="+", default=None, help="Which ones; by default the first few.")
    parser.add_argument("--anyway", action="store_true", help="Compare runs that were not trained or scored alike.")
    parser.add_argument("--picture", type=str | None, default=None, metavar="PNG", help="Also draw every seed.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)
    if call.picture is not None:
        refuse_foreign(call.picture, "--picture", is_marked, call.force)

    baseline = call.baseline or call.runs[0]
    folders = {os.path.realpath(folder): Path(folder) for folder in (*call.runs, baseline)}
    groups = _label(_group([Run.open(folder) for folder in folders.values()]))
    results = {
        name: {seed: read_scores(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()
    }
    apart = _conditions_apart(groups)
    if apart and not call.anyway:
        raise ValueError(f"{_why_not(apart)}: --anyway does it all the same")
    reference_run = Run(folders[os.path.realpath(baseline)])
    reference = next(name for name, group in groups.items() if reference_run in group.runs.values())
    lines = [line for line in summarise(results, reference) if not is_setting(line.score)]
    if call.scores is not None:
        lines = _only(lines, call.scores)
    members = {name: {seed: str(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()}
    if call.json:
        report = {"baseline": reference, "groups": members, "different": apart}
        print(json.dumps(report | {"summary": [asdict(line) for line in lines]}))
    else:
        _print(lines, members, apart, call.scores)
    if call.picture is not None:
        _draw(Path(call.picture), lines, results, reference)
        if not call.json:
            print(f"The picture: {call.picture}")


def _print(
    lines: Sequence[Line],
    members: Mapping[str, Mapping[int, str]],
    apart: Mapping[str, Any],
    asked: Sequence[str] | None,
) -> None:
    """One compact table, which runs are in it, and first in what their conditions differ.

    Args:
        lines: The scores of every group.
        members: The runs of every group.
        apart: In what the conditions differ.
        asked: The scores that the call names; None for the first few.
    """
    console = Console()
    if apart:
        console.print("[bold]These runs were not trained or measured alike:[/bold]", highlight=False)
        for option, values in apart.items():
            told = "; ".join(f"{name}: {value}" for name, value in values.items())
            console.print(f"  {option}: {told}", highlight=False, markup=False)
    every = dict.fromkeys(line.score for line in lines)
    cells = overview(lines) if asked is None else overview(lines, most=len(every))
    console.print("Mean ± standard deviation over seeds, and the difference to the baseline", highlight=False)
    for table in _fitting(cells, console):
        console.print(table)
    if any(SINGLE in cell for row in cells[1] for cell in row):
        console.print(SINGLE_LEGEND.strip(), highlight=False)
    if left_out := [score for score in every if score not in cells[0]]:
        console.print(f"Not shown: {', '.join(left_out)}; --scores names those to show.", highlight=False, markup=False)
    for name, seeds in members.items():
        console.print(f"{name}: {', '.join(seeds.values())}", highlight=False, markup=False, soft_wrap=True)


def _fitting(cells: Cells, console: Console) -> list[Table]:
    """The cells as tables that are no wider than the terminal: columns that do not fit go into another one below."""
    header, rows = cells
    widths = [_width(name, [row[place] for row in rows]) for place, name in enumerate(header)]
    tables: list[list[int]] = [[0]]
    for column in range(1, len(header)):
        used = sum(widths[one] + EDGES for one in (*tables[-1], column)) + 1
        if len(tables[-1]) > 1 and used > console.width:
            tables.append([0])
        tables[-1].append(column)
    return [_table(header, rows, columns, widths) for columns in tables]


def _width(name: str, cells: Sequence[str]) -> int:
    """Letters that a column needs: names may be wrapped to a few words a line, headers to one, numbers stay whole."""
    longest = max(map(len, cells))
    return min(longest, TEXT_WIDTH) if name in TEXTS else max(longest, *map(len, name.split()))


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], widths: Sequence[int]
) -> Table:
    """Some columns of a table."""
    table = Table()
    for column in columns:
        if header[column] in TEXTS:
            table.add_column(header[column], min_width=widths[column], overflow="fold")
        else:
            table.add_column(header[column], width=widths[column], justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(row[column]) for column in columns))
    return table


def _draw(file: Path, lines: Sequence[Line], results: Mapping[str, Any], reference: str) -> None:
    """Every seed of every group as a picture.

    Raises:
        ValueError: if matplotlib is missing.
    """
    from antipodes.evaluation.figures import save
    from antipodes.studies.figure import scores_figure

    report = {"title": "Every seed", "baseline": reference, "records": [], "results": results}
    file.parent.mkdir(parents=True, exist_ok=True)
    save(scores_figure(report | {"summary": [asdict(line) for line in lines]}), file, "png")


def _only(lines: Sequence[Line], scores: Sequence[str]) -> list[Line]:
    known = dict.fromkeys(line.score for line in lines)
    for score in scores:
        if score not in known:
            raise ValueError(f"no run has the score {score!r}: there are {', '.join(known)}")
    return [line for score in scores for line in lines if line.score == score]


def _conditions_apart(groups: Mapping[str, Group]) -> dict[str, dict[str, Any]]:
    """Option -> group -> its value, of the conditions in which groups or their scores differ."""
    trained = {
        name: flatten({key: value for key, value in group.options.items() if key in CONDITIONS})
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


def _measured_with(group: Group, key: str) -> list[str]:
    """What the scores of a group were measured with, of those where it is known; the best epoch is each run's own."""
    measured = [read_measured(run.folder) for run in group.runs.values()]
    known = (one for one in measured if key in one and (key != "epochs" or one.get("checkpoint") != "best"))
    return sorted({str(one[key]) for one in known})


def _outdated(group: Group) -> str:
    """The runs of a group that were trained on since they were scored."""
    return ", ".join(str(run.folder) for run in group.runs.values() if are_outdated(run))


def _why_not(apart: Mapping[str, Mapping[str, Any]]) -> str:
    """Why runs cannot be compared, and what would help."""
    if runs := apart.get(OUTDATED):
        told = ", ".join(map(str, runs.values()))
        return f"the scores of {told} are of earlier weights than the run has now, run antipodes evaluate again"
    return f"these runs cannot be compared, they differ in {_in_words(apart)}"


def _in_words(apart: Mapping[str, Mapping[str, Any]]) -> str:
    return "; ".join(
        f"{option} ({', '.join(dict.fromkeys(str(value) for value in values.values()))})"
        for option, values in apart.items()
    )


def _group(runs: list[Run]) -> list[Group]:
    groups: list[Group] = []
    for run in runs:
        config = run.config()
        seed = config["seed"]
        options = {key: value for key, value in config.items() if key not in ("seed", "out", *MAY_CHANGE)}
        group = next((group for group in groups if group.options == options), None)
        if group is None:
            groups.append(group := Group(options))
        if seed in group.runs:
            raise ValueError(
                f"{group.runs[seed].folder} and {run.folder} have the same settings and the same seed {seed}: "
                "leave one of them out"
            )
        group.runs[seed] = run
    return groups


def _label(groups: list[Group]) -> dict[str, Group]:
    """Groups by what they trained; those of the same name are told apart by the options in which they differ."""
    labels: dict[str, Group] = {}
    names = [next(iter(group.runs.values())).title() for group in groups]
    for name in dict.fromkeys(names):
        alike = [group for group, other in zip(groups, names, strict=True) if other == name]
        _, apart = differences({str(place): group.options for place, group in enumerate(alike)})
        for group, options in zip(alike, apart.values(), strict=True):
            labels[", ".join([name, *(f"{option} {value}" for option, value in options.items())])] = group
    return labels
