"""`study`: run the grid of a YAML file, go on where it was stopped, and write its report."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antipodes.evaluation.protocol import is_setting
from antipodes.files import replacing
from antipodes.studies.definition import FULL, Options, Study, Trial, load_study
from antipodes.studies.grid import Grid, lock_study
from antipodes.studies.progress import StudyProgress, at_work, describe_progress, read_state
from antipodes.studies.report import markdown, shown, study_report, text_table
from antipodes.studies.reports import Places, keep_reported, project_of, read_report
from antipodes.studies.resolving import check_protocols, complete, described, runner_facts, training_facts
from antipodes.studies.runner import InProcess
from antipodes.studies.statistics import Histories, Line, summarise
from antipodes.studies.submitted import Executor, open_executor


@dataclass(frozen=True)
class Outcome:
    """What came of a study.

    Args:
        study: Its definition.
        report: Everything that is known about it, as in its JSON file; empty if no run of the baseline finished.
        lines: The scores of every variant: mean, spread, paired difference to the baseline with its p.
        files: The files of the report, by what they are: `page`, `json`, and the figures by their captions.
        failed: Run -> why it failed.
        stale: Finished run -> the code that has changed since.
        remarks: What the caller should be told, such as why there are no figures.
        runs: How many runs the grid has.
    """

    study: Study
    report: Mapping[str, Any]
    lines: Sequence[Line]
    files: Mapping[str, Path]
    failed: Mapping[str, str]
    stale: Mapping[str, str]
    remarks: Sequence[str] = field(default=())
    runs: int = 0

    def __str__(self) -> str:
        """Return one table: mean ± spread of every variant, and the paired difference to the baseline with its p."""
        return text_table(self.lines)


def study(
    path: str | Path,
    *,
    out: str | Path | None = None,
    budget: str = FULL,
    seeds: list[int] | None = None,
    data: str | None = None,
    data_size: int | None = None,
    parallel: int = 2,
    evidence: str | Path | None = None,
    extend: bool = False,
    executor: Executor = "here",
    executor_options: Mapping[str, Any] | None = None,
) -> Outcome:
    """Train and evaluate every variant of a study with every seed, compare them, and write the report.

    1. Read the YAML file (`studies.definition` explains its format), and refuse options that cannot be trained.
    2. Train and evaluate every run that is not finished in a folder of its own, `parallel` processes at a time.
       A study that was stopped or killed goes on where it was.
    3. Compare the variants with the baseline over the seeds that both have, with a paired t-test for every score.
    4. Write the page, the JSON and the figures.

    Args:
        path: Of the YAML file.
        out: Folder of the runs; `runs/studies/NAME` by default.
        budget: `full`, or one of the budgets that the file defines, such as `quick`.
        seeds: Instead of the study's.
        data: Instead of the study's: a name or a path.
        data_size: Side of the images of that data, for folders.
        parallel: Training runs at a time, each on one thread.
        evidence: Folder of the report; by default `out`, or the project of the file (`studies.places`).
        extend: Do not repeat runs whose scores the report has already, if their options are the same.
        executor: `here` runs processes of this one; `slurm` and `local` submit jobs through submitit, which queues
            those again that are preempted. `parallel` is then how many are queued at a time.
        executor_options: submitit's parameters by name, such as timeout_min or slurm_partition.

    Returns:
        The report, its lines and its files. Runs that failed are in `failed`; the others are compared all the same.

    Raises:
        ValueError: if the file is not a study, or an option cannot be trained.
        KeyboardInterrupt: if the study was stopped by Control-C or a signal to terminate; the same call goes on then.
    """
    if parallel < 1:
        raise ValueError(f"parallel must be at least 1, got {parallel}")
    found = read_study(path, budget, seeds, data, data_size)
    folder = folder_of(found, out, data)
    grid, configurations = open_grid(found, folder)
    grid.refuse_changes(configurations)
    _use_executor(grid, executor, executor_options or {}, folder)
    places = places_of(found, folder, evidence)
    known = places.results / f"{found.label}.json"
    earlier = read_report(known, found) if extend else None
    trains = found.runner is None
    facts = (
        training_facts(found, configurations, parallel, data) if trains else runner_facts(found, configurations, data)
    )

    with lock_study(folder) as lock, _stoppable():
        if earlier is not None:
            _keep(grid, configurations, earlier, known)
        for trial, source in grid.reuse(configurations).items():
            print(f"{trial}: trained already, in {source}", file=sys.stderr)
        with StudyProgress(grid, configurations) as progress:
            grid.execute(parallel, lock, progress.finished, progress.working)

    results, stale = results_of(grid), grid.stale()
    outcome = Outcome(found, {}, [], {}, progress.failed, stale, runs=len(grid.trials))
    if not results[found.baseline]:
        return outcome
    remarks = []
    if progress.failed and evidence is None and places != Places.of(folder):
        remarks.append(f"not all runs were finished, so the report goes to {folder} and {places.pages} stays as it is")
        places = Places.of(folder)
    variants = {trial.variant: described(configuration) for trial, configuration in configurations.items()}
    lines = shown(summarise(results, found.baseline, found.against), found, is_setting)
    notes = places.note(found.name) if found.is_own else ""
    report = study_report(found, variants, facts, results, lines, progress.failed, notes, stale)
    files, more = _write(found, report, lines, places, grid.histories())
    return Outcome(found, report, lines, files, progress.failed, stale, [*remarks, *more], len(grid.trials))


def _use_executor(grid: Grid | InProcess, executor: Executor, options: Mapping[str, Any], folder: Path) -> None:
    """Have the runs submitted as jobs, if the executor is another than `here`."""
    if executor == "here":
        return
    if isinstance(grid, InProcess):
        raise ValueError(f"executor {executor} is for studies of runs: this one has a runner of its own")
    grid.executor = open_executor(executor, folder.absolute() / "jobs", options)


def _keep(grid: Grid | InProcess, configurations: dict[Trial, Options], earlier: Any, known: Path) -> None:
    """Take scores over from an earlier report, and say how many."""
    options = {trial: described(configuration) for trial, configuration in configurations.items()}
    count = keep_reported(grid, configurations, options, earlier)
    print(f"the scores of {count} runs are known from {known}", file=sys.stderr)


def read_study(
    path: str | Path, budget: str, seeds: list[int] | None, data: str | None, data_size: int | None
) -> Study:
    """Read a study, with other seeds or data than its own if these are given."""
    if data is None and data_size is not None:
        raise ValueError("data_size belongs to data: give both")
    other = None if data is None else {"name": data, **({} if data_size is None else {"size": data_size})}
    return load_study(path, budget, seeds, other)


def status(found: Study, folder: Path) -> tuple[list[str], list[Line]]:
    """How far a study is, in sentences, and the scores of what is finished; nothing is run."""
    grid, configurations = open_grid(found, folder)
    shares = {
        str(trial): 1.0 if grid.scores(trial) is not None else grid.fraction_done(trial, configuration)
        for trial, configuration in configurations.items()
    }
    sentences = describe_progress(read_state(folder), at_work(folder), shares, grid.stale())
    results = results_of(grid)
    if not results[found.baseline]:
        return sentences, []
    return sentences, shown(summarise(results, found.baseline, found.against), found, is_setting)


def open_grid(found: Study, folder: Path) -> tuple[Grid | InProcess, dict[Trial, Options]]:
    """The runs of a study in a folder, and the complete options of each.

    Raises:
        ValueError: if a protocol or an option of the study cannot be used; the message names its file.
    """
    try:
        if found.runner is None:
            check_protocols(found)
        configurations = {trial: complete(trial, found.runner) for trial in found.trials(folder)}
    except ValueError as error:
        raise ValueError(f"{found.path}: {error}") from error
    return (Grid(found, folder, configurations) if found.runner is None else InProcess(found, folder)), configurations


def folder_of(found: Study, out: str | Path | None, data: str | None) -> Path:
    """Where the runs of a study are; those on other data than its own have a folder of their own."""
    other = "" if data is None else f"-{Path(data).stem}"
    return Path(out or f"runs/studies/{found.label}{other}")


def places_of(found: Study, folder: Path, evidence: str | Path | None = None) -> Places:
    """Where the report goes: as asked, else the project of the file if the grid is the study's own, else `folder`."""
    if evidence is not None:
        return Places.of(Path(evidence))
    project = project_of(found) if found.is_own else None
    return Places.of(project or folder)


