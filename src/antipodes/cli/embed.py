"""`antipodes embed`: vectors of images, texts or vectors."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.console import Console

from antipodes.auditing.embedding import embed, skipped_table
from antipodes.auditing.embeddings import FORMATS, paths_table
from antipodes.cli.tables import facts_table
from antipodes.parsing import FORCE, ArgumentParser

DESCRIPTION = """Embed images or texts: a vector for every image of a folder or dataset, or for every text of a file or
table, by the encoder of a run, a pretrained one (hf:sentence-transformers/all-MiniLM-L6-v2 for texts,
timm:vit_small_patch14_dinov2.lvd142m for images, a folder that holds such a model, or without a hub minilm and
efficientnet-lite0, whose weights are in packages), an exported .safetensors file, or the small patches that these
images are made of (patches, which needs no weights and takes a minute). A call that was interrupted continues where it
stopped when it is made again.

Examples:
antipodes embed runs/a path/to/photos --out photos.npz - arrays embeddings (N, F) and paths (N,);
antipodes embed timm:vit_small_patch14_dinov2.lvd142m path/to/photos --out photos.parquet - columns id, path,
embedding;
antipodes embed patches path/to/photos --out photos.npz - without any training or weights;
antipodes embed runs/a --out training.npy - the run's own training images, the vectors alone; paths are in
training.paths.csv;
antipodes embed runs/clip texts.txt --tower text --out texts.npz - texts by one of the towers of a run."""


def main(arguments: list[str]) -> None:
    """Parse the call, embed, print what was written."""
    parser = ArgumentParser(prog="antipodes embed", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument(
        "encoder",
        metavar="RUN|ENCODER",
        help="Run folder, hf:MODEL, timm:MODEL, folder of such a model, other name, or exported file.",
    )
    parser.add_argument(
        "data",
        metavar="FOLDER|DATA",
        type=str | None,
        nargs="?",
        default=None,
        help="Folder of images, or a dataset as in antipodes train; a run's own training data if not given.",
    )
    parser.add_argument("--tower", type=str | None, default=None, help="Which encoder, where a run has several: text.")
    parser.add_argument("--columns", type=str | None, default=None, help="Column of texts in a table.")
    parser.add_argument("--out", type=str, required=True, help=f"File of the vectors: {', '.join(FORMATS)}.")
    parser.add_argument("--limit", type=int | None, default=None, help="Embed only so many images or texts.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="Threads that decode images.")
    parser.add_argument("--batch_size", type=int, default=32, help="Images that go through the encoder at a time.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)

    vectors = embed(
        call.encoder,
        call.data,
        tower=call.tower,
        columns=None if call.columns is None else call.columns.split(","),
        out=call.out,
        limit=call.limit,
        workers=call.workers,
        batch_size=call.batch_size,
        progress=True,
        force=call.force,
    )
    facts = {
        "encoder": vectors.encoder,
        "vectors": len(vectors),
        "dimensions": int(vectors.embeddings.shape[1]),
        "taken from an earlier call": vectors.continued,
        "skipped": len(vectors.skipped),
        "out": call.out,
    }
    if Path(call.out).suffix == ".npy":
        facts["paths"] = str(paths_table(Path(call.out)))
    if vectors.skipped:
        facts["skipped files"] = str(skipped_table(Path(call.out)))
    if call.json:
        print(json.dumps(facts))
    else:
        Console().print(facts_table("embedded", facts))
