"""What the rest of the package expects of an encoder, and how the size of its features is measured."""

import copy
from typing import Any

import torch
from torch import nn


class Encoder(nn.Module):
    """A module that maps images (B, C, H, W) to features (B, num_features).

    The class only gives these attributes a type: `antipodes.encoders.create` sets them on any module, which need not
    inherit from it.

    Attributes:
        num_features: the length of a feature vector.
        origin: the name and the arguments given to `create`.
    """

    num_features: int
    origin: tuple[str, dict[str, Any]]


def feature_size(module: nn.Module, image_size: int = 32, in_channels: int = 3) -> int:
    """Measure the length of a module's feature vectors with a batch of two black images.

    A copy of the module runs in evaluation mode, with the random state put back afterwards, so nothing about the module
    or the run changes.

    Raises:
        ValueError: the module fails on such images, or does not return a (B, features) tensor.

    Example:
        >>> feature_size(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)), image_size=8)
        5
    """
    shape = (2, in_channels, image_size, image_size)
    parameter = next(module.parameters(), torch.empty(0))
    on_gpu = [parameter.device] if parameter.is_cuda else []
    with torch.random.fork_rng(devices=on_gpu), torch.no_grad():
        try:
            features = copy.deepcopy(module).eval()(parameter.new_zeros(shape))
        except Exception as error:  # a user's forward may raise anything
            raise ValueError(
                f"{type(module).__name__} failed on a batch of images of shape {shape} ({error}): "
                "give the class a num_features attribute, or a size and channel count that it accepts"
            ) from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        got = (
            f"a tensor of shape {tuple(features.shape)}"
            if isinstance(features, torch.Tensor)
            else type(features).__name__
        )
        raise ValueError(
            f"{type(module).__name__} must map images {shape} to features (2, size), but it returned {got}"
        )
    return features.shape[1]
