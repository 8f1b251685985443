"""Features of a frozen encoder whose inputs are not random: embedded once, kept in the run folder, then looked up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antipodes.data import Raw, Samples
from antipodes.files import replacing
from antipodes.methods import Method
from antipodes.runs.embedding import embed
from antipodes.runs.views import Views

BATCH = 256


class LockedFeatures:
    """What a frozen encoder makes of an input, by row, or by text where a row has several.

    Args:
        features: (m, F), memory-mapped.
        places: Text -> its row of `features`; None where it is the row of the dataset.
    """

    def __init__(self, features: Tensor, places: Mapping[str, int] | None = None) -> None:
        self.features, self.places = features, places

    def __call__(self, rows: Tensor, raw: Raw) -> Tensor:
        """The features (b, F) of some rows, given what the dataset has of them."""
        if self.places is not None:
            rows = torch.tensor([self.places[text] for text in raw])
        return self.features[rows.cpu()]


def lookup_locked(
    views: Views, method: Method, data: Samples, config: Mapping[str, Any], folder: Path | None, say: Callable[[str], None]
) -> None:
    """Let a run read the features of its frozen towers instead of computing them at every step.

    A frozen image tower is only looked up where its views are not random, with the augmentation `plain`.

    Args:
        views: What makes the batches; it looks features up from now on.
        method: Its towers skip their encoders from now on.
        data: The training split.
        config: Of the run.
        folder: Where to keep the features; None keeps them in memory.
        say: Told what is being done.
    """
    for name, plan in method.network.plans.items():
        tower = method.network.towers[name] if plan.input else None
        random = plan.modality == "image" and config["augmentation"]["name"] != "plain"
        if tower is None or not tower.frozen or random or len(method.network.seeing(plan.input)) > 1:
            continue
        texts = data.corpus(plan.input) if plan.modality == "text" else None
        count = len(data) if texts is None else len(texts)
        file = None if folder is None else folder / f"{name}.npy"
        if file is None or not file.is_file() or len(np.load(file, mmap_mode="r")) != count:
            say(f"embedding {count:,} inputs of the frozen tower {name} once")
            features = _embed(method, data, views, name, texts)
            if file is None:
                kept = features
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                with replacing(file) as temporary, temporary.open("wb") as stream:
                    np.save(stream, features.numpy())
        if file is not None:
            kept = torch.from_numpy(np.load(file, mmap_mode="c"))
        places = None if texts is None else {text: place for place, text in enumerate(texts)}
        views.locked[plan.input] = LockedFeatures(kept, places)
        method.network[name].cached = True


@torch.no_grad()
def _embed(method: Method, data: Samples, views: Views, name: str, texts: list[str] | None) -> Tensor:
    plan, encoder = method.network.plans[name], method.network[name].encoder
    if texts is None:
        return embed(
            encoder, data, preprocess=views.plain[plan.input], input_name=plan.input, device=views.device, batch_size=BATCH
        )
    parts = []
    for start in range(0, len(texts), BATCH):
        tokens = views.plain[plan.input](texts[start : start + BATCH]).to(views.device)
        parts.append(encoder(tokens).float().cpu())
    return torch.cat(parts)
