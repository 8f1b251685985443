"""A short digest that identifies a module's weights."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def fingerprint(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return a short hex digest of the weights and tables of a module, or of a state dict.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = fingerprint(layer)
        >>> layer.bias.data[1] += 1
        >>> before == fingerprint(layer)
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    for name, tensor in state.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
