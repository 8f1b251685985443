"""Features of frozen encoders whose inputs are not random: computed once, kept on disk, then looked up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from antipodes.data import Samples
from antipodes.data.download import cache_root
from antipodes.data.private_files import private_file, private_folder
from antipodes.files import replacing
from antipodes.methods import Method
from antipodes.runs.embedding import embed_distinct, embed_texts
from antipodes.runs.fingerprint import fingerprint
from antipodes.runs.views import BatchMaker, FrozenFeatures

BATCH = 256


def use_cached_features(
    views: BatchMaker, method: Method, data: Samples, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Let a run look up the features of its frozen towers instead of computing them at every step.

    They are computed once and stored in the user's cache folder under a digest of the encoder's weights and the data,
    so the runs of a study share them; if the folder is not writable, they stay in memory. An image tower uses them only
    with the augmentation `plain`, because other views are random.

    Args:
        views: The object that makes the batches; it looks features up from now on.
        method: The method; its frozen towers skip their encoders from now on.
        data: The training split.
        config: The configuration of the run.
        say: Shows the user a line when features must be computed.
    """
    for name, plan in method.network.plans.items():
        recipes = {config["augmentation"]["name"], config["augmentation"].get("second") or "plain"}
        random = plan.modality == "image" and recipes != {"plain"}
        shared = not plan.input or len(method.network.seeing(plan.input)) > 1
        if not method.network[name].frozen or method.mixes or random or shared:
            continue
        texts = data.corpus(plan.input) if plan.modality == "text" else None
        if texts is None:
            count, seen = len(data), inputs_key(method, data, plan.input, data.image_size)
        else:  # the key depends on the texts only, so other data with these texts shares the features
            count, seen = len(texts), texts_key(texts)
        known = cached_features(
            method.network[name].encoder,
            seen,
            partial(_embed, method, data, views, name, texts),
            partial(say, f"embedding {count:,} inputs of the frozen tower {name} once"),
        )
        places = None if texts is None else {text: place for place, text in enumerate(texts)}
        views.locked[plan.input] = FrozenFeatures(known, places)
        for tower in method.copies(name):
            tower.cached = True


def inputs_key(method: Method, data: Samples, input_name: str, size: int) -> str:
    """Return a key of one input of a dataset, as a method's towers get it at this size."""
    return repr((data.fingerprint, input_name, size, sorted(method.pixels.items())))


def texts_key(texts: Sequence[str]) -> str:
    """Return a key of these texts."""
    return "\0".join(texts)


def cached_features(
    encoder: nn.Module, what: str, compute: Callable[[], Tensor], before: Callable[[], None] | None = None
) -> Tensor:
    """Read features of a frozen encoder from the user's cache folder, or compute and store them.

    If the folder is not writable, they stay in memory.

    Args:
        encoder: The encoder; a digest of its weights is part of the file's name.
        what: A key of the inputs and how they are embedded.
        compute: Computes the features (n, F).
        before: Called before they are computed.
    """
    file = cache_root(None) / "features" / f"{digest(encoder, what)}.npy"
    if not file.is_file():
        if before is not None:
            before()
        features = compute()
        try:
            private_folder(file.parent)
            with replacing(file) as temporary, open(temporary, "wb", opener=private_file) as stream:
                np.save(stream, features.numpy())
        except OSError:
            return features
    return torch.from_numpy(np.load(file, mmap_mode="c"))


def digest(module: nn.Module, *also: str) -> str:
    """Return a short hex digest of a module's layers, weights and tables, and of further texts.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = digest(layer)
        >>> layer.bias.data[1] += 1
        >>> before == digest(layer)
        False
    """
    found = hashlib.blake2b(repr(module).encode(), digest_size=8)  # the layers, because some modules have no weights
    for text in (fingerprint(module), *also):
        found.update(text.encode())
    return found.hexdigest()


@torch.no_grad()
def _embed(method: Method, data: Samples, views: BatchMaker, name: str, texts: list[str] | None) -> Tensor:
    plan, encoder = method.network.plans[name], method.network[name].encoder
    if texts is None:
        return embed_distinct(
            encoder,
            data,
            preprocess=views.plain[plan.input],
            input_name=plan.input,
            device=views.device,
            batch_size=BATCH,
        )
    return embed_texts(encoder, texts, views.device)
