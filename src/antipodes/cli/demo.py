"""`antipodes demo`: pretraining and what it is worth, in a few minutes."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path

import torch
from jsonargparse import ArgumentParser
from rich.console import Console

from antipodes.cli.evaluate import progress_bar
from antipodes.cli.train import parse
from antipodes.data import DataError
from antipodes.evaluation.report import Row, results_table
from antipodes.evaluation.run import score
from antipodes.runs.build import build_data, build_method
from antipodes.runs.opening import open_method
from antipodes.training.loop import train

DESCRIPTION = """Train SimCLR from scratch on 10,000 real images (CIFAR-10 when it can be had, else rendered shapes)
without labels, then compare the encoder before and after: linear probe and nearest neighbours on test images."""
PROTOCOLS = ("linear", "knn")
COLUMNS = ("linear top-1", "knn top-1", "1-nn top-1")


def main(arguments: list[str]) -> None:
    """Find data, score a random encoder, train, score again."""
    parser = ArgumentParser(prog="antipodes demo", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--out", type=str, default="runs/demo", help="Folder of the run; numbered when taken.")
    parser.add_argument("--epochs", type=int, default=12, help="Passes over the data.")
    parser.add_argument("--encoder", type=str, default="resnet18-slim", help="Encoder, as in antipodes train.")
    parser.add_argument("--data", type=str, default=None, help="cifar10 or shapes, as in antipodes train.")
    parser.add_argument("--limit", type=int, default=10_000, help="Training images.")
    call = parser.parse_args(arguments)
    console = Console()

    name = call.data or _reachable(console)
    out = _free(call.out)
    options = ["--data", name, "--data.limit", str(call.limit), "--encoder", call.encoder]
    config, _ = parse([*options, "--epochs", str(call.epochs), "--out", out])
    data = build_data(config["data"])
    console.print(f"{len(data):,} training images of {data.name}; labels are used for scoring only", highlight=False)
    with torch.random.fork_rng():
        torch.manual_seed(config["seed"])
        untrained = build_method(config, data)
    with progress_bar("scoring the random encoder") as progress:
        before = score(untrained, data, PROTOCOLS, progress=progress)
    run = train(config)
    method, data = open_method(run)
    with progress_bar("scoring the trained encoder") as progress:
        after = score(method, data, PROTOCOLS, progress=progress)
    encoders = {"before training (random weights)": before, f"after {call.epochs} epochs of SimCLR": after}
    rows: list[Row] = [
        {"encoder": name, **{column: scores[column] for column in COLUMNS}} for name, scores in encoders.items()
    ]
    console.print(results_table(rows, title=f"{call.encoder} on {data.name}, accuracy in %"))
    print(f"The encoder: {run.folder}/encoder.safetensors, everything else about the run beside it.")


def _reachable(console: Console) -> str:
    """CIFAR-10 when it is on disk or can be downloaded, else the shapes that need no download; says which."""
    try:
        build_data({"name": "cifar10", "limit": 2})
    except (DataError, OSError) as error:
        console.print(f"CIFAR-10 cannot be had here ({error}); using the rendered dataset 'shapes' instead")
        return "shapes"
    console.print("using CIFAR-10", highlight=False)
    return "cifar10"


def _free(out: str) -> str:
    """The folder, or the first of out-2, out-3, ... that no earlier demo has taken."""
    names = chain([out], (f"{out}-{number}" for number in count(2)))
    return next(name for name in names if not Path(name).exists())
