"""Write the pages about all studies from their results: `python -m research.ledger`, or some of them by name."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from antipodes.files import replacing
from research.ledger.claims import ledger_page
from research.ledger.map import write_map
from research.ledger.papers import page
from research.ledger.prose import write_does_it_help, write_readme
from research.ledger.quick import quick_page
from research.ledger.reports import DOCS, PLACES, RESULTS


def _write(file: Path, text: str) -> list[Path]:
    with replacing(file) as temporary:
        temporary.write_text(text)
    return [file]


WRITERS: dict[str, Callable[[], Iterable[Path | None]]] = {
    "claims": lambda: _write(DOCS / "claims.md", ledger_page(RESULTS)),
    "papers": lambda: _write(DOCS / "papers.md", page(RESULTS)),
    "quick": lambda: _write(PLACES.pages / "quick.md", quick_page()),
    "map": write_map,
    "does-it-help": lambda: [write_does_it_help()],
    "readme": lambda: [write_readme()],
}


def main() -> None:
    """Write the pages that the call names, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m research.ledger", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"Some of {', '.join(WRITERS)}; all by default.")
    asked = parser.parse_args().pages
    for name in asked:
        if name not in WRITERS:
            parser.error(f"unknown page {name!r}: choose from {', '.join(WRITERS)}")
    for name in asked or WRITERS:
        for file in WRITERS[name]():
            if file is not None:
                print(os.path.relpath(file))


if __name__ == "__main__":
    main()
