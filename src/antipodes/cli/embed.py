"""`antipodes embed`: vectors of images."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console

from antipodes.audit.embeddings import FORMATS, Embeddings, checked, is_written, paths_table, write_embeddings
from antipodes.audit.outputs import is_table_of, require_out, write_table
from antipodes.audit.parts import compute_in_parts, remove_parts
from antipodes.audit.photos import Photos, open_photos, photos_of
from antipodes.audit.vectors import Patches, embed_photos, encoder_digest, open_encoder
from antipodes.cli.evaluate import progress_bar
from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.cli.tables import facts_table
from antipodes.files import refuse_foreign

SKIPPED = ("file", "reason")
"""The columns of the list of images that could not be read."""

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
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)

    out = require_out(call.out, FORMATS)
    skipped = out.with_name(out.stem + ".skipped.csv")
    refuse_foreign(out, "--out", is_written, call.force)
    refuse_foreign(skipped, "--out", lambda file: is_table_of(file, SKIPPED), call.force)
    if out.suffix == ".npy":
        refuse_foreign(paths_table(out), "--out", lambda _: is_written(out), call.force)
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
            (name, encoder_digest(encode), *photos.paths, *photos.contents()),
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
        facts["paths"] = str(paths_table(out))
    if photos.skipped:
        write_table(skipped, dict(zip(SKIPPED, zip(*photos.skipped, strict=True), strict=True)))
        facts["skipped files"] = str(skipped)
    if call.json:
        print(json.dumps(facts))
        return
    Console().print(facts_table("embedded", facts))


def _photos(encoder: str, data: str | None, limit: int | None) -> Photos:
    """The images that were named, or else the training images of the run."""
    if data is not None:
        return open_photos(data, limit)
    if not (Path(encoder) / "config.yaml").is_file():
        raise ValueError(f"{encoder} is not a run with data of its own: say which folder of images to embed")
    from antipodes.runs.build import build_data
    from antipodes.runs.folder import Run

    return photos_of(build_data(Run.open(encoder).config()["data"]))
