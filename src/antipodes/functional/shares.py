"""How many a share of some candidates are: one place for the rounding, so that all who ask agree.

A product such as 0.46 * 100 may come out as 45.99999999999999, and as the share itself comes from a schedule it may
have been rounded before. What misses a whole number by no more than `SLACK` is taken for it.
"""

from torch import Tensor

SLACK = 1e-6


def whole_below(share: float | Tensor, count: Tensor) -> Tensor:
    """So many of `count` (A,) are a share, rounded down, int64.

    Example:
        >>> import torch
        >>> whole_below(0.9 - 0.44, torch.tensor([100, 10]))  # the difference is 0.45999999999999996
        tensor([46,  4])
    """
    return (share * count.double() + SLACK).floor().long()


def whole_above(share: float | Tensor, count: Tensor) -> Tensor:
    """So many of `count` (A,) are a share, rounded up, int64.

    Example:
        >>> import torch
        >>> whole_above(0.07, torch.tensor([100, 10]))  # 0.07 * 100 is 7.000000000000001
        tensor([7, 1])
    """
    return (share * count.double() - SLACK).ceil().long()
