"""Features of a whole dataset under a frozen encoder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from antipodes.data.dataset import Raw, Samples, subset
from antipodes.data.loader import batches

TEXTS_AT_ONCE = 256


def embed(
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
    """Features (n, F) of one input of every row of the dataset, row i for id i, float32 on the CPU.

    The encoder runs in evaluation mode; afterwards every part of it is back in the mode it came in.

    Args:
        encoder: what `preprocess` returns -> (b, F); must be on `device` already.
        dataset: the samples.
        preprocess: the raw input (uint8 images (b, 3, H, W) on `device`, texts, vectors) -> what the encoder takes.
        input_name: which input; by default the first.
        batch_size: rows at a time.
        device: where to run.
        workers: processes that decode images, for datasets that are not in memory.
        progress: called with (rows done, rows in all) after every batch.

    Raises:
        ValueError: if the dataset is empty, or the encoder's output is not (b, F).
    """
    if len(dataset) == 0:
        raise ValueError("the dataset is empty: there is nothing to embed")
    name = input_name or next(iter(dataset.modalities))
    features: Tensor | None = None
    done = 0
    with in_evaluation(encoder):
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
            if features is None:  # made outside inference mode, so that it may meet autograd later
                features = torch.empty(len(dataset), outputs.shape[1])
            features[rows] = outputs.float().cpu()
            done += len(rows)
            if progress is not None:
                progress(done, len(dataset))
    assert features is not None
    return features


def embed_different(encoder: nn.Module, dataset: Samples, *, input_name: str, **options: Any) -> Tensor:
    """`embed` where `preprocess` is not random: an input that several rows share is embedded once.

    Args:
        encoder: as in `embed`.
        dataset: the samples; five captions of an image may be five rows of it.
        input_name: which input.
        **options: of `embed`.
    """
    if (repeated := dataset.repeated(input_name)) is None:
        return embed(encoder, dataset, input_name=input_name, **options)
    first, shown = repeated
    return embed(encoder, subset(dataset, first), input_name=input_name, **options)[shown]


@torch.no_grad()
def embed_texts(network: nn.Module, texts: Sequence[str], device: torch.device | str = "cpu") -> Tensor:
    """Features (n, F) of texts under a tower whose encoder has `tokenize`, float32 on the CPU.

    Texts of like length share a batch, which is padded to its longest.
    """
    tokenizers = [module for module in network.modules() if hasattr(module, "tokenize")]
    tokenize = cast(Callable[[list[str]], Tensor], tokenizers[0].tokenize)
    order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
    features: Tensor | None = None
    with in_evaluation(network):
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            places = order[start : start + TEXTS_AT_ONCE]
            outputs = network(tokenize([texts[place] for place in places]).to(device)).float().cpu()
            if features is None:
                features = torch.empty(len(texts), outputs.shape[1])
            features[places] = outputs
    assert features is not None
    return features


@contextmanager
def in_evaluation(network: nn.Module) -> Iterator[None]:
    """Every part of a network in evaluation mode, and afterwards back in the mode that it came in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
