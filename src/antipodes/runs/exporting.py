"""Export of a run's encoders to files that describe their preprocessing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from antipodes.data import Samples
from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.encoders.export import export_backbone, export_head
from antipodes.encoders.open_clip import TwoTowers
from antipodes.encoders.text_transformer import TextTransformer
from antipodes.methods import Method
from antipodes.runs.views import build_augmentation


def export_encoders(method: Method, data: Samples, folder: Path, card: Mapping[str, str] | None = None) -> list[Path]:
    """Write every encoder of a method with its head and preprocessing; return the encoders' files.

    Args:
        method: The method with the encoders.
        data: The training data, which determines the size of images.
        folder: The folder to write to.
        card: Facts for a model card next to each file; None for no card.
    """
    written = []
    for name, encoder in method.exports().items():
        file = folder / f"{name}.safetensors"
        tower = _tower(method, name)
        export_backbone(encoder, file, run_preprocessing(method, tower, data), card)
        with suppress(ValueError):  # a user's own head, which only the checkpoint can hold
            export_head(method.network[tower].head, folder / f"{name.replace('encoder', 'head', 1)}.safetensors")
        written.append(file)
    return written


def run_preprocessing(method: Method, tower: str, data: Samples) -> Preprocessing | None:
    """Return how a tower's images are prepared in this run; None for a tower of texts or vectors."""
    plan = method.network.plans[tower]
    if plan.modality != "image" or not data.image_size:
        return None
    size = data.image_size
    decode: int = getattr(data, "decode", size)
    recipe = build_augmentation({"name": "plain", **method.pixels}, size, method.normalised)
    colours: dict[int, Literal["rgb", "l", "ab"]] = {1: "l", 2: "ab", 3: "rgb"}
    return Preprocessing(size, recipe.mean, recipe.std, colours[plan.channels], None if decode == size else decode)


def two_towers(method: Method) -> TwoTowers:
    """Return the image and text tower of a method with their linear heads and the temperature, for open_clip.

    Raises:
        ValueError: the method does not have exactly one image and one text tower, or a head is not linear.
    """
    towers = {method.network.plans[name].modality: name for name in method.network.names()}
    if sorted(towers) != ["image", "text"] or len(method.network.names()) != 2:
        raise ValueError("open_clip's models have a tower for images and one for texts: train with --method clip")
    image, text = (method.network[towers[modality]] for modality in ("image", "text"))
    loss_fn: Any = next(iter(method.directions.values()))
    temperature: Any = loss_fn.temperature  # a number, or a module that learns the number
    value = float(temperature.current() if hasattr(temperature, "current") else temperature)
    bias = getattr(loss_fn, "bias", None)
    return TwoTowers(
        cast(Encoder, image.encoder),
        cast(TextTransformer, text.encoder),
        _linear(image.head),
        _linear(text.head),
        torch.tensor(-math.log(value)),
        None if bias is None else bias.detach().clone(),
    )


def _linear(head: nn.Module) -> nn.Linear:
    """Return the only layer of a linear head; refuse other heads."""
    layers = list(head.children())
    if len(layers) != 1 or not isinstance(layers[0], nn.Linear):
        raise ValueError("open_clip's projections are one linear layer: train with --head.kind linear")
    return layers[0]


def card_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about the training that a model card shows."""
    policy = config["negatives"]["name"]
    return {
        "method": config["method"]["name"] + ("" if policy == "none" else f" + {policy} ({config['treatment']})"),
        "data": Path(str(config["data"]["name"])).name,  # of a folder only the name, not the path
        "training": f"{config['epochs']} epochs, batches of {config['batch_size']}, seed {config['seed']}",
    }


def _tower(method: Method, file_name: str) -> str:
    """Return the tower whose encoder is in a file of `Method.exports`."""
    named = file_name.removeprefix("encoder-")
    return named if named in method.network.names() else method.network.names()[0]
