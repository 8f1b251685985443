"""The mean and standard deviation of a dataset's colours, by which its views may be normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from antipodes.data.problems import DataError

if TYPE_CHECKING:
    from antipodes.data.dataset import Samples

_CHUNK = 256
_SAMPLED = 10_000  # images, evenly spread, of a dataset that would have to decode them


class Statistics(NamedTuple):
    """Mean and standard deviation of red, green and blue in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def statistics(dataset: Samples) -> Statistics:
    """Return the statistics of all pixels of all images (of 10,000 images where they have to be decoded).

    A channel that never changes gets a standard deviation of 1, as nothing else could divide it.

    Raises:
        DataError: if the dataset has no images.

    Example:
        >>> from antipodes.data import TensorImages
        >>> data = TensorImages(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4))
        >>> statistics(data).mean
        (0.5, 0.5, 0.5)
    """
    name = next((name for name, modality in dataset.modalities.items() if modality == "image"), None)
    if name is None or not len(dataset):
        raise DataError(f"dataset {dataset.name} has no images whose colours could be measured")
    count = len(dataset) if dataset.in_memory else min(len(dataset), _SAMPLED)
    pixels, total, squares = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for rows in (torch.arange(count) * len(dataset) // count).split(_CHUNK):
        images = dataset.inputs(rows)[name]
        assert isinstance(images, torch.Tensor)
        # Sums of bytes and of their squares are exact: a histogram would be no faster.
        values = images.transpose(0, 1).reshape(3, -1).to(torch.int64)
        pixels += values.shape[1]
        total += values.sum(1)
        squares += values.square().sum(1)
    mean = total / pixels
    std = (squares / pixels - mean.square()).clamp_min(0).sqrt()
    std = torch.where(std > 0, std, 255.0)
    red, green, blue = (mean / 255).tolist()
    return Statistics((red, green, blue), tuple((std / 255).tolist()))
