"""`antipodes report`: one page of runs."""

from __future__ import annotations

import json
from pathlib import Path

from antipodes.auditing.outputs import require_out
from antipodes.cli.evaluate import progress_bar
from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.files import is_marked, refuse_foreign
from antipodes.reporting.page import require_jinja, write_page
from antipodes.reporting.run_page import run_page

DESCRIPTION = """Make one page of one or several runs: what they trained on and what was skipped, curves, scores with
their spread over seeds, the pairs that a policy flags as pictures (right and wrong are marked where there are labels),
and a map of the features. Tables can be sorted and filtered. The page is a single file that needs no network.

Examples:
antipodes report runs/a runs/b --out report.html - two runs beside each other;
antipodes report runs/* --samples 0 - many runs, quickly: curves and scores alone."""


def main(arguments: list[str]) -> None:
    """Parse, look, write, say where."""
    parser = ArgumentParser(prog="antipodes report", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=str, help="Folders that antipodes train wrote.")
    parser.add_argument("--out", type=str, default="report.html", help="File of the page.")
    parser.add_argument(
        "--samples", type=int, default=1000, help="Training samples for flags and maps; 0 leaves these out."
    )
    parser.add_argument(
        "--data", type=str | None, default=None, metavar="PATH", help="Where the runs' data is now, if it has moved."
    )
    parser.add_argument("--shown", type=int, default=100, help="Flagged pairs of every run.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a sentence.")
    call = parser.parse_args(arguments)

    if call.samples < 0 or call.samples == 1:
        raise ValueError(f"samples must be 0, or at least 2, got {call.samples}")
    require_jinja()
    out = require_out(call.out, (".html",))
    refuse_foreign(out, "--out", is_marked, call.force)
    with progress_bar("runs") as progress:
        page = run_page([Path(run) for run in call.runs], call.samples, call.shown, progress, call.data)
    write_page(out, page)
    if call.json:
        sections = [section.title for section in page.sections]
        print(json.dumps({"out": str(out), "runs": call.runs, "sections": sections}))
    else:
        print(f"{page.title}: {', '.join(section.title for section in page.sections)}; open {out} in a browser")
