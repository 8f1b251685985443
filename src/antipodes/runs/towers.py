"""The towers of a method, and the features of a dataset under one or both of them.

Outside methods, only this module knows where a method keeps its encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples
from antipodes.data.judgements import judgements
from antipodes.methods import Method
from antipodes.methods.towers import JoinedEncoders
from antipodes.runs.embedding import (
    cached_features,
    embed_dataset,
    embed_distinct,
    embed_texts,
    evaluation_mode,
    inputs_key,
    texts_key,
)
from antipodes.runs.views import plain_view

Space = Literal["features", "embeddings"]
"""The output of an encoder (features), or of its projection head (embeddings), which the loss compares."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PairedFeatures:
    """Embeddings of images (n, D) and texts (m, D) in one space, and the image's row for each text, (m,)."""

    images: Tensor
    texts: Tensor
    owners: Tensor


@dataclass(frozen=True)
class TextPairs:
    """Queries (n, D) and documents (m, D) in one space, the positive pairs (p, 2), and their gains (p,)."""

    queries: Tensor
    documents: Tensor
    relevant: Tensor
    gains: Tensor


def first_input(method: Method) -> str:
    """Return the name of the input on which a method is evaluated by default."""
    return method.network.plans[method.network.names()[0]].input


def text_tower(method: Method) -> str | None:
    """Return the name of the tower for texts, or None."""
    names = [name for name, plan in method.network.plans.items() if plan.modality == "text"]
    return names[0] if names else None


def paired_towers(method: Method) -> tuple[str, str] | None:
    """The names of the first tower and of another one that reads texts from another input, if there are two such."""
    plans = method.network.plans
    first = method.network.names()[0]
    others = [name for name, plan in plans.items() if plan.modality == "text" and plan.input != plans[first].input]
    return (first, others[0]) if others and plans[first].modality in ("image", "text") else None


def tower_network(method: Method, tower: str | None = None, space: Space = "features") -> nn.Module:
    """Return the module of a tower, or of all towers with the same input: the encoder, with or without its head.

    Args:
        method: The method with the towers.
        tower: The name of the tower, or of an input; the first input by default.
        space: The encoder's features or the head's embeddings.

    Raises:
        ValueError: if the method has no such tower.
    """
    network, name = method.network, tower or first_input(method)
    towers = [name] if name in network.names() else network.seeing(name)
    if not towers:
        raise ValueError(f"the method has no tower {name!r}: there are {', '.join(network.names())}")
    parts = [method.evaluated(each, head=space == "embeddings") for each in towers]
    return parts[0] if len(parts) == 1 else JoinedEncoders(parts)


def tower_features(
    method: Method,
    data: Samples,
    tower: str | None = None,
    *,
    space: Space = "features",
    size: int | None = None,
    view: Callable[[Raw], Tensor] | None = None,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Embed every row of a dataset with a tower: (n, F) float32 on the CPU.

    Args:
        method: The method with the tower.
        data: The samples.
        tower: The name of the tower, or of an input; the first input by default.
        space: The encoder's features or the head's embeddings.
        size: Side to which images are scaled; that of the data by default.
        view: Maps the raw input to the tower's input; by default images are resized and normalised.
        device: The device to run on.
        workers: Processes that decode images.
        progress: Called with (rows done, all rows).

    Raises:
        ValueError: if the method has no such tower, or the data no such input.
    """
    network = tower_network(method, tower, space).to(device)
    name = tower or first_input(method)
    input_name = method.network.plans[name].input if name in method.network.plans else name
    if input_name not in data.modalities:
        raise ValueError(f"dataset {data.name} has no input {input_name!r} for the method's tower {name!r}")
    preprocess = view or plain_view(method, size or data.image_size, input_name)

    def embedded(module: nn.Module) -> Tensor:
        return (embed_distinct if view is None else embed_dataset)(
            module,
            data,
            preprocess=preprocess,
            input_name=input_name,
            device=device,
            workers=workers,
            progress=progress,
        )

    if view is not None or name not in method.network.names() or not method.network[name].frozen:
        return embedded(network)
    encoder = method.evaluated(name).to(device)
    seen = inputs_key(method, data, input_name, size or data.image_size)
    features = cached_features(encoder, seen, lambda: embedded(encoder))
    return features if space == "features" else _run(method.network[name].head.to(device), features.to(device))


def text_features(
    method: Method, tower: str, texts: Sequence[str], space: Space = "embeddings", device: torch.device | str = "cpu"
) -> Tensor:
    """Embed texts with a tower: (n, F) float32 on the CPU.

    Args:
        method: The method with the tower.
        tower: The name of a tower for texts.
        texts: The texts.
        space: The encoder's features or the head's embeddings.
        device: The device to run on.
    """
    network = tower_network(method, tower, space).to(device)
    if not method.network[tower].frozen:
        return embed_texts(network, texts, device)
    encoder = method.network[tower].encoder.to(device)
    features = cached_features(encoder, texts_key(texts), lambda: embed_texts(encoder, texts, device))
    return features if space == "features" else _run(method.network[tower].head.to(device), features.to(device))


def paired_features(
    method: Method, data: Samples, embed_tower: Callable[[str, Space], Tensor], device: torch.device | str = "cpu"
) -> PairedFeatures:
    """Embed the images of a dataset and all their texts with a method that has a tower for each.

    Args:
        method: The method.
        data: Images with texts; an image may be several rows.
        embed_tower: Embeds every row of the data with the tower of that name.
        device: The device to run on.
    """
    tower = text_tower(method)
    assert tower is not None
    images = embed_tower("image", "embeddings")
    _, first, owners = _firsts(data.image_ids(torch.arange(len(data))))
    captions = [data.captions(int(row)) for row in first]  # all captions of the image, not only the row's
    if not all(captions):
        return PairedFeatures(images[first], embed_tower(tower, "embeddings"), owners)
    counts = torch.tensor([len(some) for some in captions])
    texts = text_features(method, tower, [text for some in captions for text in some], device=device)
    return PairedFeatures(images[first], texts, torch.arange(len(first)).repeat_interleave(counts))


def text_pairs(method: Method, data: Samples, device: torch.device | str = "cpu") -> TextPairs:
    """Embed the different queries and documents of a dataset, under a method with a tower for each.

    Args:
        method: The method.
        data: Rows of two texts; `judgements` lists the positive pairs.
        device: Where to run.
    """
    towers = paired_towers(method)
    assert towers is not None
    first, second = (method.network.plans[tower].input for tower in towers)
    judged = judgements(data, (first, second))
    queries, documents = (
        text_features(method, tower, texts, device=device)
        for tower, texts in zip(towers, (judged.queries, judged.documents), strict=True)
    )
    return TextPairs(queries, documents, judged.relevant, judged.gains)


def _firsts(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the different samples, the first row of each, and for every row the place of its sample among them."""
    different, places = samples.unique(return_inverse=True)
    first = torch.full((len(different),), len(samples)).scatter_reduce_(
        0, places, torch.arange(len(samples)), reduce="amin"
    )
    return different, first, places


def _run(network: nn.Module, inputs: Tensor) -> Tensor:
    with evaluation_mode(network), torch.no_grad():
        outputs: Tensor = network(inputs)
    return outputs.float().cpu()
