"""`antipodes audit`: which samples are the same thing."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from antipodes.audit.embeddings import FORMATS, Embeddings, read_embeddings
from antipodes.audit.findings import AuditOptions, Findings, find
from antipodes.audit.outputs import require_pyarrow
from antipodes.audit.photos import Photos, open_photos, photos_of
from antipodes.audit.pixels import agree
from antipodes.audit.proposals import propose
from antipodes.audit.summary import GROUPS, PAIRS, SAMPLES, SUMMARY, is_finding, summarise, write_findings
from antipodes.audit.vectors import PATCHES, embed_photos, open_encoder
from antipodes.cli.evaluate import progress_bar
from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.cli.tables import facts_table
from antipodes.data import ImageDataset
from antipodes.files import is_marked, refuse_foreign
from antipodes.negatives import GloFND
from antipodes.plain_text import printable
from antipodes.report.audit_page import audit_page
from antipodes.report.page import require_jinja, write_page
from antipodes.runs.build import build_data
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import plain_view

REPORT = "report.html"
DESCRIPTION = """Find out which samples are the same thing: exact duplicates (equal files), near duplicates (cropped,
recompressed, mirrored, brighter or darker), likely false negatives (alike beyond what chance explains: a contrastive
loss pushes them apart), outliers, and samples that look like another class where there are labels. No training is
needed.

Examples:
antipodes audit path/to/photos --out audit - a folder, embedded by the pretrained encoder if it is installed;
antipodes audit photos.npz --out audit - embeddings of any encoder;
antipodes audit runs/a --out audit - the training data of a run, by its own encoder; with the thresholds that it
learned, if it was trained with GloFND.

