"""`antipodes compare`: scores of finished runs side by side, over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antipodes.cli.evaluate import config_name
from antipodes.cli.parser import ArgumentParser
from antipodes.cli.train import MAY_CHANGE
from antipodes.evaluation.names import is_setting
from antipodes.evaluation.scores import read_measured, read_scores
from antipodes.runs.folder import Run
from antipodes.study.definition import Options, flatten
from antipodes.study.report import differences, overview
from antipodes.study.statistics import Line, summarise

DESCRIPTION = """Compare runs that antipodes evaluate has scored. Runs that differ only in their seed are one group: its
mean and spread, and its paired difference, over the seeds both have, to the group of the baseline. Runs that differ in
their data, encoder, epochs or batch, or whose scores were measured differently, are refused, since a difference would
not be that of the methods; --anyway shows in what they differ and compares all the same."""

CONDITIONS = ("data", "encoder", "encoders", "epochs", "batch_size")
"""Options that have to be the same for scores to be comparable; the others are what is compared."""
MEASURED_ALIKE = ("checkpoint", "test_limit", "seed")
"""Settings of antipodes evaluate that have to be the same."""


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
    parser.add_argument("--anyway", action="store_true", help="Compare runs of other data, encoder, epochs or batch.")
    parser.add_argument("--picture", type=str | None, default=None, metavar="PNG", help="Also draw every seed.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    call = parser.parse_args(arguments)

    baseline = call.baseline or call.runs[0]
    folders = {Path(folder).resolve(): Path(folder) for folder in (*call.runs, baseline)}
    groups = _label(_group([Run.open(folder) for folder in folders.values()]))
    results = {
        name: {seed: read_scores(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()
    }
    apart = _conditions_apart(groups)
    if apart and not call.anyway:
        raise ValueError(
            f"these runs cannot be compared, they differ in {_in_words(apart)}: --anyway does it all the same"
        )
    reference_run = Run(folders[Path(baseline).resolve()])
    reference = next(name for name, group in groups.items() if reference_run in group.runs.values())
    lines = [line for line in summarise(results, reference) if not is_setting(line.score)]
    if call.scores is not None:
        lines = _only(lines, call.scores)
    members = {name: {seed: str(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()}
    if call.json:
        report = {"baseline": reference, "groups": members, "different": apart}
        print(json.dumps(report | {"summary": [asdict(line) for line in lines]}))
    else:
        _print(lines, members, apart)
    if call.picture is not None:
        _draw(Path(call.picture), lines, results, reference)
        if not call.json:
            print(f"The picture: {call.picture}")


def _print(lines: Sequence[Line], members: Mapping[str, Mapping[int, str]], apart: Mapping[str, Any]) -> None:
    """One compact table, which runs are in it, and first in what their conditions differ."""
    console = Console()
    if apart:
        console.print("[bold]These runs were not trained or measured alike:[/bold]", highlight=False)
        for option, values in apart.items():
            told = "; ".join(f"{name}: {value}" for name, value in values.items())
            console.print(f"  {option}: {told}", highlight=False, markup=False)
    header, rows = overview(lines)
    table = Table(title="Mean ± standard deviation over seeds, and the difference to the baseline")
    for name in header:
        table.add_column(name, justify="left" if name == "variant" else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    for name, seeds in members.items():
        console.print(f"{name}: {', '.join(seeds.values())}", highlight=False, markup=False, soft_wrap=True)


def _draw(file: Path, lines: Sequence[Line], results: Mapping[str, Any], reference: str) -> None:
    """Every seed of every group as a picture.

    Raises:
        ValueError: if matplotlib is missing.
    """
    from antipodes.evaluation.figures import save
    from antipodes.study.figure import scores_figure

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
    """Option -> group -> its value, of the conditions in which groups differ."""
    conditions: dict[str, dict[str, Any]] = {}
    for name, group in groups.items():
        trained = flatten({key: value for key, value in group.options.items() if key in CONDITIONS})
        measured = [read_measured(run.folder) for run in group.runs.values()]
        for key in MEASURED_ALIKE:
            if used := {str(one[key]) for one in measured if key in one}:
                trained[f"measured with {key}"] = ", ".join(sorted(used))
        conditions[name] = trained
    every = dict.fromkeys(key for trained in conditions.values() for key in trained)
    apart = {}
    for key in every:
        values = {name: trained.get(key) for name, trained in conditions.items()}
        known = [value for value in values.values() if value is not None or not key.startswith("measured")]
        if any(value != known[0] for value in known):
            apart[key] = values
    return apart


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
    names = [config_name(next(iter(group.runs.values()))) for group in groups]
    for name in dict.fromkeys(names):
        alike = [group for group, other in zip(groups, names, strict=True) if other == name]
        _, apart = differences({str(place): group.options for place, group in enumerate(alike)})
        for group, options in zip(alike, apart.values(), strict=True):
            labels[", ".join([name, *(f"{option} {value}" for option, value in options.items())])] = group
    return labels
