"""Write the pages of studies again from their JSON, after the layout of pages has changed; nothing is run.

Title, question and what papers report and claim are not results: page and JSON take them from the study's definition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from antipodes.files import replacing
from antipodes.studies.claims import judge_claims
from antipodes.studies.definition import Study
from antipodes.studies.figure import drawn_over_epochs, scores_figure
from antipodes.studies.places import Places
from antipodes.studies.report import markdown
from antipodes.studies.statistics import Line, one_sided


def render(places: Places, study: Study) -> Path:
    """Write the page LABEL.md of a report LABEL.json, with its notes and figures.

    Args:
        places: Of the report.
        study: Whose report it is; its label names the files.

    Raises:
        ValueError: if there is no such report.
    """
    label = study.label
    file = places.results / f"{label}.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: run the study {study.path} first")
    report: dict[str, Any] = json.loads(file.read_text())
    results = {name: {int(seed): scores for seed, scores in seeds.items()} for name, seeds in report["results"].items()}
    said = {
        "title": study.title,
        "question": study.question,
        "paper": [asdict(entry) for entry in study.paper],
        "claims": [asdict(judged) for judged in judge_claims(study.claims, results)],
    }
    if report["budget"] == "full" and (note := places.note(report["study"])):
        said["notes"] = note
    if said != {name: report.get(name, []) for name in said}:
        report |= said
        with replacing(file) as changed:
            changed.write_text(json.dumps(report, indent=2) + "\n")
    lines = [_line(entry, study) for entry in report["summary"]]
    _redraw(places.figures / f"{label}.png", study, report, lines)
    scores = {report["title"]: f"{label}.png"} if (places.figures / f"{label}.png").is_file() else {}
    figures = scores | drawn_over_epochs(places.figures, label)
    linked = {caption: places.link(name) for caption, name in figures.items()}
    places.create()
    with replacing(places.pages / f"{label}.md") as page:
        page.write_text(markdown(report, lines, study.paper, linked))
    return places.pages / f"{label}.md"


def _redraw(file: Path, study: Study, report: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Draw the figure of the scores again where there is one; those of curves need what the runs logged.

    Raises:
        ValueError: if matplotlib is missing.
    """
    if not file.is_file():
        return
    from antipodes.evaluation.figures import save

    if study.runner is None:
        save(scores_figure(report), file, "png")
        return
    from antipodes.studies.runner import find_runner

    save(find_runner(study.runner).figure(study, lines), file, "png")


def _line(entry: dict[str, Any], study: Study) -> Line:
    """A line of the summary; what reports of older versions lack follows from the rest."""
    line = Line(**{**entry, "seeds": tuple(entry["seeds"])})
    other = study.against.get(line.variant, study.baseline)
    if "against" not in entry and other != line.variant:
        line = replace(line, against=other)
    if line.p_greater is None and line.p is not None and line.difference is not None:
        line = replace(line, p_greater=one_sided(line.p, line.difference))
    return line
