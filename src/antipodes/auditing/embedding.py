"""`antipodes.embed`: vectors of photos, texts or vectors under an encoder.

1. The encoder is opened: a run's, a pretrained one, an exported file, or the patches that the photos are made of.
2. Inputs go through it batch by batch, decoded by threads ahead of the encoder.
3. With `out`, finished parts are kept next to it until the whole is written, so that an interrupted call continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.embeddings import FORMATS, Vectors, checked, is_written, paths_table
from antipodes.auditing.files import photos_of_list
from antipodes.auditing.parts import compute_in_parts, remove_parts
from antipodes.auditing.photos import Photos, open_photos, photos_of
from antipodes.auditing.rows import Rows, embed_rows, rows_for
from antipodes.auditing.vectors import Encode, Patches, embed_photos, encoder_digest, open_encoder
from antipodes.data import Samples, open_dataset
from antipodes.encoders.loading import LoadedEncoder
from antipodes.files import refuse_foreign
from antipodes.progress import Progress, progress_bar
from antipodes.tables import is_table_of, require_out, write_table
from antipodes.threads import check_workers

Compute = Callable[[range, Progress | None], NDArray[np.float32]]
"""Some rows of the data to their vectors."""

SKIPPED = ("file", "reason")
"""The columns of the list of images that could not be read."""


def embed(
    encoder: Any,
    data: Any = None,
    *,
    tower: str | None = None,
    columns: Sequence[str] | None = None,
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
        columns: the column of texts in a table, where its name does not say so.
        out: file for the vectors (.npz, .npy or .parquet); nothing is written if not given.
        limit: embed only so many photos or texts of a folder or dataset.
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
    check_workers(workers)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    file = None if out is None else _free_file(out, force)
    name, encode = _opened(encoder, tower)
    if isinstance(data, np.ndarray | Tensor) or (_is_list(data) and len(data) and isinstance(data[0], str)):
        vectors = _embed_inputs(name, encode, data, batch_size, progress)
        if file is not None:
            vectors.save(file)
        return vectors
    source: Photos | Rows
    if isinstance(encode, LoadedEncoder) and encode.modality != "image":
        source, compute = _rows(encoder, encode, data, tower, columns, limit, batch_size)
    else:
        source, compute = _photos(encoder, encode, data, limit, workers, batch_size)
    with progress_bar("embedding", shown=progress) as told:
        if file is None:
            matrix, found, parts = compute(range(len(source)), told), 0, None
        else:
            parts = file.with_name(f".{file.name}.parts")
            digests = (name, encoder_digest(encode), *source.paths, *source.contents())
            matrix, found = compute_in_parts(parts, digests, len(source), lambda rows: compute(rows, None), told)
    matrix = checked(matrix, name)
    vectors = Vectors(matrix, source.paths, source.labels, source.classes, name, source.skipped, found)
    if file is not None and parts is not None:
        vectors.save(file)
        remove_parts(parts)
        if source.skipped:
            write_table(skipped_table(file), dict(zip(SKIPPED, zip(*source.skipped, strict=True), strict=True)))
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
    return open_encoder(name, tower)


def _is_list(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, str)


def _photos(
    encoder: Any, encode: Encode, data: Any, limit: int | None, workers: int, batch_size: int
) -> tuple[Photos, Compute]:
    """The photos that were named, or else the training photos of the run, and what embeds some of them."""
    if _is_list(data):
        photos = photos_of_list(data)
    else:
        photos = photos_of(_own_data(encoder)) if data is None else open_photos(str(data), limit)
    if isinstance(encode, Patches):
        encode.fit(photos)  # what it refuses is refused before anything is written

    def compute(rows: range, progress: Progress | None) -> NDArray[np.float32]:
        return embed_photos(photos, encode, rows, workers=workers, batch=batch_size, progress=progress)

    return photos, compute


def _rows(
    encoder: Any,
    encode: LoadedEncoder,
    data: Any,
    tower: str | None,
    columns: Sequence[str] | None,
    limit: int | None,
    batch_size: int,
) -> tuple[Rows, Compute]:
    """The texts or vectors that were named, or else those of the run, and what embeds some of them."""
    if _is_list(data):
        raise ValueError(f"the encoder takes {encode.modality}s, and the data is a list of photos")
    options: dict[str, Any] = {} if limit is None else {"limit": limit}
    if columns is not None:
        options["columns"] = list(columns)
    samples = _own_data(encoder) if data is None else open_dataset(str(data), **options)
    rows = rows_for(encode, samples, str(data or samples.name), tower)

    def compute(some: range, progress: Progress | None) -> NDArray[np.float32]:
        return embed_rows(rows, encode, some, batch_size, progress)

    return rows, compute


def _own_data(encoder: Any) -> Samples:
    """The training data of a run."""
    if callable(encoder) or not (Path(encoder) / "config.yaml").is_file():
        raise ValueError(f"{encoder} is not a run with data of its own: say which folder of images to embed")
    from antipodes.auditing.runs import data_of_run

    return data_of_run(encoder)


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
