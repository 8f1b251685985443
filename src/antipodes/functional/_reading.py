"""Reading numbers from tensors: on a GPU each reading makes the program wait, so they are read together, and seldom."""

from __future__ import annotations

import torch
from torch import Tensor


def on_host(tensor: Tensor) -> bool:
    """Whether looking at the numbers of a tensor makes nobody wait."""
    return tensor.device.type == "cpu"


def read(*numbers: Tensor) -> list[float]:
    """Return the numbers of tensors that hold one each, in one go."""
    if len(numbers) < 2 or on_host(numbers[0]):
        return [number.item() for number in numbers]
    every: list[float] = torch.stack([number.detach().double() for number in numbers]).tolist()
    return every


def spans(*tensors: Tensor) -> list[tuple[float, float]]:
    """Return the smallest and the largest number of each tensor, in one go; NaN if a tensor holds one."""
    if on_host(tensors[0]):  # where arrays of a few numbers are quicker
        arrays = [tensor.numpy() for tensor in tensors]
        return [(array.min(), array.max()) for array in arrays]
    numbers = read(*(end for tensor in tensors for end in torch.aminmax(tensor)))
    return list(zip(numbers[::2], numbers[1::2], strict=True))
