"""`open_method`: a run's method with the weights and tables of a checkpoint, and its training data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.encoders import without_pretrained
from antipodes.losses import Temperature
from antipodes.methods import Method
from antipodes.negatives import Known
from antipodes.runs.build import UnknownOption, build_method
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, load_checkpoint
from antipodes.runs.groups import without_groups
from antipodes.runs.growth import Growth, grown_model, growth_since, open_data
from antipodes.state import SampleTable

PARTS = ("method", "loss", "head", "data", "encoder", "negatives", "augmentation")
"""What the configuration of a run has for every part that its method is built from."""


def open_method(run: Run, which: Literal["last", "best"] = "last", judged: bool = True) -> tuple[Method, Samples]:
    """Open the method of a run with the weights of a checkpoint, and the data it was trained on.

    If files were added or removed since, the rows of tables are matched by name and content (`Growth`).

    Args:
        run: The run.
        which: The checkpoint.
        judged: True if the policy is needed; False leaves out groups that the user gave, which may belong to the data
            as it was before it changed.

    Raises:
        ValueError: if the checkpoint is missing or damaged, or the method has tables of other data.
    """
    config = run.config
    if absent := [part for part in PARTS if part not in config]:
        raise ValueError(
            f"{run.config_file} names no {', '.join(absent)}: another version of antipodes has trained this run, "
            "so use that version, or train it again"
        )
    state = load_checkpoint(run.last if which == "last" else run.best, CHECKPOINT_KEYS)
    try:
        data = open_data(config["data"], state)
        if not judged:
            config = {**config, "negatives": without_groups(config["negatives"], len(data))}
        with torch.random.fork_rng(), without_pretrained():
            method = build_method(config, data)
    except UnknownOption as error:
        raise ValueError(f"{run.config_file} does not fit this version of antipodes: {error}") from error
    if not judged:
        state = {**state, "model": _without_known(method, state["model"])}
    load_model(method, state, run, growth_since(state, data) if has_tables(method) else None)
    return method, data


def _without_known(method: Method, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace what a checkpoint holds of the groups of `known` by the empty groups of the method."""
    model = dict(saved)
    for prefix, module in method.named_modules():
        if isinstance(module, Known):
            model = {key: value for key, value in model.items() if not key.startswith(f"{prefix}.")}
            model |= {f"{prefix}.{name}": value for name, value in module.state_dict().items()}
    return model


def has_tables(method: Method) -> bool:
    """Return True if a method stores something for every row of its data: a bank, thresholds, any policy, ..."""
    return any(True for _ in method.policies()) or any(
        isinstance(part, SampleTable) or (isinstance(part, Temperature) and part.per_sample is not None)
        for part in method.modules()
    )


def load_model(method: Method, state: dict[str, Any], run: Run, growth: Growth | None = None) -> None:
    """Load the weights and tables of a checkpoint into a method; refuse other shapes with one sentence.

    Args:
        method: The method, built for the current data.
        state: The checkpoint.
        run: The run, for the message.
        growth: How the data has changed since; None if it has not.
    """
    model = state["model"] if growth is None else grown_model(method, state["model"], growth)
    try:
        method.load_state_dict(model)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[-1].strip()
        raise ValueError(f"the checkpoint of {run.folder} does not fit its config.yaml: {first}") from error