def results_of(grid: Grid | InProcess) -> dict[str, dict[int, dict[str, float]]]:
    """Variant -> seed -> the scores of the finished runs."""
    results: dict[str, dict[int, dict[str, float]]] = {variant: {} for variant in grid.study.variants}
    for trial in grid.trials:
        if (scores := grid.scores(trial)) is not None:
            results[trial.variant][trial.seed] = scores
    return results


def _write(
    found: Study, report: Mapping[str, Any], lines: Sequence[Line], places: Places, histories: Histories | None
) -> tuple[dict[str, Path], list[str]]:
    """Write the figures, the page and the JSON.

    Returns:
        The files, and remarks, such as why there are no figures.
    """
    places.create()
    remarks = []
    try:
        figures = _draw(found, report, lines, histories, places.figures)
    except ValueError as reason:
        remarks.append(f"no figures: {reason}")
        figures = {}
    linked = {caption: places.link(name) for caption, name in figures.items()}
    files = {"page": places.pages / f"{found.label}.md", "json": places.results / f"{found.label}.json"}
    texts = {"page": markdown(report, lines, found.paper, linked), "json": json.dumps(report, indent=2) + "\n"}
    for name, text in texts.items():
        with replacing(files[name]) as file:
            file.write_text(text)
    return files | {caption: places.figures / name for caption, name in figures.items()}, remarks


def _draw(
    found: Study, report: Mapping[str, Any], lines: Sequence[Line], histories: Histories | None, folder: Path
) -> dict[str, str]:
    """Draw the study; returns caption -> file name.

    Raises:
        ValueError: if matplotlib is missing.
    """
    from antipodes.evaluation.figures import save
    from antipodes.studies.figure import draw_figures

    if found.runner is None:
        return draw_figures(report, histories, folder, found.label, found.curves)
    from antipodes.studies.runner import find_runner

    save(find_runner(found.runner).figure(found, lines), folder / f"{found.label}.png", "png")
    return {found.title: f"{found.label}.png"}


@contextmanager
def _stoppable() -> Iterator[None]:
    """Treat a signal to terminate like Control-C, so that the active runs are ended; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
