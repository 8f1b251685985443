"""`antipodes embed`: vectors of images."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console
from rich.table import Table

from antipodes.audit.embeddings import FORMATS, Embeddings, checked, paths_beside, write_embeddings
from antipodes.audit.outputs import require_out, write_table
from antipodes.audit.parts import compute_in_parts, remove_parts
from antipodes.audit.photos import Photos, open_photos, photos_of
from antipodes.audit.vectors import Patches, embed_photos, open_encoder
from antipodes.cli.evaluate import progress_bar
from antipodes.cli.parser import ArgumentParser

DESCRIPTION = """Embed images: a vector for every image of a folder or dataset, by the encoder of a run, a pretrained
one (efficientnet-lite0), an exported .safetensors file, or the small patches that these images are made of (patches,
which needs no weights and takes a minute). A call that was interrupted continues where it stopped when it is made
again.

Examples:
antipodes embed runs/a path/to/photos --out photos.npz - arrays embeddings (N, F) and paths (N,);
antipodes embed efficientnet-lite0 path/to/photos --out photos.parquet - columns id, path, embedding;
antipodes embed patches path/to/photos --out photos.npz - without any training or weights;
antipodes embed runs/a --out training.npy - the run's own training images, the vectors alone; paths are in
training.paths.csv."""


def main(arguments: list[str]) -> None:
    """Parse, embed, write, say what was written."""
    parser = ArgumentParser(prog="antipodes embed", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("encoder", metavar="RUN|ENCODER", help="Run folder, name of an encoder, or exported file.")
    parser.add_argument(
        "data",
        metavar="FOLDER|DATA",
        type=str | None,
        nargs="?",
        default=None,
        help="Folder of images, or a dataset as in antipodes train; a run's own training data if not given.",
    )
    parser.add_argument("--out", type=str, required=True, help=f"File of the vectors: {', '.join(FORMATS)}.")
    parser.add_argument("--limit", type=int | None, default=None, help="Embed only so many images.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="Threads that decode images.")
    parser.add_argument("--batch_size", type=int, default=32, help="Images that the encoder sees at a time.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    call = parser.parse_args(arguments)

    out = require_out(call.out, FORMATS)
    for name in ("workers", "batch_size"):
        if getattr(call, name) < 1:
            raise ValueError(f"{name} must be at least 1, got {getattr(call, name)}")
    name, encode = open_encoder(call.encoder)
    photos = _photos(call.encoder, call.data, call.limit)
    if isinstance(encode, Patches):
        encode.fit(photos)  # what it refuses is refused before anything is written
    parts = out.with_name(f".{out.name}.parts")
    with progress_bar("embedding") as progress:
        vectors, found = compute_in_parts(
            parts,
            (name, _version(call.encoder), *photos.paths),
            len(photos),
            lambda rows: embed_photos(photos, encode, rows, workers=call.workers, batch=call.batch_size),
            progress,
        )
    write_embeddings(out, Embeddings(checked(vectors, name), photos.paths, photos.labels, photos.classes))
    remove_parts(parts)
    facts = {
        "encoder": name,
        "images": len(photos),
        "dimensions": int(vectors.shape[1]),
        "taken from an earlier call": found,
        "skipped": len(photos.skipped),
        "out": str(out),
    }
    if out.suffix == ".npy":
        facts["paths"] = str(paths_beside(out))
    if photos.skipped:
        listing = out.with_name(out.stem + ".skipped.csv")
        write_table(
            listing, {"file": [file for file, _ in photos.skipped], "reason": [why for _, why in photos.skipped]}
        )
        facts["skipped files"] = str(listing)
    if call.json:
        print(json.dumps(facts))
        return
    table = Table("", title="embedded", show_header=False)
    table.add_column("", justify="right")
    for key, value in facts.items():
        table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
    Console().print(table)


def _photos(encoder: str, data: str | None, limit: int | None) -> Photos:
    """The images that were named, or else the training images of the run."""
    if data is not None:
        return open_photos(data, limit)
    if not (Path(encoder) / "config.yaml").is_file():
        raise ValueError(f"{encoder} is not a run with data of its own: say which folder of images to embed")
    from antipodes.runs.build import build_data
    from antipodes.runs.folder import Run

    return photos_of(build_data(Run.open(encoder).config()["data"]))


def _version(encoder: str) -> str:
    """What changes when an encoder on disk does."""
    place = Path(encoder)
    files = [place, place / "encoder.safetensors", place / "checkpoints" / "last.pt"]
    return " ".join(str(file.stat().st_mtime_ns) for file in files if file.is_file())
