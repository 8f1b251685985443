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

    def vectors(self) -> Tensor:
        """The vectors (n, G) of the whole dataset, for policies that are fitted in the guide's space.

        Raises:
            ValueError: if the source has none: it then serves the pairs of a batch alone.
        """
        raise ValueError(
            f"{type(self).__name__} has no vectors of the whole dataset: give it a method vectors() that returns them, "
            "(n, G), or use a policy that looks at pairs, such as Guided"
        )

    @property
    def has_table(self) -> bool:
        """Whether it has vectors of the whole dataset."""
        return type(self).vectors is not GuideSource.vectors
