"""`antipodes.train`: a run from keywords."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipodes.runs.configuration import resolve, resume
from antipodes.runs.folder import Run
from antipodes.training import loop


def train(
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume_from: str | Path | None = None,
    **options: Any,
) -> Run:
    """Pretrain an encoder by contrastive learning, or continue a run.

    Args:
        data: what to train on: the path of a folder of photos, an archive or a table; the name of a dataset; or a
            mapping with a `name` and the dataset's arguments. With `resume_from`, where the data is now.
        out: folder of the run; it must not hold one yet.
        resume_from: folder of a run to continue, for more `epochs` if given.
        **options: the options of `antipodes train`, with dots or nested: `method="moco"`, `epochs=30`,
            `negatives={"name": "glofnd", "alpha": 0.1}`, `**{"data.limit": 10_000}`.

    Returns:
        The run: `run.path`, `run.config` (all options), `run.metrics` (one line per epoch, by column).

    Raises:
        ValueError: for options that do not fit; nothing is written then.
        TrainingFailed: when the loss stops being a number.

    Example:
        >>> run = train(data="path/to/photos", out="runs/a", method="simclr", epochs=30)  # doctest: +SKIP
        >>> run.metrics["loss"][-1]  # doctest: +SKIP
        4.2
    """
    if resume_from is not None:
        if isinstance(data, Mapping):
            raise ValueError("data must be the path of the run's data, where it is now, when resume_from is given")
        given = options if out is None else {**options, "out": str(out)}
        configuration, run = resume(resume_from, given, None if data is None else str(data))
        return loop.train(configuration, run)
    if data is None:
        raise ValueError("which data? Give data, the path of a folder of photos or the name of a dataset")
    if out is None:
        raise ValueError("out is missing: name the folder of the run")
    named = dict(data) if isinstance(data, Mapping) else str(data)
    return loop.train(resolve({**options, "data": named, "out": str(out)}))
