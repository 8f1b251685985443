"""The mean and standard deviation of a dataset's colours, by which its views may be normalised."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from antipodes.files import DataError

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
    histograms = torch.zeros(3, 256, dtype=torch.int64)
    for rows in (torch.arange(count) * len(dataset) // count).split(_CHUNK):
        images = dataset.inputs(rows)[name]
        assert isinstance(images, torch.Tensor)
        for channel, histogram in zip(images.transpose(0, 1).flatten(1), histograms, strict=True):
            histogram += torch.bincount(channel, minlength=256)
    shares = histograms.double() / histograms[0].sum()
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
    std = torch.where(std > 0, std, 1.0)
    return Statistics(tuple(mean.tolist()), tuple(std.tolist()))
