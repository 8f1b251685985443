"""`antipodes audit`: which samples are the same thing, and what to do about it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from antipodes.auditing.audit import Audit, audit, check_folder
from antipodes.auditing.findings import AuditOptions
from antipodes.auditing.keep import check_copy
from antipodes.auditing.summary import FILES
from antipodes.cli.tables import cell
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.plain_text import printable

DESCRIPTION = """Find the samples of a data set that show or say the same thing: exact duplicates (equal files; texts
that differ in case and white space), near duplicates (cropped, recompressed, mirrored, brighter or darker photos; texts
that differ in a few words), likely false negatives (pairs more similar than chance explains; a contrastive loss pushes
them apart), samples that stand out, leaks between train and test, and, where there are labels, samples that look like
another class. No training is needed.

Examples:
antipodes audit path/to/photos --out audit - a folder, embedded by the pretrained encoder if it is installed;
antipodes audit questions.csv --columns text - texts; --columns query,document are pairs of texts;
antipodes audit train/ --against test/ - what is in both is a leak;
antipodes audit photos.npz --out audit - embeddings of any encoder;
antipodes audit runs/a --out audit - the training data of a run, embedded by its own encoder;
antipodes audit flickr8k --encoder runs/clip - photos with captions as pairs, by both towers of a run;
antipodes audit path/to/photos --copy cleaned - link what is kept into a new folder;
antipodes audit path/to/photos --decisions decisions.json - apply what was decided on the page.

The command writes pairs.parquet (both samples, similarity, threshold, kind), groups.parquet (row, path, group: what
Known.read gives to a loss), samples.parquet (what stands out), keep.csv (which to keep or leave out, and why),
skipped.csv, summary.json (every number with its unit and its list), and report.html: open it in a browser, decide which
pairs are the same, and save decisions.json."""


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="antipodes audit", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("subject", metavar="FOLDER|TEXTS|EMBEDDINGS|RUN", help="The data to audit.")
    parser.add_argument("--out", type=str, default="audit", help="Folder of the answer; made if it does not exist.")
    parser.add_argument(
        "--against",
        type=str | None,
        default=None,
        help="Other data of the same kind, such as a test set: what is in both is a leak.",
    )
    parser.add_argument(
        "--encoder",
        type=str | None,
        default=None,
        help="hf:MODEL (texts), timm:MODEL (photos), a folder of such a model, a run or a name; `patches` (photos) "
        "and `ngrams` (texts) need no weights.",
    )
    parser.add_argument("--tower", type=str | None, default=None, help="Encoder of a run that has several.")
    parser.add_argument(
        "--kind", type=str | None, default=None, help="photos, texts, pairs or vectors, for data that could be several."
    )
    parser.add_argument(
        "--columns",
        type=str | None,
        default=None,
        help="Column of texts in a table, or the two of pairs, such as ask,reply.",
    )
    parser.add_argument("--label", type=str | None, default=None, help="Column of labels in a table of texts.")
    parser.add_argument(
        "--decisions",
        type=str | None,
        default=None,
        help="File that the page of an audit saved. What is decided is kept in --out for the next audit.",
    )
    parser.add_argument(
        "--calibrate",
        type=float | None,
        default=None,
        help="Precision of likely false negatives that is asked for, such as 0.9: takes the bound that is expected to "
        "reach it, from at least 30 decided pairs.",
    )
    parser.add_argument(
        "--copy",
        type=str | None,
        default=None,
        help="New folder for what is kept: photos are linked, texts become kept.jsonl. Nothing is deleted.",
    )
    parser.add_argument("--copy_as", type=str, default="link", help="link (hard links where possible) or copy.")
    parser.add_argument("--batch_size", type=int, default=256, help="Batch of training that the summary refers to.")
    parser.add_argument("--limit", type=int | None, default=None, help="Audit only so many photos or rows.")
    parser.add_argument("--workers", type=int, default=2, help="Threads that decode images.")
    parser.add_argument("--shown", type=int, default=200, help="Pairs of each kind on the page.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_class_arguments(AuditOptions, "options", as_group=True)
    return parser


def main(arguments: list[str]) -> None:
    """Parse the call, audit, print the summary."""
    call = _parser().parse_args(arguments)
    folder = check_folder(call.out, call.force)
    if call.copy is not None:
        check_copy(call.copy, call.copy_as)
    found = audit(
        call.subject,
        encoder=call.encoder,
        against=call.against,
        out=folder,
        kind=call.kind,
        columns=None if call.columns is None else [name.strip() for name in call.columns.split(",")],
        label=call.label,
        tower=call.tower,
        decisions=call.decisions,
        calibrate=call.calibrate,
        options={each.name: call.options[each.name] for each in fields(AuditOptions)},  # a file adds where it lies
        batch_size=call.batch_size,
        limit=call.limit,
        workers=call.workers,
        shown=call.shown,
        progress=True,
        force=call.force,
    )
    copied = None if call.copy is None else found.copy(call.copy, copy_as=call.copy_as, progress=True)
    if call.json:
        extra = {} if copied is None else {"copied": copied, "copy": call.copy}
        print(json.dumps(found.summary | {"out": str(folder)} | extra))
        return
    name = os.path.basename(os.path.normpath(call.subject))
    Console(file=sys.stdout).print(_table(f"audit of {name}", found))
    if copied is not None:
        print(f"{printable(call.copy)}: {copied:,} {found.data.unit}s that are kept")
    _print_files(folder)


def _table(title: str, found: Audit) -> Table:
    """The summary: what was audited, then every number with its unit."""
    table = Table("", title=cell(title), show_header=False)
    table.add_column("", justify="right")
    table.add_column("")
    units = {number.name: number.unit for number in found.numbers}
    for name, value in found.summary.items():
        if name != "subject":
            table.add_row(cell(name), cell("-" if value is None else value), cell(units.get(name, "")))
    return table


def _print_files(folder: Path) -> None:
    there = [name for name in FILES if (folder / name).is_file()]
    print(f"{printable(str(folder))}: {', '.join(there)}")
