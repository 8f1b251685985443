"""What a kernel returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Sums(NamedTuple):
    """The sums over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        log_sum: the log of the sum of exp(s / temperature) over kept pairs; -inf with zero gradient if there are none.
        kept: the number of kept pairs, int64.
        pulled_sum: the sum of the similarities (not divided by the temperature) of pulled pairs.
        pulled: the number of pulled pairs, int64; the sum of their weights where listed pairs have some.
    """

    log_sum: Tensor
    kept: Tensor
    pulled_sum: Tensor
    pulled: Tensor
