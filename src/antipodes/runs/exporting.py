"""The encoders of a run as files that say how to feed them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.export import export_backbone
from antipodes.methods import Method
from antipodes.runs.views import build_augmentation


def export_encoders(method: Method, image_size: int, folder: Path, card: Mapping[str, str] | None = None) -> list[Path]:
    """Write every encoder of a method that is worth keeping, with what it takes to use it, and return the files.

    Args:
        method: Whose encoders, and whose pixels were normalised as the files will say.
        image_size: Side of the images that it was trained on; 0 where there are none.
        folder: Where to write them.
        card: Facts for a model card beside each file; None for no card.
    """
    written = []
    for name, encoder in method.exports().items():
        file = folder / f"{name}.safetensors"
        export_backbone(encoder, file, run_preprocessing(method, _tower(method, name), image_size), card)
        written.append(file)
    return written


def run_preprocessing(method: Method, tower: str, image_size: int) -> Preprocessing | None:
    """How the images of a tower are made ready in this run; None for a tower that sees none."""
    plan = method.network.plans[tower]
    if plan.modality != "image" or not image_size:
        return None
    recipe = build_augmentation({"name": "plain", **method.pixels}, image_size, method.normalised)
    colours: dict[int, Literal["rgb", "l", "ab"]] = {1: "l", 2: "ab", 3: "rgb"}
    return Preprocessing(image_size, recipe.mean, recipe.std, colours[plan.channels])


def facts(config: Mapping[str, Any]) -> dict[str, str]:
    """What a model card says of the training."""
    policy = config["negatives"]["name"]
    return {
        "method": config["method"]["name"] + ("" if policy == "none" else f" + {policy} ({config['treatment']})"),
        "data": Path(str(config["data"]["name"])).name,  # of a folder not where it lies
        "training": f"{config['epochs']} epochs, batches of {config['batch_size']}, seed {config['seed']}",
    }


def _tower(method: Method, file_name: str) -> str:
    """The tower whose encoder a file of `Method.exports` holds."""
    named = file_name.removeprefix("encoder-")
    return named if named in method.network.names() else method.network.names()[0]
