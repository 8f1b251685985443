"""`antipodes compare`: scores of finished runs, over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from antipodes.files import is_marked, refuse_foreign
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.studies.comparison import compare
from antipodes.studies.report import SINGLE, SINGLE_LEGEND, Cells, overview
from antipodes.studies.statistics import Line

DESCRIPTION = """Compare runs that antipodes evaluate has scored. Runs that differ only in their seed are one group: its
mean and spread, and its paired difference, over the seeds both have, to the group of the baseline. Runs that differ in
their data, encoder, epochs or batch, whose scores were measured differently or on other data, or that were trained on
since they were scored, are refused, since a difference would not be that of the methods; --anyway shows in what they
differ and compares all the same."""

TEXTS = ("variant", "against")
TEXT_WIDTH = 24
EDGES = 3
"""Letters of a column's borders."""


def main(arguments: list[str]) -> None:
    """Parse the call, compare, print the table."""
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

    found = compare(call.runs, baseline=call.baseline, scores=call.scores, anyway=call.anyway)
    if call.json:
        report = {"baseline": found.baseline, "groups": found.groups, "different": found.different}
        print(json.dumps(report | {"summary": [asdict(line) for line in found.lines]}))
    else:
        _print(found.lines, found.groups, found.different, call.scores)
    if call.picture is not None:
        found.draw(call.picture)
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
