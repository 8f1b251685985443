"""Pages of studies anew from what their JSON holds, after the layout of pages has changed; nothing is run.

What papers report and claim is no result: page and JSON have it as the study's definition says it today.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from antipodes.files import replacing
from antipodes.study.claims import judge_claims
from antipodes.study.definition import Study
from antipodes.study.figure import drawn_over_epochs, scores_figure
from antipodes.study.report import markdown
from antipodes.study.statistics import Line, one_sided


def render(folder: Path, study: Study) -> Path:
    """Write the page LABEL.md of a report LABEL.json in a folder, with the notes and figures that are beside it.

    Args:
        folder: Of both.
        study: Whose report it is; its label names the files.

    Raises:
        ValueError: if there is no such report.
    """
    label = study.label
    file = folder / f"{label}.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: run antipodes study {label} first")
    report: dict[str, Any] = json.loads(file.read_text())
    results = {name: {int(seed): scores for seed, scores in seeds.items()} for name, seeds in report["results"].items()}
    said = {
        "paper": [asdict(entry) for entry in study.paper],
        "claims": [asdict(judged) for judged in judge_claims(study.claims, results)],
    }
    if said != {name: report.get(name, []) for name in said}:
        report |= said
        with replacing(file) as changed:
            changed.write_text(json.dumps(report, indent=2) + "\n")
    notes = folder / "notes" / f"{report['study']}.md"
    if report["budget"] == "full" and notes.is_file():
        report["notes"] = notes.read_text().strip()
    lines = [_line(entry, study) for entry in report["summary"]]
    _redraw(folder / f"{label}.png", study, report, lines)
    scores = {report["title"]: f"{label}.png"} if (folder / f"{label}.png").is_file() else {}
    figures = scores | drawn_over_epochs(folder, label)
    with replacing(folder / f"{label}.md") as page:
        page.write_text(markdown(report, lines, study.paper, figures))
    return folder / f"{label}.md"


def _redraw(file: Path, study: Study, report: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Draw the figure of the scores anew where there is one; those of curves need what the runs logged.

    Raises:
        ValueError: if matplotlib is missing.
    """
    if not file.is_file():
        return
    from antipodes.evaluation.figures import save

    if study.runner is None:
        save(scores_figure(report), file, "png")
        return
    from antipodes.study.runners.runner import build

    save(build(study.runner, study.variants[study.baseline]).figure(study, lines), file, "png")


def _line(entry: dict[str, Any], study: Study) -> Line:
    """A line of the summary; what reports of older versions lack follows from the rest."""
    line = Line(**{**entry, "seeds": tuple(entry["seeds"])})
    other = study.against.get(line.variant, study.baseline)
    if "against" not in entry and other != line.variant:
        line = replace(line, against=other)
    if line.p_greater is None and line.p is not None and line.difference is not None:
        line = replace(line, p_greater=one_sided(line.p, line.difference))
    return line
