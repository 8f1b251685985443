"""The files of a report: where they go, going on from them without their runs, and writing the page again.

1. `Places` are the folders: all in one, or those of a project that has `results` and `pages`.
2. With `--extend`, runs whose folders are gone count as finished where the JSON has their scores.
3. With `--render`, the page is written again from the JSON; nothing is run. Title, question and what papers report and
   claim are not results: page and JSON take them from the definition of the study."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os.path import relpath
from pathlib import Path
from typing import Any

from antipodes.files import replacing
from antipodes.studies.definition import Options, Study, Trial, flatten_options
from antipodes.studies.figure import drawn_over_epochs, scores_figure
from antipodes.studies.grid import Grid
from antipodes.studies.report import markdown
from antipodes.studies.runner import InProcess
from antipodes.studies.statistics import Line, one_sided


@dataclass(frozen=True)
class Places:
    """The folders of reports.

    Args:
        results: Of the JSON files.
        pages: Of the Markdown pages.
        figures: Of the PNG files.
        notes: Of the notes that pages include.
    """

    results: Path
    pages: Path
    figures: Path
    notes: Path

    @classmethod
    def of(cls, folder: Path) -> Places:
        """The places in a folder: those of a project if it has the folders `results` and `pages`, else all in one."""
        if (folder / "results").is_dir() and (folder / "pages").is_dir():
            return cls(folder / "results", folder / "pages", folder / "figures", folder / "notes")
        return cls(folder, folder, folder, folder / "notes")

    def create(self) -> None:
        """Create the folders that are written to."""
        for folder in (self.results, self.pages, self.figures):
            folder.mkdir(parents=True, exist_ok=True)

    def link(self, figure: str) -> str:
        """The link from a page to a figure."""
        return Path(relpath(self.figures / figure, self.pages)).as_posix()

    def note(self, name: str) -> str:
        """The note on a study, without the space around it; empty if there is none."""
        file = self.notes / f"{name}.md"
        return file.read_text().strip() if file.is_file() else ""


def project_of(study: Study) -> Path | None:
    """The project that a study's file belongs to: the folder with `results` and `pages` whose `studies` holds it."""
    folder = study.path.absolute().parent
    project = folder.parent
    in_project = folder.name == "studies" and (project / "results").is_dir() and (project / "pages").is_dir()
    return project if in_project else None


def read_report(file: Path, study: Study) -> dict[str, Any]:
    """The report of a study from its JSON.

    Raises:
        ValueError: if there is none, or it measured in another way than the study does now.
    """
    if not file.is_file():
        raise ValueError(f"--extend goes on from {file}, which does not exist: leave it out for the first report")
    report: dict[str, Any] = json.loads(file.read_text())
    defaults = {"transfer_normalise": "run", "protocol_options": {}, "centre_crop": 1.0}
    measured = ("budget", "protocols", "test_limit", "transfer", "transfer_limit", *defaults)
    for name in measured:
        now, then = getattr(study, name), report.get(name, defaults.get(name))
        if then != now:
            raise ValueError(f"{file} was made with {name} {then}, the study now says {now}: run it again")
    return report


def keep_reported(
    grid: Grid | InProcess,
    configurations: Mapping[Trial, Options],
    described: Mapping[Trial, Options],
    report: Mapping[str, Any],
) -> int:
    """Put the scores of a report into the folders of its runs, where these have none and the options are the same.

    Args:
        grid: The runs of the study.
        configurations: Their options.
        described: The same as a report names them.
        report: From `read_report`.

    Returns:
        How many runs were taken over.
    """
    kept = 0
    for trial in grid.trials:
        scores = report["results"].get(trial.variant, {}).get(str(trial.seed))
        if scores is None or trial.folder.exists():
            continue
        before = {**report["common"], **report["variants"].get(trial.variant, {})}
        if _is_same(before, described[trial], exactly=isinstance(grid, InProcess)):
            grid.keep(trial, scores, configurations[trial])
            kept += 1
    return kept


def _is_same(before: Mapping[str, Any], asked: Options, exactly: bool) -> bool:
    """Whether a run had these options.

    Those of training runs are complete, so that one which only one of both knows came with another version of
    antipodes and is let pass, unless it names another tower; a runner's are compared exactly.
    """
    now = json.loads(json.dumps(flatten_options(asked), default=str))
    if exactly:
        return bool(before == now)
    towers = [{name for name in options if name.startswith("encoders.")} for options in (before, now)]
    return towers[0] == towers[1] and all(before[name] == value for name, value in now.items() if name in before)


def render_page(places: Places, study: Study) -> Path:
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
        "appendix": study.appended(results),
    }
    if report["budget"] == "full" and (note := places.note(report["study"])):
        said["notes"] = note
    if any(report.get(name) != value for name, value in said.items()):
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
