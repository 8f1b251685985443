"""Pages of studies anew from what their JSON holds, after the layout of pages has changed; nothing is run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from antipodes.files import replacing
from antipodes.study.definition import Paper
from antipodes.study.figure import OVER_EPOCHS
from antipodes.study.report import markdown
from antipodes.study.statistics import Line, one_sided


def render(folder: Path, label: str) -> Path:
    """Write the page LABEL.md of a report LABEL.json in a folder, with the notes and figures that are beside it.

    Raises:
        ValueError: if there is no such report.
    """
    file = folder / f"{label}.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: run antipodes study {label} first")
    report: dict[str, Any] = json.loads(file.read_text())
    notes = folder / "notes" / f"{report['study']}.md"
    if report["budget"] == "full" and notes.is_file():
        report["notes"] = notes.read_text().strip()
    figures = {
        caption: name
        for caption, name in (
            (report["title"], f"{label}.png"),
            ("Precision, recall and F1 of the flags over epochs", f"{label}-detection.png"),
            (OVER_EPOCHS, f"{label}-curves.png"),
        )
        if (folder / name).is_file()
    }
    lines = [_line(entry, report["baseline"]) for entry in report["summary"]]
    with replacing(folder / f"{label}.md") as page:
        page.write_text(markdown(report, lines, [Paper(**entry) for entry in report["paper"]], figures))
    return folder / f"{label}.md"


def _line(entry: dict[str, Any], baseline: str) -> Line:
    """A line of the summary; what reports of older versions lack follows from the rest."""
    line = Line(**{**entry, "seeds": tuple(entry["seeds"])})
    if "against" not in entry and line.variant != baseline:
        line = replace(line, against=baseline)
    if line.p_greater is None and line.p is not None and line.difference is not None:
        line = replace(line, p_greater=one_sided(line.p, line.difference))
    return line
