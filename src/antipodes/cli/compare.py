"""`antipodes compare`: scores of finished runs side by side, over seeds."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from antipodes.cli.evaluate import config_name
from antipodes.cli.train import MAY_CHANGE
from antipodes.evaluation.names import is_setting
from antipodes.evaluation.scores import read_scores
from antipodes.runs.folder import Run
from antipodes.study.definition import Options
from antipodes.study.report import differences, tables
from antipodes.study.statistics import summarise

DESCRIPTION = """Compare runs that antipodes evaluate has scored. Runs that differ only in their seed are one group: its
mean and spread, and its paired difference, over the seeds both have, to the group of the baseline."""


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
    parser.add_argument("--json", action="store_true", help="Print JSON instead of tables.")
    call = parser.parse_args(arguments)

    baseline = call.baseline or call.runs[0]
    folders = {Path(folder).resolve(): Path(folder) for folder in (*call.runs, baseline)}
    groups = _label(_group([Run.open(folder) for folder in folders.values()]))
    reference_run = Run(folders[Path(baseline).resolve()])
    reference = next(name for name, group in groups.items() if reference_run in group.runs.values())
    results = {
        name: {seed: read_scores(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()
    }
    lines = [line for line in summarise(results, reference) if not is_setting(line.score)]
    if call.json:
        members = {name: {seed: str(run.folder) for seed, run in group.runs.items()} for name, group in groups.items()}
        print(json.dumps({"baseline": reference, "groups": members, "summary": [asdict(line) for line in lines]}))
        return
    console = Console()
    for table in tables(lines):
        console.print(table)


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
