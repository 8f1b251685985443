"""`GuideSource`: what every source of guide vectors does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn


class GuideSource(nn.Module, ABC):
    """Vectors of samples for `loss_fn(z1, z2, ids, guide=(g1, g2))`, normalised and without gradient.

    A source goes by rows of the dataset or by inputs: `guide(rows)` or `guide(rows, images)`. Those that learn from
    training are told by `update`.
    """

    needs_inputs: bool = False  # whether it embeds inputs, rather than looking rows up

    @abstractmethod
    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """The vectors (B, G) of these samples.

        Args:
            rows: (B,) rows of the dataset.
            inputs: What an encoder takes, for sources that embed it.
        """
