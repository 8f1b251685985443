"""The methods of finished runs: `open_method` opens a checkpoint with its training data, `open_clip_method` a model in
open_clip's format, and `open_data` the data that a run was trained on.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from antipodes.data import Samples
from antipodes.encoders import without_pretrained
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.open_clip import load_open_clip
from antipodes.losses import InfoNCE, Temperature
from antipodes.methods import CLIP, Method, Tower, TowerPlan, Towers
from antipodes.negatives import Known
from antipodes.registry import find
from antipodes.runs.build import build_data, build_method
from antipodes.runs.configuration import resolve_saved
from antipodes.runs.folder import CHECKPOINT_KEYS, Run, load_checkpoint
from antipodes.runs.rows import Growth, Spec, grown_model, growth_since, without_groups
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
    resolve_saved(run)  # refuses what does not fit, before anything is built
    state = load_checkpoint(run.last if which == "last" else run.best, CHECKPOINT_KEYS)
    data = open_data(config["data"], state)
    if not judged:
        config = {**config, "negatives": without_groups(config["negatives"], len(data))}
    with torch.random.fork_rng(), without_pretrained():
        method = build_method(config, data)
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


def open_clip_method(path: str | Path) -> tuple[Method, Preprocessing]:
    """Build a method from a folder in open_clip's format, or its file of weights; return it with its preprocessing.

    Raises:
        ValueError: if a file is missing or damaged, or a tower is not one of ours.
    """
    model = load_open_clip(path)
    heads = (nn.Sequential(model.image_projection), nn.Sequential(model.text_projection))
    towers = {"image": Tower(model.image, heads[0]), "text": Tower(model.text, heads[1])}
    plans = {name: TowerPlan(name, name) for name in towers}
    method = CLIP(Towers(towers, plans), InfoNCE(math.exp(-float(model.logit_scale))))
    preprocessing = model.image.preprocessing
    assert preprocessing is not None  # reading a model sets it
    method.pixels = {"mean": preprocessing.mean, "std": preprocessing.std}
    return method.eval(), preprocessing


def open_data(spec: Spec, saved: Mapping[str, Any] | None) -> Samples:
    """Open the training split, with images as large as when the checkpoint was written.

    Args:
        spec: The data in the configuration.
        saved: The checkpoint; None for a new run.
    """
    sizes = {} if saved is None else saved.get("data", {}).get("sizes", {})
    takes = inspect.signature(find("data", spec["name"]).target).parameters
    wanted = {name: side for name, side in sizes.items() if side and name in takes and spec.get(name) is None}
    return build_data({**spec, **wanted})
