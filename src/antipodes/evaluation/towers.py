"""The towers of a method, and the features of a dataset under one of them.

This is the one place in evaluation that knows where a method keeps its encoders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from antipodes.data import ImageDataset, Samples
from antipodes.methods import Method
from antipodes.runs.build import plain_view
from antipodes.runs.embedding import embed

Space = Literal["features", "embeddings"]
"""What comes out of an encoder, or out of its projection head, where the loss compares."""
Progress = Callable[[int, int], None]
TEXTS_AT_ONCE = 256


def tower_names(method: Method) -> tuple[str, ...]:
    """The names of a method's towers; a method that names none has one, for images."""
    named = getattr(method, "towers", None)
    return tuple(named) if isinstance(named, (dict, nn.ModuleDict)) else ("image",)


def text_tower(method: Method) -> str | None:
    """The name of the tower that reads texts, if there is one."""
    names = [name for name in tower_names(method) if _modality(method, name) == "text"]
    return names[0] if names else None


def tower_network(method: Method, tower: str, space: Space = "features") -> nn.Module:
    """The module of a tower: its encoder, or with its head on top.

    Raises:
        ValueError: if the method has no such tower.
    """
    if tower not in tower_names(method):
        raise ValueError(f"the method has no tower {tower!r}: there are {', '.join(tower_names(method))}")
    named = getattr(method, "towers", None)
    if isinstance(named, (dict, nn.ModuleDict)):
        whole: nn.Module = named[tower]
        return whole if space == "embeddings" else whole.encoder  # type: ignore[return-value]
    return method.backbone() if space == "features" else method.network


def tower_features(
    method: Method,
    data: Samples,
    tower: str = "image",
    *,
    space: Space = "features",
    size: int | None = None,
    view: Callable[[Tensor], Tensor] | None = None,
    device: torch.device | str = "cpu",
    workers: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """What a tower makes of every row of a dataset, (n, F) float32 on the CPU.

    Args:
        method: Whose tower it is.
        data: What is embedded.
        tower: Its name; `image` where a method has only one.
        space: The encoder's features or the embeddings of its head.
        size: Side of the images as the tower sees them; that of the data by default.
        view: uint8 images (b, 3, H, W) to what the tower takes; by default resized and normalised, nothing random.
        device: Where to run.
        workers: Processes that decode images.
        progress: Called with (rows done, rows in all).
    """
    network = tower_network(method, tower, space).to(device)
    if _modality(method, tower) == "image":
        if not isinstance(data, ImageDataset):
            raise ValueError(f"dataset {data.name} has no images for tower {tower!r}")
        preprocess = view or plain_view(method, size or data.image_size)
        return embed(network, data, preprocess=preprocess, device=device, workers=workers, progress=progress)
    parts = []
    for rows in torch.arange(len(data)).split(TEXTS_AT_ONCE):
        raw = data.inputs(rows)[tower]
        parts.append(embed_texts(network, raw, device) if isinstance(raw, list) else _run(network, raw.to(device)))
        if progress is not None:
            progress(int(rows[-1]) + 1, len(data))
    return torch.cat(parts)


def embed_texts(network: nn.Module, texts: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
    """Features (n, F) float32 of texts under a tower whose encoder has `tokenize`."""
    encoder = getattr(network, "encoder", network)
    tokenize = cast(Callable[[list[str]], Tensor], encoder.tokenize)
    chunks = [list(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
    return torch.cat([_run(network, tokenize(chunk).to(device)) for chunk in chunks])


def _run(network: nn.Module, inputs: Tensor) -> Tensor:
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            outputs: Tensor = network(inputs)
    finally:
        for module, training in modes:
            module.training = training
    return outputs.float().cpu()


def _modality(method: Method, tower: str) -> str:
    return str(getattr(tower_network(method, tower), "modality", "image"))
