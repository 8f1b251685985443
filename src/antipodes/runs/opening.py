"""A run's method with the weights and tables of a checkpoint, and the data it was trained on."""

from __future__ import annotations

from typing import Any, Literal

import torch

from antipodes.data import Samples
from antipodes.encoders import without_pretrained
from antipodes.methods import Method
from antipodes.objectives import Temperature
from antipodes.runs.build import build_data, build_method
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.state import SampleTable


def open_method(run: Run, which: Literal["last", "best"] = "last") -> tuple[Method, Samples]:
    """The method of a run with the weights of a checkpoint, and the data it was trained on.

    Raises:
        ValueError: if the checkpoint is missing or damaged, or the data has changed and the method has tables of it.
    """
    config = run.config()
    state = load_checkpoint(run.last if which == "last" else run.best)
    data = build_data(config["data"])
    with torch.random.fork_rng(), without_pretrained():
        method = build_method(config, data)
    if state["identity"]["fingerprint"] != data.fingerprint and has_tables(method):
        raise ValueError(f"the dataset has changed since {run.folder} was trained: its tables belong to other samples")
    load_model(method, state, run)
    return method, data


def has_tables(method: Method) -> bool:
    """Whether a method keeps something about every row of its data: a bank, thresholds, temperatures, any policy."""
    return any(True for _ in method.policies()) or any(
        isinstance(part, SampleTable) or (isinstance(part, Temperature) and part.per_sample is not None)
        for part in method.modules()
    )


def load_model(method: Method, state: dict[str, Any], run: Run) -> None:
    """Give a method the weights and tables of a checkpoint; refuses one of another shape with one sentence."""
    try:
        method.load_state_dict(state["model"])
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"the checkpoint of {run.folder} does not fit its config.yaml: {first}") from error
