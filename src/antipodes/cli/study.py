"""`antipodes study`: a grid of runs from a YAML file, compared with a baseline over the same seeds."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace
from rich.console import Console

from antipodes.cli.parser import ArgumentParser
from antipodes.evaluation.names import is_setting
from antipodes.study.definition import FULL, Options, Study, Trial, load, shipped
from antipodes.study.report import markdown, shown, sources, study_report, tables
from antipodes.study.statistics import Histories, Line, summarise

if TYPE_CHECKING:
    from antipodes.data import Samples
    from antipodes.study.grid import Grid
    from antipodes.study.in_process import InProcess

DESCRIPTION = """Run a study: every variant with every seed is trained and evaluated in a folder of its own, several
side by side, each on one thread. Stopped or killed, the same call goes on where it was. At the end: mean, spread,
paired difference to the baseline with its t-test, and the published figures beside them, as tables and as pictures (if
matplotlib is there: pip install antipodes[plots]). Some studies are small experiments with a runner of their own
instead of training runs (mutual-information, label-recovery): they take minutes and run one trial after the other.
`antipodes study list` names the studies that come with the package; `antipodes study papers` writes docs/papers.md, the
list of every table and figure that they stand for, `antipodes study claims` and `map` write docs/evidence/claims.md and
map.md from what studies have found, and `map` the tables of the README as well. A YAML file of your own is a study too
(antipodes.study.definition explains its format). Runs that another study in the same folder has trained with the same
settings, seed and code are taken over. The report goes to docs/evidence in a checkout only if the grid is the study's
own: all its seeds, no other budget, and no run that failed."""


def main(arguments: list[str]) -> None:
    """Parse, then list the studies or run one."""
    parser = ArgumentParser(prog="antipodes study", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("name", metavar="NAME", help="list, papers, claims, map, the name of a study or a YAML file.")
    parser.add_argument("--budget", type=str, default=FULL, help="full, or a smaller one of the study, such as quick.")
    parser.add_argument("--out", type=str | None, default=None, help="Folder; runs/studies/NAME by default.")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="Instead of the study's.")
    parser.add_argument("--parallel", type=int, default=2, help="Training runs side by side, each on one thread.")
    parser.add_argument(
        "--evidence",
        type=str | None,
        default=None,
        help="Folder of the report; docs/evidence in a checkout, for studies of the package, else the study's.",
    )
    parser.add_argument("--data", type=str | None, default=None, help="Instead of the study's data: a name or a path.")
    parser.add_argument("--data_size", type=int | None, default=None, help="Side of that data's images, for folders.")
    parser.add_argument(
        "--render",
        action="store_true",
        help="Write its page and the figure of its scores anew from its JSON; run nothing.",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="Go on from its report: runs whose scores are in its JSON, with the same options, are not run again.",
    )
    parser.add_argument("--status", action="store_true", help="Say how far it is, with early numbers; run nothing.")
    call = parser.parse_args(arguments)
    if call.name == "list":
        for name in shipped():
            study = load(name)
            print(f"{name:<28} {study.title}")
        return
    if call.name in PAGES:
        PAGES[call.name](Path(call.evidence) if call.evidence else Path("docs/evidence"))
        return
    if call.render:
        study = load(call.name, call.budget, call.seeds)
        from antipodes.study.render import render

        print(render(Path(call.evidence) if call.evidence else _evidence(study, _folder(study, call)), study))
        return
    if call.parallel < 1:
        raise ValueError(f"--parallel must be at least 1, got {call.parallel}")
    if call.data is None and call.data_size is not None:
        raise ValueError("--data_size belongs to --data: give both")
    size = {} if call.data_size is None else {"size": call.data_size}
    data = None if call.data is None else {"name": call.data, **size}
    _run(load(call.name, call.budget, call.seeds, data), call)


def _run(study: Study, call: Namespace) -> None:
    # what imports torch is imported here, so that listing studies is instant
    from antipodes.study.extending import keep_reported, read_report
    from antipodes.study.grid import Grid, locked
    from antipodes.study.in_process import InProcess
    from antipodes.study.progress import StudyProgress
    from antipodes.training.loop import TrainingFailed

    out = _folder(study, call)
    configurations = {trial: complete(trial, study.runner) for trial in study.trials(out)}
    grid = Grid(study, out, configurations) if study.runner is None else InProcess(study, out)
    if call.status:
        _status(grid, configurations, out)
        return
    grid.refuse_changes(configurations)
    reported = (Path(call.evidence) if call.evidence else _evidence(study, out)) / f"{study.label}.json"
    earlier = read_report(reported, study) if call.extend else None
    facts = (
        _facts(study, configurations, call.parallel, call.data)
        if study.runner is None
        else _runner_facts(study, configurations, call.data)
    )

    with locked(out) as lock, _stoppable():
        if earlier is not None:
            described = {trial: _without_seed(configuration) for trial, configuration in configurations.items()}
            known = keep_reported(grid, configurations, described, earlier)
            print(f"the scores of {known} runs are known from {reported}", file=sys.stderr)
        for trial, source in grid.share(configurations).items():
            print(f"{trial}: trained already, in {source}", file=sys.stderr)
        with StudyProgress(grid, configurations) as progress:
            grid.execute(call.parallel, lock, progress.finished, progress.working)

    results = _results(grid)
    stale = grid.stale()
    if results[study.baseline]:
        variants = {trial.variant: _without_seed(configuration) for trial, configuration in configurations.items()}
        evidence = Path(call.evidence) if call.evidence else _evidence(study, out, bool(progress.failed))
        notes = _notes(study, evidence)
        lines = shown(summarise(results, study.baseline, study.against), study, is_setting)
        report = study_report(study, variants, facts, results, lines, progress.failed, notes, stale)
        _report(study, report, lines, evidence, grid.histories())
    if stale:
        print(f"{len(stale)} runs are of older code: --status lists them, remove their folders to run them again")
    if progress.failed:
        count = f"{len(progress.failed)} of {len(grid.trials)} runs"
        raise TrainingFailed(f"{count} failed, the lines above say why; the same call tries them again")


def _folder(study: Study, call: Namespace) -> Path:
    """Where the runs of a study are; those on other data than its own have a folder of their own."""
    other = "" if call.data is None else f"-{Path(call.data).stem}"
    return Path(call.out or f"runs/studies/{study.label}{other}")


def _results(grid: Grid | InProcess) -> dict[str, dict[int, dict[str, float]]]:
    results: dict[str, dict[int, dict[str, float]]] = {variant: {} for variant in grid.study.variants}
    for trial in grid.trials:
        if (scores := grid.scores(trial)) is not None:
            results[trial.variant][trial.seed] = scores
    return results


def _status(grid: Grid | InProcess, configurations: Mapping[Trial, Options], out: Path) -> None:
    """Say what is done, at work, left and failed, and print the tables of what there is."""
    from antipodes.study.status import at_work, describe, read_state

    shares = {
        str(trial): 1.0 if grid.scores(trial) is not None else grid.share_done(trial, configuration)
        for trial, configuration in configurations.items()
    }
    console = Console()
    for line in describe(read_state(out), at_work(out), shares, grid.stale()):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    results = _results(grid)
    if results[grid.study.baseline]:
        lines = shown(summarise(results, grid.study.baseline, grid.study.against), grid.study, is_setting)
        for table in tables(lines, grid.study.paper):
            console.print(table)


def _papers(evidence: Path) -> None:
    """Write docs/papers.md of a checkout, or print it elsewhere."""
    from antipodes.files import replacing
    from antipodes.study.papers import page

    if not _is_checkout():
        print(page(evidence))
        return
    with replacing(Path("docs/papers.md")) as file:
        file.write_text(page(evidence))
    print("docs/papers.md")


def _claims(evidence: Path) -> None:
    """Write claims.md, the ledger of what the papers claim, into the folder of evidence."""
    from antipodes.files import replacing
    from antipodes.study.ledger import ledger_page

    _require_reports(evidence)
    with replacing(evidence / "claims.md") as file:
        file.write_text(ledger_page(evidence))
    print(evidence / "claims.md")


def _map(evidence: Path) -> None:
    """Write map.md and its figure into the folder of evidence, and the tables of the README of its project."""
    from antipodes.study.map import write_map
    from antipodes.study.readme import write_readme

    _require_reports(evidence)
    for file in write_map(evidence):
        print(file)
    if (readme := write_readme(evidence)) is not None:
        print(readme)


def _require_reports(evidence: Path) -> None:
    if not any(evidence.glob("*.json")):
        raise ValueError(f"{evidence} holds no reports of studies: give their folder with --evidence")


PAGES = {"papers": _papers, "claims": _claims, "map": _map}
"""Pages about all studies, by the name that writes them."""


def _notes(study: Study, folder: Path) -> str:
    """What somebody has written about the study, beside its report; of no interest to another grid."""
    file = folder / "notes" / f"{study.name}.md"
    return file.read_text().strip() if study.is_own and file.is_file() else ""


def _report(
    study: Study, report: Mapping[str, Any], lines: Sequence[Line], folder: Path, histories: Histories | None
) -> None:
    """Print the tables, write the figures, the page and the JSON."""
    from antipodes.files import replacing

    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    for table in tables(lines, study.paper):
        console.print(table)
    for line in sources(study.paper):
        console.print(line, highlight=False, markup=False)
    try:
        figures = _figures(study, report, lines, histories, folder)
    except ValueError as reason:
        console.print(f"no figures: {reason}", highlight=False, markup=False)
        figures = {}
    page = markdown(report, lines, study.paper, figures)
    for ending, text in ((".md", page), (".json", json.dumps(report, indent=2) + "\n")):
        with replacing(folder / f"{study.label}{ending}") as file:
            file.write_text(text)
    console.print(f"The report: {folder / study.label}.md and .json", highlight=False, soft_wrap=True)
    for name in figures.values():
        console.print(f"A figure of it: {folder / name}", highlight=False, soft_wrap=True)


def _figures(
    study: Study, report: Mapping[str, Any], lines: Sequence[Line], histories: Histories | None, folder: Path
) -> dict[str, str]:
    """Draw the study; returns caption -> file.

    Raises:
        ValueError: if matplotlib is missing.
    """
    from antipodes.evaluation.figures import save
    from antipodes.study.figure import draw

    if study.runner is None:
        return draw(report, histories, folder, study.label, study.curves)
    from antipodes.study.runners.runner import build

    figure = build(study.runner, study.variants[study.baseline]).figure(study, lines)
    save(figure, folder / f"{study.label}.png", "png")
    return {study.title: f"{study.label}.png"}


def complete(trial: Trial, runner: str | None = None) -> Options:
    """The whole configuration of a trial: as antipodes train would write it down, or of the study's own runner."""
    if runner is not None:
        from antipodes.study.runners.runner import build, configuration

        try:
            return configuration(build(runner, trial.options))
        except ValueError as error:
            raise ValueError(f"variant {trial.variant} cannot be run: {error}") from error
    from antipodes.cli.train import parse

    said = io.StringIO()
    try:
        with redirect_stderr(said), TemporaryDirectory() as folder:
            config, _ = parse(trial.arguments(trial.write(Path(folder) / f"{trial.file.name}")))
    except SystemExit as error:
        reason = " ".join(said.getvalue().rpartition("error: ")[2].split())
        raise ValueError(f"variant {trial.variant} cannot be trained: {reason}") from error
    except ValueError as error:
        raise ValueError(f"variant {trial.variant} cannot be trained: {error}") from error
    plain: Options = json.loads(json.dumps(config, default=str))
    return plain


