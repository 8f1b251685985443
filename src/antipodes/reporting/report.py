"""`antipodes.report`: one page of runs. The answer comes first, then what explains it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antipodes.evaluation.figures import without_empty_precisions
from antipodes.files import is_marked, refuse_foreign
from antipodes.pages.page import Cell, Curves, Page, Section, Table, path_ends, require_jinja
from antipodes.pages.picture_store import PictureStore
from antipodes.progress import progress_bar
from antipodes.reporting.drawings import Thinned, draw_lines, importance, title_of
from antipodes.reporting.flagged import examine_run
from antipodes.reporting.run_scores import measured_of, score_sections
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
MOST_CURVES = 5  # curves that are not folded


def run_page(
    folders: Sequence[Path],
    samples: int = 1000,
    shown: int = 100,
    progress: Callable[[int, int], None] | None = None,
    data: str | None = None,
) -> Page:
    """Return the page of one or several runs.

    It starts with the answer: scores, what was flagged as pictures, and the map of the features. Then come the curves
    that matter most; the other curves, every number, the settings and facts about the data are folded.

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
    lines = _lines({name: epoch_lines(run.folder) for name, run in runs.items()})
    trained = {name: points[-1][1] for name, line in lines.get("knn", {}).items() if (points := line.points())}
    measured = {name: measured_of(run, trained.get(name)) for name, run in runs.items()}
    scores, folded = score_sections(runs, configs, measured)
    picture_store = PictureStore()
    galleries: list[Section] = []
    maps: list[Section] = []
    notes: list[list[Cell]] = []
    for done, (name, run) in enumerate(runs.items()):
        if samples:
            found = examine_run(run, name, samples, shown, picture_store)
            galleries += found.flagged
            maps += found.maps
            notes += [[name, what, value] for what, value in found.facts]
        if progress is not None:
            progress(done + 1, len(runs))
    sections = [scores, *galleries, *maps, *_curves(lines, list(runs)), *folded, _settings(configs)]
    if notes:
        sections.append(Table("Data", ["run", "what", "found"], notes, folded=True))
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
    return Table("Settings", ["run", *kept], rows, "The usual options, and all in which the runs differ.", True)


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


def _lines(epochs: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, dict[str, Thinned]]:
    """Return number -> run -> line of what the runs logged at their epochs; each file is read once, line by line."""
    found: dict[str, dict[str, Thinned]] = {}
    for run, lines in epochs.items():
        for line in map(without_empty_precisions, lines):
            place = float(line.get("epoch", line["step"]))
            for number, value in line.items():
                if number not in _UNSEEN and isinstance(value, int | float):
                    found.setdefault(number, {}).setdefault(run, Thinned()).add(place, float(value))
    return found


def _curves(found: Mapping[str, Mapping[str, Thinned]], runs: Sequence[str]) -> list[Section]:
    """Return the curves that matter most, and the others folded.

    Args:
        found: Number -> run -> line, of `_lines`.
        runs: The names of the runs, in the order of their colours.
    """
    drawings = []
    for number in sorted(found, key=importance):
        lines_of = {run: line.points() for run, line in found[number].items()}
        if any(value for points in lines_of.values() for _, value in points):  # what is always zero does not apply
            drawings.append(draw_lines(title_of(number), lines_of, runs))
    first, rest = drawings[:MOST_CURVES], drawings[MOST_CURVES:]
    sections: list[Section] = [Curves("Curves", first, runs, "Over epochs.")] if first else []
    return [*sections, *([Curves("More curves", rest, runs, "Over epochs.", True)] if rest else [])]
