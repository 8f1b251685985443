"""Features of a frozen encoder whose inputs are not random: embedded once, kept on disk, then looked up."""

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
from antipodes.runs.embedding import embed_different, embed_texts
from antipodes.runs.fingerprint import fingerprint
from antipodes.runs.views import LockedFeatures, Views

BATCH = 256


def lookup_locked(
    views: Views, method: Method, data: Samples, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Let a run read the features of its frozen towers instead of computing them at every step.

    They are embedded once and kept in the user's cache folder, by the encoder's weights and the data, so that the runs
    of a study share them; where that cannot be written to, in memory. A frozen image tower is only looked up where its
    views are not random, with the augmentation `plain`.

    Args:
        views: What makes the batches; it looks features up from now on.
        method: Its towers skip their encoders from now on.
        data: The training split.
        config: Of the run.
        say: Told what is being done.
    """
    for name, plan in method.network.plans.items():
        recipes = {config["augmentation"]["name"], config["augmentation"].get("second") or "plain"}
        random = plan.modality == "image" and recipes != {"plain"}
        shared = not plan.input or len(method.network.seeing(plan.input)) > 1
        if not method.network[name].frozen or method.mixes or random or shared:
            continue
        texts = data.corpus(plan.input) if plan.modality == "text" else None
        if texts is None:
            count, seen = len(data), described_inputs(method, data, plan.input, data.image_size)
        else:  # the same for all data that shows these texts
            count, seen = len(texts), described_texts(texts)
        known = kept_features(
            method.network[name].encoder,
            seen,
            partial(_embed, method, data, views, name, texts),
            partial(say, f"embedding {count:,} inputs of the frozen tower {name} once"),
        )
        places = None if texts is None else {text: place for place, text in enumerate(texts)}
        views.locked[plan.input] = LockedFeatures(known, places)
        for tower in method.copies(name):
            tower.cached = True


def described_inputs(method: Method, data: Samples, input_name: str, size: int) -> str:
    """Words that tell an input of a dataset, as a method's towers see it at this size, from everything else."""
    return repr((data.fingerprint, input_name, size, sorted(method.pixels.items())))


def described_texts(texts: Sequence[str]) -> str:
    """Words that tell these texts from everything else."""
    return "\0".join(texts)


def kept_features(
    encoder: nn.Module, what: str, compute: Callable[[], Tensor], before: Callable[[], None] | None = None
) -> Tensor:
    """Features of a frozen encoder from the user's cache folder, computed where they are not there yet.

    Where the folder cannot be written to they stay in memory.

    Args:
        encoder: Whose weights they belong to.
        what: Words that tell what was embedded, and how, from everything else.
        compute: Makes them, (n, F).
        before: Called when they have to be made.
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
    """Short hex digest of a module's layers, weights and tables, and of what else is given.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = digest(layer)
        >>> layer.bias.data[1] += 1
        >>> before == digest(layer)
        False
    """
    found = hashlib.blake2b(repr(module).encode(), digest_size=8)  # what it is made of: some have no weights
    for text in (fingerprint(module), *also):
        found.update(text.encode())
    return found.hexdigest()


@torch.no_grad()
def _embed(method: Method, data: Samples, views: Views, name: str, texts: list[str] | None) -> Tensor:
    plan, encoder = method.network.plans[name], method.network[name].encoder
    if texts is None:
        return embed_different(
            encoder,
            data,
            preprocess=views.plain[plan.input],
            input_name=plan.input,
            device=views.device,
            batch_size=BATCH,
        )
    return embed_texts(encoder, texts, views.device)
