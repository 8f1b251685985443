"""`antipodes study`: a grid of runs from a YAML file, compared with a baseline over the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from antipodes.parsing import ArgumentParser
from antipodes.studies.definition import FULL, load_study

DESCRIPTION = """Run a study: a YAML file names variants and seeds; every variant is trained and evaluated with every
seed in a folder of its own, several at a time, each on one thread. Stopped or killed, the same call goes on where it
was. At the end: mean, spread, paired difference to the baseline with its t-test, and published figures if the file has
any, as tables and as pictures (if matplotlib is there: pip install '.[plots]'). A study file is short:
"common: {data: path/to/photos, epochs: 40}", "variants: {simclr: {}, guided: {preset: guided}}", "seeds: [0, 1, 2]";
antipodes.studies.definition explains all keys. Runs that another study in the same folder has trained with the same
settings, seed and code are taken over. In a checkout of the repository, research/studies holds the studies of the
papers; their reports go to research/ if the grid is the study's own: all its seeds, no other budget, and no run that
failed."""

PAGES = ("papers", "claims", "map")
"""Pages about all studies that this command wrote in earlier versions; `research.ledger` does now."""


def main(arguments: list[str]) -> None:
    """Parse, then run the study, or say how far it is."""
    parser = ArgumentParser(prog="antipodes study", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("file", metavar="FILE", help="The YAML file of the study.")
    parser.add_argument("--budget", type=str, default=FULL, help="full, or a smaller one of the study, such as quick.")
    parser.add_argument("--out", type=str | None, default=None, help="Folder; runs/studies/NAME by default.")
    parser.add_argument("--seeds", type=int, nargs="+", default=None, help="Instead of the study's.")
    parser.add_argument("--parallel", type=int, default=2, help="Training runs at a time, each on one thread.")
    parser.add_argument(
        "--evidence",
        type=str | None,
        default=None,
        help="Folder of the report; by default that of the runs, or the project that the file belongs to.",
    )
    parser.add_argument("--data", type=str | None, default=None, help="Instead of the study's data: a name or a path.")
    parser.add_argument("--data_size", type=int | None, default=None, help="Side of that data's images, for folders.")
    parser.add_argument(
        "--render",
        action="store_true",
        help="Write its page and the figure of its scores again from its JSON; run nothing.",
    )
    parser.add_argument(
        "--extend",
        action="store_true",
        help="Go on from its report: runs whose scores are in its JSON, with the same options, are not run again.",
    )
    parser.add_argument(
        "--executor",
        choices=["here", "local", "slurm"],
        default="here",
        help="Who trains: processes of this one, or jobs that submitit gives to this machine or to SLURM "
        "(pip install '.[cluster]'). Jobs that are preempted are queued again and go on from their checkpoints.",
    )
    parser.add_argument(
        "--executor_options",
        type=dict[str, Any] | None,
        default=None,
        help='submitit\'s parameters, such as \'{"timeout_min": 600, "slurm_partition": "gpu", "gpus_per_node": 1}\'.',
    )
    parser.add_argument("--status", action="store_true", help="Say how far it is, with early numbers; run nothing.")
    call = parser.parse_args(arguments)
    _refuse_old_names(call.file)
    if call.parallel < 1:
        raise ValueError(f"--parallel must be at least 1, got {call.parallel}")
    if call.data is None and call.data_size is not None:
        raise ValueError("--data_size belongs to --data: give both")
    if call.render:
        _render(call)
    elif call.status:
        _status(call)
    else:
        _run(call)


def _run(call: Namespace) -> None:
    # what imports torch is imported here, so that a wrong call is refused at once
    from antipodes.studies.report import sources, tables
    from antipodes.studies.run import study
    from antipodes.training.loop import TrainingFailed

    try:
        outcome = study(
            call.file,
            out=call.out,
            budget=call.budget,
            seeds=call.seeds,
            data=call.data,
            data_size=call.data_size,
            parallel=call.parallel,
            evidence=call.evidence,
            extend=call.extend,
            executor=call.executor,
            executor_options=call.executor_options,
        )
    except KeyboardInterrupt as error:
        raise TrainingFailed("stopped; the same call goes on from here") from error
    console = Console()
    for table in tables(outcome.lines, outcome.study.paper):
        console.print(table)
    if outcome.lines:
        for line in sources(outcome.study.paper):
            console.print(line, highlight=False, markup=False)
    for remark in outcome.remarks:
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    for name, file in outcome.files.items():
        what = {"page": "The report", "json": "The same as JSON"}.get(name, "A figure of it")
        console.print(f"{what}: {file}", highlight=False, markup=False, soft_wrap=True)
    if outcome.stale:
        print(f"{len(outcome.stale)} runs are of older code: --status lists them, remove their folders to repeat them")
    if outcome.failed:
        count = f"{len(outcome.failed)} of {outcome.runs} runs"
        raise TrainingFailed(f"{count} failed, the lines above say why; the same call tries them again")


def _status(call: Namespace) -> None:
    """Say what is done, active, left and failed, and print the tables of what there is."""
    from antipodes.studies.report import tables
    from antipodes.studies.run import folder_of, read_study, status

    found = read_study(call.file, call.budget, call.seeds, call.data, call.data_size)
    sentences, lines = status(found, folder_of(found, call.out, call.data))
    console = Console()
    for sentence in sentences:
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    for table in tables(lines, found.paper):
        console.print(table)


def _render(call: Namespace) -> None:
    from antipodes.studies.reports import render_page
    from antipodes.studies.run import folder_of, places_of

    found = load_study(call.file, call.budget, call.seeds)
    print(render_page(places_of(found, folder_of(found, call.out, call.data), call.evidence), found))


def _refuse_old_names(name: str) -> None:
    """Say what replaced the names of pages and studies that an earlier version took instead of a file.

    Raises:
        ValueError: if it is one of these names.
    """
    if name in PAGES:
        raise ValueError(f"study {name} is now `python -m research.ledger {name}`, in a checkout of the repository")
    if Path(name).suffix not in (".yaml", ".yml"):
        raise ValueError(
            f"a study is a YAML file, got {name!r}: give a path that ends in .yaml. The studies of the papers are in "
            "research/studies of the repository"
        )
