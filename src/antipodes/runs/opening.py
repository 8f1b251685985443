"""A run's method with the weights and tables of a checkpoint, and the data it was trained on."""

from __future__ import annotations

from typing import Any, Literal

import torch

from antipodes.data import Samples
from antipodes.encoders import without_pretrained
from antipodes.methods import Method
from antipodes.runs.build import build_data, build_method
from antipodes.runs.folder import Run, load_checkpoint


def open_method(run: Run, which: Literal["last", "best"] = "last") -> tuple[Method, Samples]:
    """The method of a run with the weights of a checkpoint, and the data it was trained on."""
    config = run.config()
    state = load_checkpoint(run.last if which == "last" else run.best)
    data = build_data(config["data"])
    if state["identity"]["fingerprint"] != data.fingerprint:
        raise ValueError(f"the dataset has changed since {run.folder} was trained: its tables belong to other samples")
    with torch.random.fork_rng(), without_pretrained():
        method = build_method(config, data)
    load_model(method, state, run)
    return method, data


def load_model(method: Method, state: dict[str, Any], run: Run) -> None:
    """Give a method the weights and tables of a checkpoint; refuses one of another shape with one sentence."""
    try:
        method.load_state_dict(state["model"])
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"the checkpoint of {run.folder} does not fit its config.yaml: {first}") from error
