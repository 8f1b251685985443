"""`antipodes.report`: one page of runs. The answer comes first, then what explains it."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antipodes.evaluation.figures import without_empty_precisions
from antipodes.evaluation.scores import FILE, are_outdated, read_measured, read_scores
from antipodes.files import is_marked, refuse_foreign
from antipodes.pages.page import Cell, Curves, Page, Section, Table, path_ends, require_jinja
from antipodes.pages.picture_store import PictureStore
from antipodes.progress import progress_bar
from antipodes.reporting.curves import TITLES, Thinned, draw, title_of
from antipodes.reporting.flagged import examine_run
from antipodes.runs.folder import Run
from antipodes.runs.records import epoch_lines
from antipodes.tables import require_out


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    samples: int = 1000,
    shown: int = 100,
    data: str | Path | None = None,
    progress: bool = False,
    force: bool = False,
) -> Page:
    """Make one page of runs: settings, curves, scores, flagged pairs as pictures, and a map of the features.

    Args:
        runs: folders that antipodes train wrote, or one of them.
        out: file for the page (.html); nothing is written if not given.
        samples: training samples of every run for flags and the map; 0 leaves these out.
        shown: flagged pairs of every run.
        data: where the runs' data is now, if it has moved.
        progress: show on standard error how many runs are done.
        force: replace a file at `out` that is not an earlier page.

    Returns:
        The page: `page.html` is its text, `page.save(path)` writes it.

    Raises:
        ValueError: if a folder is not a run, or `out` cannot be used; nothing is written then.
    """
    if samples < 0 or samples == 1:
        raise ValueError(f"samples must be 0, or at least 2, got {samples}")
    if shown < 0:
        raise ValueError(f"shown must be at least 0, got {shown}: it is the number of flagged pairs on the page")
    require_jinja()
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    if not folders:
        raise ValueError("runs is empty: name at least one run")
    if out is not None:
        refuse_foreign(require_out(out, (".html",)), "--out", is_marked, force)
    with progress_bar("runs", shown=progress) as told:
        page = run_page(folders, samples, shown, told, None if data is None else str(data))
    if out is not None:
        page.save(out)
    return page


_UNSEEN = ("kind", "step", "epoch")


def run_page(
    folders: Sequence[Path],
    samples: int = 1000,
    shown: int = 100,
    progress: Callable[[int, int], None] | None = None,
    data: str | None = None,
) -> Page:
    """The page of one or several runs.

    Args:
        folders: of the runs.
        samples: of every run's training data that are looked at for flags and for the map; 0 leaves both out.
        shown: flagged pairs of every run.
        progress: called with (runs done, runs in all).
        data: where the files of the runs' data are now, if they have moved.

    Raises:
        ValueError: if a folder is not a run, two are the same, a file in it is broken, or runs on several data were
            given one place for them.
    """
    runs = _named(folders, data)
    configs = {name: run.config for name, run in runs.items()}
    sections: list[Section] = [_settings(configs)]
    scores = {name: _scores(run) for name, run in runs.items()}
    if any(scores.values()):
        outdated = [name for name, run in runs.items() if scores[name] and are_outdated(run)]
        measured = {name: str(read_measured(run.folder).get("data", "")) for name, run in runs.items() if scores[name]}
        sections.append(_score_table(scores, outdated, measured))
        current = {name: {} if name in outdated else each for name, each in scores.items()}
        if spread := _spread(current, configs, measured):
            sections.append(spread)
    if curves := _curves({name: epoch_lines(run.folder) for name, run in runs.items()}):
        sections.append(curves)
    picture_store = PictureStore()
    notes: list[list[Cell]] = []
    for done, (name, run) in enumerate(runs.items()):
        if samples:
            found = examine_run(run, name, samples, shown, picture_store)
            sections += found.sections
            notes += [[name, what, value] for what, value in found.facts]
        if progress is not None:
            progress(done + 1, len(runs))
    if notes:
        sections.insert(1, Table("Data", ["run", "what", "found"], notes))
    title = f"Run {next(iter(runs))}" if len(runs) == 1 else f"{len(runs)} runs"
    return Page(title, ", ".join(runs), sections, picture_store.pictures)


def _named(folders: Sequence[Path], data: str | None) -> dict[str, Run]:
    """Runs by the shortest ends of their paths that tell them apart."""
    opened = [Run.open(folder) for folder in folders]
    paths = [os.path.realpath(folder) for folder in folders]
    if len(set(paths)) < len(paths):
        raise ValueError("a run is named twice: name every run once")
    if data is not None:
        if len({str(run.config.get("data", {}).get("name")) for run in opened}) > 1:
            raise ValueError("--data is where the data of all runs is now, and these were trained on several")
        opened = [Run.open(folder, data) for folder in folders]
    return dict(zip(path_ends(paths), opened, strict=True))


def _settings(configs: Mapping[str, Mapping[str, Any]]) -> Table:
    """The options in which the runs differ, and the most telling ones in any case."""
    flat = {name: _flat(config) for name, config in configs.items()}
    options = list(dict.fromkeys(option for each in flat.values() for option in each))
    telling = {"method.name", "loss.name", "negatives.name", "treatment", "data.name", "encoder.name"}
    telling |= {"epochs", "batch_size", "seed"}
    kept = [
        option
        for option in options
        if option in telling or (option != "out" and len({str(each.get(option)) for each in flat.values()}) > 1)
    ]
    columns = [_without_folders([each.get(option) for each in flat.values()]) for option in kept]
    rows: list[list[Cell]] = [[name, *values] for name, *values in zip(flat, *columns, strict=True)]
    return Table("Runs", ["run", *kept], rows, "The usual options, and all in which the runs differ.")


def _without_folders(values: list[Cell]) -> list[Cell]:
    """The values of an option, paths by the shortest ends that distinguish them."""
    short = iter(path_ends([value for value in values if isinstance(value, str)]))
    return [next(short) if isinstance(value, str) else value for value in values]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Cell]:
    """Nested options by dotted names."""
    found: dict[str, Cell] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + str(key)] = value if isinstance(value, int | float | str) or value is None else str(value)
    return found


def _scores(run: Run) -> dict[str, float]:
    """What antipodes evaluate has left, nothing where it was not called."""
    if not (run.folder / FILE).is_file():
        return {}
    try:
        return read_scores(run.folder)
    except (json.JSONDecodeError, AttributeError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{run.folder / FILE} is broken: remove it and run antipodes evaluate again") from error


def _score_table(
    scores: Mapping[str, Mapping[str, float]], outdated: Sequence[str], measured: Mapping[str, str]
) -> Table:
    """The scores of every run; what makes some of them another thing is said above them.

    Args:
        scores: Run -> score -> number.
        outdated: Runs that were trained on since they were scored.
        measured: Run -> the data of its scores, empty where it is not known.
    """
    names = list(dict.fromkeys(name for each in scores.values() for name in each))
    rows: list[list[Cell]] = [
        [run + " †" * (run in outdated), *(each.get(name) for name in names)] for run, each in scores.items()
    ]
    missing = [run for run, each in scores.items() if not each]
    note = "Of antipodes evaluate, in percent unless the name says otherwise."
    if missing:
        note += f" Not evaluated yet: {', '.join(missing)}."
    if outdated:
        note += " † Of earlier weights: the run was trained on since, antipodes evaluate measures it again."
    if len({data for data in measured.values() if data}) > 1:
        told = "; ".join(f"{run}: {data or 'not known'}" for run, data in measured.items())
        note += f" Measured on different data, so not comparable: {told}."
    return Table("Scores", ["run", *names], rows, note)


def _spread(
    scores: Mapping[str, Mapping[str, float]], configs: Mapping[str, Mapping[str, Any]], measured: Mapping[str, str]
) -> Table | None:
    """Means and spreads over runs that differ only in their seed, scored on one data; None where there are none."""
    groups: dict[str, list[str]] = {}
    for run, config in configs.items():
        same = {name: value for name, value in config.items() if name not in ("seed", "out")}
        groups.setdefault(json.dumps([same, measured.get(run)], sort_keys=True), []).append(run)
    rows: list[list[Cell]] = []
    for members in groups.values():
        names = list(dict.fromkeys(name for run in members for name in scores[run]))
        for name in names:
            values = [scores[run][name] for run in members if name in scores[run]]
            if len(values) > 1:
                row = [statistics.mean(values), statistics.stdev(values), min(values), max(values), len(values)]
                rows.append([", ".join(members), name, *row])
    if not rows:
        return None
    columns = ["runs", "score", "mean", "standard deviation", "least", "most", "seeds"]
    return Table("Scores over seeds", columns, rows, "Runs that differ only in their seed.")


def _curves(epochs: Mapping[str, Iterable[Mapping[str, Any]]]) -> Curves | None:
    """A drawing for every number that some run has written down at its epochs; lines are read once, one by one."""
    found: dict[str, dict[str, Thinned]] = {}  # number -> run -> points
    for run, lines in epochs.items():
        for line in map(without_empty_precisions, lines):
            place = float(line.get("epoch", line["step"]))
            for number, value in line.items():
                if number not in _UNSEEN and isinstance(value, int | float):
                    found.setdefault(number, {}).setdefault(run, Thinned()).add(place, float(value))
    drawings = []
    for number in [name for name in TITLES if name in found] + [name for name in found if name not in TITLES]:
        lines_of = {run: points.points() for run, points in found[number].items()}
        if any(value for points in lines_of.values() for _, value in points):  # what is always zero does not apply
            drawings.append(draw(title_of(number), lines_of, list(epochs)))
    return Curves("Curves", drawings, list(epochs), "Over epochs.") if drawings else None
