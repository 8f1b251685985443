"""`antipodes audit`: which samples are the same thing."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields

from rich.console import Console

from antipodes.auditing.audit import FILES, audit, check_folder
from antipodes.auditing.findings import AuditOptions
from antipodes.cli.tables import facts_table
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.plain_text import printable

DESCRIPTION = """Find the samples of a data set that show the same thing: exact duplicates (equal files), near
duplicates (cropped, recompressed, mirrored, brighter or darker copies), likely false negatives (pairs more similar than
chance explains; a contrastive loss pushes them apart), outliers, and, where there are labels, samples that look like
another class. No training is needed.

Examples:
antipodes audit path/to/photos --out audit - a folder, embedded by the pretrained encoder if it is installed;
antipodes audit photos.npz --out audit - embeddings of any encoder;
antipodes audit runs/a --out audit - the training data of a run, embedded by its own encoder; with the thresholds that
it learned, if it was trained with GloFND.

The command writes pairs.parquet (both paths, similarity, threshold, kind), groups.parquet (row, path, group: what
Known.read gives to a loss), samples.parquet (outliers, other classes), summary.json, and report.html, which opens in a
browser."""


def main(arguments: list[str]) -> None:
    """Parse the call, audit, print the summary."""
    parser = ArgumentParser(prog="antipodes audit", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("subject", metavar="FOLDER|EMBEDDINGS|RUN", help="The data to audit.")
    parser.add_argument("--out", type=str, default="audit", help="Folder of the answer; made if it does not exist.")
    parser.add_argument(
        "--encoder",
        type=str | None,
        default=None,
        help="Run folder or name of the encoder for images; `patches` needs no weights.",
    )
    parser.add_argument("--batch_size", type=int, default=256, help="Batch of training that the summary refers to.")
    parser.add_argument("--limit", type=int | None, default=None, help="Audit only so many images.")
    parser.add_argument("--workers", type=int, default=2, help="Threads that decode images.")
    parser.add_argument("--shown", type=int, default=200, help="Pairs of each kind with pictures on the page.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_class_arguments(AuditOptions, "options", as_group=True)
    call = parser.parse_args(arguments)

    folder = check_folder(call.out, call.force)
    found = audit(
        call.subject,
        encoder=call.encoder,
        out=folder,
        options={each.name: call.options[each.name] for each in fields(AuditOptions)},  # a file adds where it lies
        batch_size=call.batch_size,
        limit=call.limit,
        workers=call.workers,
        shown=call.shown,
        progress=True,
        force=call.force,
    )
    if call.json:
        print(json.dumps(found.summary | {"out": str(folder)}))
        return
    name = os.path.basename(os.path.normpath(call.subject))
    facts = {key: value for key, value in found.summary.items() if key != "subject"}
    Console(file=sys.stdout).print(facts_table(f"audit of {name}", facts))
    print(f"{printable(str(folder))}: {', '.join(FILES)}")
