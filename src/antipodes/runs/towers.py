"""The towers of a method, and the features of a dataset under one of them or of both.

This is the one place outside of methods that knows where a method keeps its encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples
from antipodes.methods import Method
from antipodes.methods.towers import JoinedEncoders
from antipodes.runs.embedding import embed, embed_different, embed_texts, in_evaluation
from antipodes.runs.locked import described_inputs, described_texts, kept_features
from antipodes.runs.views import plain_view

Space = Literal["features", "embeddings"]
"""What comes out of an encoder, or out of its projection head, where the loss compares."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PairedFeatures:
    """Features of images (n, D) and of texts (m, D) in one space, and the image (m,) that every text belongs to."""

    images: Tensor
    texts: Tensor
    owners: Tensor


def first_input(method: Method) -> str:
    """The name of the input that a method is evaluated on unless told otherwise."""
    return method.network.plans[method.network.names()[0]].input


def text_tower(method: Method) -> str | None:
    """The name of the tower that reads texts, if there is one."""
    names = [name for name, plan in method.network.plans.items() if plan.modality == "text"]
    return names[0] if names else None


def tower_network(method: Method, tower: str | None = None, space: Space = "features") -> nn.Module:
    """The module of a tower, or of all towers that see an input: the encoder, or with its head on top.

    Args:
        method: Whose tower it is.
        tower: Its name, or that of an input; the first input by default.
        space: The encoder's features or the embeddings of its head.

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
    """What a tower makes of every row of a dataset, (n, F) float32 on the CPU.

    Args:
        method: Whose tower it is.
        data: What is embedded.
        tower: Its name, or that of an input; the first input by default.
        space: The encoder's features or the embeddings of its head.
        size: Side of the images as the tower sees them; that of the data by default.
        view: The raw input to what the tower takes; by default resized and normalised images, nothing random.
        device: Where to run.
        workers: Processes that decode images.
        progress: Called with (rows done, rows in all).

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
        return (embed_different if view is None else embed)(
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
    seen = described_inputs(method, data, input_name, size or data.image_size)
    features = kept_features(encoder, seen, lambda: embedded(encoder))
    return features if space == "features" else _run(method.network[name].head.to(device), features.to(device))


def text_features(
    method: Method, tower: str, texts: Sequence[str], space: Space = "embeddings", device: torch.device | str = "cpu"
) -> Tensor:
    """What a tower makes of texts, (n, F) float32 on the CPU.

    Args:
        method: Whose tower it is.
        tower: The name of one that reads texts.
        texts: What is embedded.
        space: The encoder's features or the embeddings of its head.
        device: Where to run.
    """
    network = tower_network(method, tower, space).to(device)
    if not method.network[tower].frozen:
        return embed_texts(network, texts, device)
    encoder = method.network[tower].encoder.to(device)
    features = kept_features(encoder, described_texts(texts), lambda: embed_texts(encoder, texts, device))
    return features if space == "features" else _run(method.network[tower].head.to(device), features.to(device))


def paired_features(
    method: Method, data: Samples, embed_tower: Callable[[str, Space], Tensor], device: torch.device | str = "cpu"
) -> PairedFeatures:
    """Embeddings of the images of a dataset and of all their texts under a method with a tower for each.

    Args:
        method: The method.
        data: Images with texts; an image may be several rows.
        embed_tower: What the tower of that name makes of every row of the data.
        device: Where to run.
    """
    tower = text_tower(method)
    assert tower is not None
    images = embed_tower("image", "embeddings")
    _, first, owners = _firsts(data.image_ids(torch.arange(len(data))))
    captions = [data.captions(int(row)) for row in first]  # all of them, whatever a row shows
    if not all(captions):
        return PairedFeatures(images[first], embed_tower(tower, "embeddings"), owners)
    counts = torch.tensor([len(some) for some in captions])
    texts = text_features(method, tower, [text for some in captions for text in some], device=device)
    return PairedFeatures(images[first], texts, torch.arange(len(first)).repeat_interleave(counts))


def _firsts(samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The different samples, the first row of each, and the place of every row's sample among them."""
    different, places = samples.unique(return_inverse=True)
    first = torch.full((len(different),), len(samples)).scatter_reduce_(
        0, places, torch.arange(len(samples)), reduce="amin"
    )
    return different, first, places


def _run(network: nn.Module, inputs: Tensor) -> Tensor:
    with in_evaluation(network), torch.no_grad():
        outputs: Tensor = network(inputs)
    return outputs.float().cpu()
