"""Models in open_clip's format as a `Method`, for evaluation."""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.open_clip import load_open_clip
from antipodes.losses import InfoNCE
from antipodes.methods import CLIP, Method, Tower, TowerPlan, Towers


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
