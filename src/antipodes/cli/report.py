"""`antipodes report`: one page of runs."""

from __future__ import annotations

import json

from antipodes.parsing import FORCE, ArgumentParser
from antipodes.reporting.report import report

DESCRIPTION = """Make one page of one or several runs: what they trained on and what was skipped, curves, scores with
their spread over seeds, the pairs that a policy flags as pictures (right and wrong are marked where there are labels),
and a map of the features. Tables can be sorted and filtered. The page is a single file that needs no network.

Examples:
antipodes report runs/a runs/b --out report.html - two runs on one page;
antipodes report runs/* --samples 0 - many runs, quickly: curves and scores alone."""


def main(arguments: list[str]) -> None:
    """Parse the call, make the page, print where it is."""
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

    page = report(
        call.runs,
        out=call.out,
        samples=call.samples,
        shown=call.shown,
        data=call.data,
        progress=True,
        force=call.force,
    )
    titles = [section.title for section in page.sections]
    if call.json:
        print(json.dumps({"out": call.out, "runs": call.runs, "sections": titles}))
    else:
        print(f"{page.title}: {', '.join(titles)}; open {call.out} in a browser")
