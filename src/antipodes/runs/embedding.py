"""Features of a whole dataset under a frozen encoder."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from antipodes.data.dataset import Raw, Samples, subset
from antipodes.data.loader import batches

TEXTS_AT_ONCE = 256


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
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            places = order[start : start + TEXTS_AT_ONCE]
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
