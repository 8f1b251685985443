"""Reading numbers from tensors: on a GPU each reading makes the program wait, so they are read together, and seldom."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Return True if reading values from the tensor needs no device synchronisation."""
    return tensor.device.type == "cpu"


def read(*numbers: Tensor) -> list[float]:
    """Return the numbers of tensors that hold one each, in one go."""
    if len(numbers) < 2 or on_host(numbers[0]):
        return [number.item() for number in numbers]
    every: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist()
    return every


def has_zero(numbers: Tensor) -> bool:
    """Whether one of the numbers is 0."""
    return not bool(numbers.numpy().all() if on_host(numbers) else numbers.all())


class Span(NamedTuple):
    """The smallest and the largest number of a tensor, NaN if it holds one, and whether they are known to differ."""

    lowest: float
    highest: float
    distinct: bool = False


def spans(*tensors: Tensor) -> list[Span]:
    """Return the smallest and the largest number of each tensor, in one go."""
    numbers = read(*(end for tensor in tensors for end in torch.aminmax(tensor)))
    return [Span(lowest, highest) for lowest, highest in zip(numbers[::2], numbers[1::2], strict=True)]


def span_on_host(ids: Tensor) -> Span:
    """Return the smallest and the largest of whole numbers (B,) on the host, and whether no number comes twice."""
    numbers = ids.numpy().tolist()  # of a batch: arrays take longer to look at
    return Span(min(numbers), max(numbers), len(set(numbers)) == len(numbers))
