"""The README's "does it help?": its tables from the results of studies, the sentences around them from a note."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from antipodes.files import replacing
from antipodes.study.map import CATALOGUE, Gain, gain_of, read_results

FIRST, LAST = "<!-- evidence -->", "<!-- /evidence -->"
"""Between these two lines of the README stands what is written here."""
_TABLE = re.compile(r"^<!-- table: (.+) -->$", re.MULTILINE)


def write_readme(evidence: Path, catalogue: Path = CATALOGUE) -> Path | None:
    """Write the tables into the README of the project that a folder `docs/evidence` belongs to.

    Returns:
        The README; None if there is none with a place for them, or no note beside the evidence.

    Raises:
        ValueError: if the note asks for a table that the catalogue does not know or that has no results.
    """
    readme, note = evidence.absolute().parents[1] / "README.md", evidence / "notes" / "readme.md"
    if not readme.is_file() or not note.is_file() or FIRST not in (text := readme.read_text()):
        return None
    before, _, rest = text.partition(FIRST)
    after = rest.partition(LAST)[2]
    with replacing(readme) as file:
        file.write_text(f"{before}{FIRST}\n{readme_block(evidence, catalogue)}\n{LAST}{after}")
    return readme


def readme_block(evidence: Path, catalogue: Path = CATALOGUE) -> str:
    """The note `notes/readme.md`, each of its lines `<!-- table: NAME -->` replaced by that table of the catalogue."""
    tables: Mapping[str, Any] = yaml.safe_load(catalogue.read_text())["readme"]

    def table(match: re.Match[str]) -> str:
        if match[1] not in tables:
            raise ValueError(
                f"notes/readme.md asks for the table {match[1]!r}: {catalogue.name} has {', '.join(tables)}"
            )
        return _table(tables[match[1]], evidence)

    return _TABLE.sub(table, (evidence / "notes" / "readme.md").read_text().strip())


def _table(spec: Mapping[str, Any], evidence: Path) -> str:
    rows = [[spec["title"], "without", "with", "difference", "p", "seeds"], ["---", *["---:"] * 5]]
    for words, row in spec["rows"].items():
        results = read_results([row["study"]], evidence)
        gain = None if results is None else gain_of(results, row["variant"], row["baseline"], spec["score"])
        if results is None or gain is None:
            raise ValueError(f"{evidence} has no results of {row['variant']} in {row['study']}.json, for {words!r}")
        rows.append([words, *_cells(gain, results, row, spec["score"])])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(gain: Gain, results: Mapping[str, Any], row: Mapping[str, str], score: str) -> list[str]:
    common = results[row["baseline"]].keys() & results[row["variant"]].keys()
    means = [fmean(results[row[name]][seed][score] for seed in common) for name in ("baseline", "variant")]
    chance = "-" if gain.p is None else "<0.001" if gain.p < 0.001 else f"{gain.p:.3f}"
    return [*(f"{mean:.1f}" for mean in means), f"{gain.difference:+.1f}", chance, str(gain.seeds)]
