"""`GuideSource`: the interface of every source of guide vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

Notify = Callable[[str], None]
"""Shows one line of text to the user, such as what takes a while."""


class GuideSource(nn.Module, ABC):
    """Guide vectors of samples, of length 1 and without gradient, for `loss_fn(z1, z2, ids, guide=(g1, g2))`.

    A source looks vectors up by the row of the dataset, `guide(rows)`, or embeds inputs, `guide(rows, images)`. A
    source that learns during training has a method `update`.

    Attributes:
        changes: True if the same sample may get another vector later in training.
    """

    changes: ClassVar[bool] = False

    @abstractmethod
    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """Return the guide vectors (B, G) of a batch of samples.

        Args:
            rows: (B,) rows of the dataset.
            inputs: The samples' inputs, such as images (B, C, H, W), for sources that embed them.
        """

    def open(self, notify: Notify | None = None) -> None:
        """Read or compute what the source needs, so that a mistake is found before training begins.

        Args:
            notify: Shows the user what takes a while.
        """

    def vectors(self) -> Tensor:
        """Return the vectors (n, G) of the whole dataset, for policies that are fitted in the guide's space.

        Raises:
            ValueError: if the source has none: it then guides the pairs of a batch only.
        """
        raise ValueError(
            f"{type(self).__name__} has no vectors of the whole dataset: give it a method vectors() that returns them, "
            "(n, G), or use a policy that compares pairs, such as Guided"
        )

    @property
    def has_table(self) -> bool:
        """Return True if the source has vectors of the whole dataset."""
        return type(self).vectors is not GuideSource.vectors
