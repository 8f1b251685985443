"""Features of a dataset under a frozen encoder: computed batch by batch, or once for all and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples, subset
from antipodes.data.download import cache_root
from antipodes.data.loader import batches
from antipodes.files import private_file, private_folder, replacing
from antipodes.methods import Method
from antipodes.runs.folder import fingerprint
from antipodes.runs.views import BatchMaker, FrozenFeatures

BATCH = 256


def embed_dataset(
    encoder: nn.Module,
    dataset: Samples,
    *,
    preprocess: Callable[[Raw], Tensor],
    input_name: str | None = None,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Embed one input of every row of a dataset: (n, F), row i for id i, float32 on the CPU.

    The encoder runs in evaluation mode; afterwards each module is back in its previous mode.

    Args:
        encoder: a module on `device` that maps the output of `preprocess` to features (b, F).
        dataset: the samples.
        preprocess: maps the raw input (uint8 images (b, 3, H, W) on `device`, texts, vectors) to the encoder's input.
        input_name: the name of the input; by default the first.
        batch_size: rows in a batch.
        device: the device to run on.
        workers: processes that decode images, for datasets that are not in memory.
        progress: called with (rows done, all rows) after every batch.

    Raises:
        ValueError: if the dataset is empty, or the encoder's output is not (b, F).
    """
    if len(dataset) == 0:
        raise ValueError("the dataset is empty: there is nothing to embed")
    name = input_name or next(iter(dataset.modalities))
    features: Tensor | None = None
    done = 0
    with evaluation_mode(encoder):
        for rows, raw in batches(dataset, batch_size, workers):
            given = raw[name]
            with torch.inference_mode():
                inputs = preprocess(given.to(device) if isinstance(given, Tensor) else given).to(device)
                if inputs.ndim == 4:
                    inputs = inputs.contiguous(memory_format=torch.channels_last)
                outputs = encoder(inputs)
            if outputs.ndim != 2 or len(outputs) != len(rows):
                raise ValueError(
                    f"the encoder must turn inputs {tuple(inputs.shape)} into features ({len(rows)}, F), "
                    f"got {tuple(outputs.shape)}: pool and flatten its output"
                )
            if features is None:  # created outside inference mode, so that autograd can use it later
                features = torch.empty(len(dataset), outputs.shape[1])
            features[rows] = outputs.float().cpu()
            done += len(rows)
            if progress is not None:
                progress(done, len(dataset))
    assert features is not None
    return features


def embed_distinct(encoder: nn.Module, dataset: Samples, *, input_name: str, **options: Any) -> Tensor:
    """Embed as `embed_dataset` does, but each different input only once; `preprocess` must not be random.

    Args:
        encoder: as in `embed_dataset`.
        dataset: the samples; five captions of an image may be five rows of it.
        input_name: the name of the input.
        **options: further arguments of `embed_dataset`.
    """
    if (repeated := dataset.repeated(input_name)) is None:
        return embed_dataset(encoder, dataset, input_name=input_name, **options)
    first, shown = repeated
    return embed_dataset(encoder, subset(dataset, first), input_name=input_name, **options)[shown]


@torch.no_grad()
def embed_texts(network: nn.Module, texts: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
    """Embed texts with a tower whose encoder has `tokenize`: (n, F) float32 on the CPU.

    Texts of similar length share a batch, which is padded to its longest text.
    """
    tokenizers = [module for module in network.modules() if hasattr(module, "tokenize")]
    tokenize = cast(Callable[[list[str]], Tensor], tokenizers[0].tokenize)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    features: Tensor | None = None
    with evaluation_mode(network):
        for start in range(0, len(texts), BATCH):
            places = order[start : start + BATCH]
            outputs = network(tokenize([texts[place] for place in places]).to(device)).float().cpu()
            if features is None:
                features = torch.empty(len(texts), outputs.shape[1])
            features[places] = outputs
    assert features is not None
    return features


@contextmanager
def evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode inside the block, and restore the mode of each module afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
        texts = None
        if plan.modality == "text":
            texts = list(dict.fromkeys(text for each in plan.inputs for text in data.corpus(each)))
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
        for each in plan.inputs:
            views.locked[each] = FrozenFeatures(known, places)
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
