"""`docs/does-it-help.md` and the README's table: sentences from a note, tables from the results of the studies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from antipodes.files import replacing
from antipodes.studies.reports import Places
from research.ledger.map import Gain, gain_of
from research.ledger.reports import DOCS, PLACES, PROJECT, read_results
from research.tables import paired_p, probability, scores_of

CATALOGUE = Path(__file__).parent / "tables.yaml"
FIRST, LAST = "<!-- evidence -->", "<!-- /evidence -->"
"""The README's block between these two lines is written here."""
_TABLE = re.compile(r"^<!-- table: (.+) -->$", re.MULTILINE)


def write_does_it_help() -> Path:
    """Write docs/does-it-help.md from its note."""
    with replacing(DOCS / "does-it-help.md") as file:
        file.write_text(f"{filled('does-it-help')}\n")
    return DOCS / "does-it-help.md"


def write_readme(
    readme: Path = PROJECT / "README.md", places: Places = PLACES, catalogue: Path = CATALOGUE
) -> Path | None:
    """Write the block of the README from its note.

    Returns:
        The README; None if it has no place for the block.
    """
    if FIRST not in (text := readme.read_text()):
        return None
    before, _, rest = text.partition(FIRST)
    after, block = rest.partition(LAST)[2], filled("readme", places, catalogue)
    with replacing(readme) as file:
        file.write_text(f"{before}{FIRST}\n{block}\n{LAST}{after}")
    return readme


def filled(name: str, places: Places = PLACES, catalogue: Path = CATALOGUE) -> str:
    """A note with each of its lines `<!-- table: NAME -->` replaced by that table of the catalogue.

    Raises:
        ValueError: if the note asks for a table that the catalogue does not know or that has no results.
    """
    tables: Mapping[str, Any] = yaml.safe_load(catalogue.read_text())

    def table(match: re.Match[str]) -> str:
        if match[1] not in tables:
            raise ValueError(
                f"notes/{name}.md asks for the table {match[1]!r}: {catalogue.name} has {', '.join(tables)}"
            )
        return _table(tables[match[1]], places.results)

    return _TABLE.sub(table, places.note(name))


def _table(spec: Mapping[str, Any], folder: Path) -> str:
    rows = [[spec["title"], "without", "with", "difference", "p", "seeds"], ["---", *["---:"] * 5]]
    for words, row in spec["rows"].items():
        if "records" in row:
            rows.append([words, *_cells_of_records(row, spec["score"], folder)])
            continue
        results = read_results([row["study"]], folder)
        score = row.get("score", spec["score"])
        gain = None if results is None else gain_of(results, row["variant"], row["baseline"], score)
        if results is None or gain is None:
            raise ValueError(f"{folder} has no results of {row['variant']} in {row['study']}.json, for {words!r}")
        rows.append([words, *_cells(gain, results, row, score)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cells(gain: Gain, results: Mapping[str, Any], row: Mapping[str, str], score: str) -> list[str]:
    common = results[row["baseline"]].keys() & results[row["variant"]].keys()
    means = [fmean(results[row[name]][seed][score] for seed in common) for name in ("baseline", "variant")]
    return [*(f"{mean:.1f}" for mean in means), f"{gain.difference:+.1f}", probability(gain.p), str(gain.seeds)]


def _cells_of_records(row: Mapping[str, Any], score: str, folder: Path) -> list[str]:
    """The cells of a row whose results are the records of a script: each variant at the setting that it chose.

    Raises:
        ValueError: if there are no such results.
    """
    runs = json.loads((folder / f"{row['records']}.json").read_text())["runs"]
    of = {name: row[name] for name in ("dataset", "order") if name in row}
    found = scores_of(runs, row.get("choice", score), of, row.get("temperature"))
    try:
        (_, base), (_, ours) = found[row["baseline"]], found[row["variant"]]
    except KeyError as error:
        raise ValueError(f"{folder} has no results of {error} in {row['records']}.json") from None
    common = sorted(base.keys() & ours.keys())
    before, after = ([scores[seed][score] for seed in common] for scores in (base, ours))
    p = paired_p(after, before)
    difference = f"{fmean(after) - fmean(before):+.1f}"
    return [f"{fmean(before):.1f}", f"{fmean(after):.1f}", difference, probability(p), str(len(common))]
