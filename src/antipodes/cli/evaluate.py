"""`antipodes evaluate`: scores of a run's encoder."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.progress import Progress as Bar

from antipodes.evaluation.names import PROTOCOL_NAMES, RUN_PROTOCOL_NAMES, TRANSFER_NAMES, ProtocolOptions
from antipodes.evaluation.report import Row, results_dictionary, scores_table
from antipodes.evaluation.run import Progress, score
from antipodes.evaluation.scores import fingerprint, keep_scores
from antipodes.evaluation.transfer import open_others
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import build_augmentation

PROTOCOLS = PROTOCOL_NAMES | RUN_PROTOCOL_NAMES | TRANSFER_NAMES
DESCRIPTION = f"""Score the frozen encoder of a run on the test split of its dataset (or on a fifth of it, where there
is none). Protocols: {"; ".join(f"{name} - {text}" for name, text in PROTOCOLS.items())}.
The scores are printed as a table, or as JSON, and added to those in RUN/evaluation.json; scores there of other weights
or settings are dropped."""


def main(arguments: list[str]) -> None:
    """Parse, evaluate, report."""
    parser = ArgumentParser(prog="antipodes evaluate", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="Folder that antipodes train wrote.")
    parser.add_argument("--protocol", default="linear,knn", help="Names, separated by commas.")
    parser.add_argument("--checkpoint", type=Literal["last", "best"], default="last", help="Which weights.")
    parser.add_argument("--test_limit", type=int | None, default=None, help="Use only so many test images.")
    parser.add_argument(
        "--transfer",
        type=str,
        nargs="+",
        default=[],
        metavar="DATA",
        help="Also score the encoder on these datasets: names, folders of images (train and test inside are the "
        "splits), .npz files.",
    )
    parser.add_argument(
        "--transfer_limit", type=int | None, default=None, help="Use only so many training images of each of these."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_class_arguments(ProtocolOptions, "options", as_group=True)
    call = parser.parse_args(arguments)

    run = Run.open(call.run)
    method, data = open_method(run, call.checkpoint)
    others = open_others(call.transfer, data.image_size, call.transfer_limit)
    with progress_bar("features") as progress:
        options = ProtocolOptions(**call.options.as_dict())
        config = run.config()
        scores = score(
            method,
            data,
            [name.strip() for name in call.protocol.split(",")],
            options,
            call.test_limit,
            config["batch_size"],
            build_augmentation(config["augmentation"], data.image_size, method.normalised),
            progress,
            others,
        )
    measured: dict[str, Any] = {"checkpoint": call.checkpoint, "weights": fingerprint(method)}
    measured |= {"test_limit": call.test_limit, **asdict(options)}
    if others:
        measured["transfer_limit"] = call.transfer_limit
    row: Row = {"encoder": run.folder.resolve().name, **scores}
    if dropped := keep_scores(run.folder, row, measured):
        print(dropped, file=sys.stderr)
    if call.json:
        print(json.dumps(results_dictionary([row])))
    else:
        Console().print(scores_table(row, title=f"{config_name(run)}, {data.name}"))


def config_name(run: Run) -> str:
    """What a run trained, in a few words: its method, and its policy when it has one."""
    config = run.config()
    policy = config["negatives"]["name"]
    return str(config["method"]["name"]) + ("" if policy == "none" else f" + {policy} ({config['treatment']})")


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A bar on a terminal's standard error that goes away when the work is done."""
    with Bar(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
