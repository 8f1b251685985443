"""`antipodes.embed`: vectors of photos, texts or vectors under an encoder.

1. The encoder is opened: a run's, a pretrained one, an exported file, or the patches that the photos are made of.
2. Inputs go through it batch by batch, decoded by threads ahead of the encoder.
3. With `out`, finished parts are kept next to it until the whole is written, so that an interrupted call continues.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.auditing.embeddings import FORMATS, Vectors, checked, is_written, paths_table
from antipodes.auditing.files import photos_of_list
from antipodes.auditing.outputs import is_table_of, require_out, write_table
from antipodes.auditing.parts import compute_in_parts, remove_parts
from antipodes.auditing.photos import Photos, open_photos
from antipodes.auditing.vectors import PATCHES, Encode, Patches, embed_photos, encoder_digest, open_encoder
from antipodes.encoders.loading import LoadedEncoder, load
from antipodes.files import refuse_foreign
from antipodes.progress import progress_bar

SKIPPED = ("file", "reason")
"""The columns of the list of images that could not be read."""


def embed(
    encoder: Any,
    data: Any = None,
    *,
    tower: str | None = None,
    out: str | Path | None = None,
    limit: int | None = None,
    workers: int | None = None,
    batch_size: int = 32,
    progress: bool = False,
    force: bool = False,
) -> Vectors:
    """Embed photos, texts or vectors.

    Args:
        encoder: a run folder, the name of an encoder (`efficientnet-lite0`, `patches`), an exported .safetensors file,
            or what `antipodes.load` returns.
        data: the path of a folder of photos or the name of a dataset; a list of paths or of Pillow images; a list of
            texts or an array (n, D) for encoders of these. By default the training photos of the run.
        tower: which encoder of a run that has several, such as `text`.
        out: file for the vectors (.npz, .npy or .parquet); nothing is written if not given.
        limit: embed only so many photos of a folder or dataset.
        workers: threads that decode photos; one per core if not given.
        batch_size: inputs that go through the encoder at a time.
        progress: show on standard error how far the work is.
        force: replace files at `out` that are not an earlier result.

    Returns:
        Vectors with `embeddings` (n, F) float32 and n `paths`; the names of texts and arrays are their rows.

    Raises:
        ValueError: if there is no such encoder or data, or `out` cannot be used; nothing is written then.
    """
    workers = (os.cpu_count() or 1) if workers is None else workers
    for name, value in (("workers", workers), ("batch_size", batch_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    file = None if out is None else _free_file(out, force)
    name, encode = _opened(encoder, tower)
    if isinstance(data, np.ndarray | Tensor) or (_is_list(data) and len(data) and isinstance(data[0], str)):
        vectors = _embed_inputs(name, encode, data, batch_size, progress)
        if file is not None:
            vectors.save(file)
        return vectors
    photos = photos_of_list(data) if _is_list(data) else _photos(encoder, data, limit)
    if isinstance(encode, LoadedEncoder) and encode.modality != "image":
        raise ValueError(f"{name} is an encoder of {encode.modality}s, and the data is photos")
    if isinstance(encode, Patches):
        encode.fit(photos)  # what it refuses is refused before anything is written
    with progress_bar("embedding", shown=progress) as told:
        if file is None:
            matrix = embed_photos(photos, encode, workers=workers, batch=batch_size, progress=told)
            return Vectors(checked(matrix, name), photos.paths, photos.labels, photos.classes, name, photos.skipped)
        parts = file.with_name(f".{file.name}.parts")
        matrix, found = compute_in_parts(
            parts,
            (name, encoder_digest(encode), *photos.paths, *photos.contents()),
            len(photos),
            lambda rows: embed_photos(photos, encode, rows, workers=workers, batch=batch_size),
            told,
        )
    vectors = Vectors(checked(matrix, name), photos.paths, photos.labels, photos.classes, name, photos.skipped, found)
    vectors.save(file)
    remove_parts(parts)
    if photos.skipped:
        write_table(skipped_table(file), dict(zip(SKIPPED, zip(*photos.skipped, strict=True), strict=True)))
    return vectors


def skipped_table(file: Path) -> Path:
    """The table of photos that could not be read, next to a file of vectors: x.skipped.csv for x.npz."""
    return file.with_name(file.stem + ".skipped.csv")


def _free_file(out: str | Path, force: bool) -> Path:
    """The file of the vectors, if it and what belongs to it can be written."""
    file = require_out(out, FORMATS)
    refuse_foreign(file, "--out", is_written, force)
    refuse_foreign(skipped_table(file), "--out", lambda table: is_table_of(table, SKIPPED), force)
    if file.suffix == ".npy":
        refuse_foreign(paths_table(file), "--out", lambda _: is_written(file), force)
    return file


def _opened(encoder: Any, tower: str | None) -> tuple[str, Encode]:
    """The encoder and its name."""
    if callable(encoder):
        return str(getattr(encoder, "name", type(encoder).__name__)), encoder
    name = str(encoder)
    if tower is not None and name != PATCHES:
        return name, load(name, tower)
    return open_encoder(name)


def _is_list(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, str)


def _photos(encoder: Any, data: Any, limit: int | None) -> Photos:
    """The photos at a path or of a dataset, or the training photos of the run."""
    if data is not None:
        return open_photos(str(data), limit)
    if callable(encoder) or not (Path(encoder) / "config.yaml").is_file():
        raise ValueError(f"{encoder} is not a run with data of its own: say which folder of images to embed")
    from antipodes.auditing.runs import photos_of_run

    return photos_of_run(encoder)


def _embed_inputs(name: str, encode: Encode, data: Any, batch_size: int, shown: bool) -> Vectors:
    """The vectors of texts or of vectors, under an encoder of texts or of vectors."""
    texts = _is_list(data)
    if not isinstance(encode, LoadedEncoder) or encode.modality != ("text" if texts else "vector"):
        kind = f"an encoder of {encode.modality}s" if isinstance(encode, LoadedEncoder) else "an encoder of images"
        raise ValueError(f"{name} is {kind}, and the data is {'texts' if texts else 'an array of vectors'}")
    given: Any = list(data) if texts else torch.from_numpy(checked(np.asarray(data), "data"))
    with progress_bar("embedding", shown=shown) as progress:
        matrix = encode.embed(given, batch_size, progress).numpy()
    return Vectors(checked(matrix, name), tuple(f"row {row}" for row in range(len(data))), encoder=name)