def _facts(study: Study, configurations: Mapping[Trial, Options], parallel: int, data: str | None) -> dict[str, str]:
    """What the numbers were measured with, after looking at data and protocols: what is missing is refused here."""
    from antipodes.evaluation.protocol import find_protocol
    from antipodes.evaluation.protocols.transfer import open_others
    from antipodes.runs.build import build_data

    for name in study.protocols:
        find_protocol(name)
    specs = _different(configuration["data"] for configuration in configurations.values())
    trained = [build_data(spec) for spec in specs]
    others = open_others(study.transfer, trained[0].image_size, study.transfer_limit)
    every = list(configurations.values())
    return {
        "data": "; ".join(_size(data, study.test_limit) for data in trained),
        **({"transfer": "; ".join(_size(data, study.test_limit) for data in others)} if others else {}),
        "encoder": _all(every, "encoder", "name"),
        "method": _all(every, "method", "name"),
        "epochs": _all(every, "epochs"),
        "batch": _all(every, "batch_size"),
        "protocols": ", ".join(study.protocols),
        "threads": f"1 a run, {parallel} runs side by side, on a machine with {os.cpu_count()}",
        **_made_by(study, data),
    }


def _runner_facts(study: Study, configurations: Mapping[Trial, Options], data: str | None) -> dict[str, str]:
    """What a study with a runner of its own was measured with; where variants differ, every value."""
    from antipodes.study.runners.runner import build

    facts = [build(str(study.runner), options).facts() for options in _different(configurations.values())]
    joined = {name: "; ".join(_different(some[name] for some in facts)) for name in facts[0]}
    return {**joined, "threads": "1", **_made_by(study, data)}


