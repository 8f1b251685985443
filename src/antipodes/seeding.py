"""Random generators that are determined by a purpose and numbers, so that no generator state has to be saved."""

from __future__ import annotations

import hashlib

import torch


def check_seed(seed: int) -> None:
    """Refuse a seed that torch's generators cannot use.

    Raises:
        ValueError: if it is negative, or at least 2**63.
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be at least 0 and below 2**63, got {seed}")


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """Return a CPU generator that depends only on the purpose and the numbers, such as (seed, step).

    Example:
        >>> torch.rand(1, generator=generator("order", 0, 3)) == torch.rand(1, generator=generator("order", 0, 3))
        tensor([True])
    """
    digest = hashlib.blake2b(repr((purpose, *numbers)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
