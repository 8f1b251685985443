"""Random generators that follow from a purpose and a few numbers, so that nothing has to remember their state."""

from __future__ import annotations

import hashlib

import torch


def check_seed(seed: int) -> None:
    """Refuse a seed that generators cannot take.

    Raises:
        ValueError: if it is negative, or 2**63 or more.
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be at least 0 and below 2**63, got {seed}")


def generator(purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator that depends on the purpose and all the numbers, such as (seed, step), and on nothing else.

    Example:
        >>> torch.rand(1, generator=generator("order", 0, 3)) == torch.rand(1, generator=generator("order", 0, 3))
        tensor([True])
    """
    digest = hashlib.blake2b(repr((purpose, *numbers)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