def _made_by(study: Study, data: str | None) -> dict[str, str]:
    seeds = _different(tuple(seeds) for seeds in study.seeds.values())
    budget = "" if study.budget == FULL else f" --budget {study.budget}"
    return {
        "seeds": "; ".join(", ".join(map(str, some)) for some in seeds),
        "versions": f"antipodes {version('antipodes')}, torch {version('torch')}, Python {sys.version.split()[0]}",
        "made by": f"`antipodes study {study.file}{budget}{'' if data is None else f' --data {Path(data).name}'}`",
    }


def _size(data: Samples, test_limit: int | None) -> str:
    test = data.held_out(test_limit)
    tested = "tested on a fifth of them" if test is None else f"{len(test):,} test images"
    return f"{data.name}, {len(data):,} training images, {tested}"


def _all(configurations: Sequence[Options], *keys: str) -> str:
    """The values an option has, joined when variants differ in it."""
    values: list[Any] = list(configurations)
    for key in keys:
        values = [value[key] for value in values]
    return ", ".join(map(str, _different(values)))


def _different(values: Iterable[Any]) -> list[Any]:
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    return different


def _without_seed(configuration: Options) -> Options:
    """What a report says of a trial: not its seed and folder, and of data and files on disk not where they lie."""
    kept = {key: _placeless(value) for key, value in configuration.items() if key not in ("seed", "out")}
    if isinstance(data := kept.get("data"), dict) and "name" in data:
        kept["data"] = data | {"name": Path(str(data["name"])).name}
    return kept


def _placeless(value: Any) -> Any:
    """The same options with the last part of every absolute path in its place."""
    if isinstance(value, dict):
        return {key: _placeless(each) for key, each in value.items()}
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _evidence(study: Study, out: Path, failed: bool = False) -> Path:
    """docs/evidence for the own grid of a study of the package in a checkout of it; else the study's folder.

    Args:
        study: Which one.
        out: Its folder.
        failed: Whether some of its runs failed: what is left of a grid is no evidence.
    """
    if not (_is_checkout() and study.file == study.name and study.is_own):
        return out
    if failed:
        print(f"not all runs were finished, so docs/evidence stays as it is: the report goes to {out}", file=sys.stderr)
        return out
    return Path("docs/evidence")


def _is_checkout() -> bool:
    project = Path("pyproject.toml")
    return project.is_file() and 'name = "antipodes"' in project.read_text()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Control-C, or a signal to terminate, ends the runs at work and says how to go on."""
    from antipodes.training.loop import TrainingFailed

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as error:
        raise TrainingFailed("stopped; the same call goes on from here") from error
    finally:
        signal.signal(signal.SIGTERM, before)