Writes pairs.parquet (both paths, similarity, threshold, kind), groups.parquet (row, path, group: what Known.read gives
to a loss), samples.parquet (outliers, other classes), summary.json and report.html, which opens in a browser."""


@dataclass(frozen=True)
class _Subject:
    """What is audited: its embeddings, its pictures if there are any, and how the embeddings came about."""

    embeddings: Embeddings
    photos: Photos | None
    encoder: str
    thresholds: Tensor | None = None  # of every sample, where a run has learned them


def main(arguments: list[str]) -> None:
    """Parse, embed, find, write, show."""
    parser = ArgumentParser(prog="antipodes audit", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("subject", metavar="FOLDER|EMBEDDINGS|RUN", help="What to look at.")
    parser.add_argument("--out", type=str, default="audit", help="Folder of the answer; made if it does not exist.")
    parser.add_argument(
        "--encoder",
        type=str | None,
        default=None,
        help="Run folder or name of the encoder for images; `patches` needs no weights.",
    )
    parser.add_argument("--batch_size", type=int, default=256, help="Batch of training that the summary speaks of.")
    parser.add_argument("--limit", type=int | None, default=None, help="Look at only so many images.")
    parser.add_argument("--workers", type=int, default=2, help="Threads that decode images.")
    parser.add_argument("--shown", type=int, default=200, help="Pairs of each kind with pictures on the page.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_class_arguments(AuditOptions, "options", as_group=True)
    call = parser.parse_args(arguments)

    options: AuditOptions = parser.instantiate_classes(call).options
    if call.batch_size < 2:
        raise ValueError(f"batch_size must be at least 2, got {call.batch_size}: one sample has no negatives")
    if call.workers < 1:
        raise ValueError(f"workers must be at least 1, got {call.workers}")
    require_pyarrow()
    require_jinja()
    folder = _folder(call.out)
    for name in (PAIRS, GROUPS, SAMPLES, SUMMARY):
        refuse_foreign(folder / name, "--out", is_finding, call.force)
    refuse_foreign(folder / REPORT, "--out", is_marked, call.force)
    subject = _open(call.subject, call.encoder, call.limit, call.workers)
    findings = _find(subject, options, call.workers)
    summary = {"subject": call.subject, "encoder": subject.encoder}
    summary |= summarise(subject.embeddings, findings, call.batch_size)
    if subject.photos is not None:
        summary |= _of_photos(subject.photos, findings)
    folder.mkdir(parents=True, exist_ok=True)
    training = None if subject.photos is None else len(subject.photos.parts[0])
    write_findings(folder, subject.embeddings, findings, summary, training)
    with progress_bar("page") as progress:
        page = audit_page(call.subject, subject.embeddings, findings, summary, subject.photos, call.shown, progress)
    write_page(folder / REPORT, page)
    if call.json:
        print(json.dumps(summary | {"out": str(folder)}))
        return
    name = os.path.basename(os.path.normpath(call.subject))
    facts = {key: value for key, value in summary.items() if key != "subject"}
    Console(file=sys.stdout).print(facts_table(f"audit of {name}", facts))
    print(f"{printable(str(folder))}: pairs.parquet, groups.parquet, samples.parquet, summary.json, {REPORT}")


def _folder(out: str) -> Path:
    """The folder of the answer, if it can be made."""
    folder = Path(out)
    if not out:
        raise ValueError("--out is empty: name a folder")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file, or a link that leads nowhere: name a folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--out {folder}: the folder {folder.parent} does not exist, make it first")
    if not os.access(folder if folder.exists() else folder.absolute().parent, os.W_OK):
        raise ValueError(f"--out {folder} cannot be written to")
    return folder


def _open(name: str, encoder: str | None, limit: int | None, workers: int) -> _Subject:
    """Read embeddings, or embed the pictures of a folder, a dataset or a run."""
    if Path(name).suffix in FORMATS and not Path(name).is_dir():
        embeddings = read_embeddings(name)
        photos = _files_of(embeddings)
        return _Subject(embeddings, photos, f"embeddings of {Path(name).name}")
    if (Path(name) / "config.yaml").is_file():
        if encoder is None and (learned := _with_thresholds(name)) is not None:
            return learned
        photos = photos_of(build_data(Run.open(name).config()["data"]))
        encoder = encoder or name
    else:
        photos = open_photos(name, limit)
    if len(photos) < 2:
        raise ValueError(f"{name} has {len(photos)} image(s): an audit compares at least two")
    title, encode = open_encoder(encoder)
    with progress_bar("embedding") as progress:
        vectors = embed_photos(photos, encode, mirrored=True, workers=workers, progress=progress)
    return _Subject(Embeddings(vectors, photos.paths, photos.labels, photos.classes), photos, title)


def _with_thresholds(name: str) -> _Subject | None:
    """The training images of a run as its policy sees them, if that is GloFND, with the thresholds that it learned."""
    method, data = open_method(Run.open(name))
    found = [(direction, policy) for direction, policy in method.policies() if isinstance(policy, GloFND)]
    if not found or not isinstance(data, ImageDataset):
        return None
    direction, policy = found[0]
    tower = method.evaluated(method.anchor_tower(direction), head=True)
    with progress_bar("embedding") as progress:
        vectors = embed_dataset(tower, data, preprocess=plain_view(method, data.image_size), progress=progress)
    photos = photos_of(data).training()
    embeddings = Embeddings(vectors.numpy(), photos.paths, photos.labels, photos.classes)
    return _Subject(embeddings, photos, f"{name}, thresholds of GloFND", policy.threshold.detach().cpu().float())


def _files_of(embeddings: Embeddings) -> Photos | None:
    """The pictures of embeddings whose paths are image files that are still there."""
    from antipodes.audit.files import FileImages

    if not all(os.path.isfile(path) for path in embeddings.paths):
        return None
    files = FileImages(embeddings.paths)
    return Photos((files,), embeddings.paths, ("train",) * len(files), are_files=True)


def _find(subject: _Subject, options: AuditOptions, workers: int) -> Findings:
    """Search, with the pixels where there are any; patches then propose pairs as well."""
    photos = subject.photos
    proposed = None
    if photos is not None and subject.encoder != PATCHES:
        with progress_bar("patches") as progress:
            proposed = propose(photos, workers, progress)
    with progress_bar("neighbours") as progress:
        if photos is None:
            return find(subject.embeddings, options, progress=progress)

        def verify(first: Any, second: Any) -> Any:
            answers = []
            for start in range(0, len(first), 64):
                rows = slice(start, start + 64)
                answers.append(agree(photos.pixels(first[rows]), photos.pixels(second[rows])))
                progress(start, len(first))
            return torch.cat(answers).numpy()

        return find(
            subject.embeddings,
            options,
            copies=photos.copies(),
            verify=verify,
            proposed=proposed,
            thresholds=subject.thresholds,
            progress=progress,
        )


def _of_photos(photos: Photos, findings: Findings) -> dict[str, int]:
    """What only pictures have: files that cannot be read, and duplicates across the splits."""
    numbers = {"skipped files": len(photos.skipped)}
    if len(photos.parts) > 1:
        numbers["duplicates across train and test"] = sum(
            photos.splits[pair.a] != photos.splits[pair.b] for pair in findings.pairs if "duplicate" in pair.kind
        )
    return numbers
