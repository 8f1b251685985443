"""`Calendar`: which epoch a step belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calendar:
    """Epochs of equal length, counted from a step on: data that grew in the meantime makes longer ones.

    Args:
        steps: Steps of the optimiser in an epoch.
        first_step: Steps that were done before these epochs.
        first_epoch: Epochs that were done by then.

    Example:
        >>> calendar = Calendar(steps=10, first_step=14, first_epoch=2)
        >>> calendar.epoch(34), calendar.within(37), calendar.total(5)
        (4, 3, 44)
    """

    steps: int
    first_step: int = 0
    first_epoch: int = 0

    def epoch(self, done: int) -> int:
        """How many epochs are complete after so many steps."""
        return self.first_epoch + (done - self.first_step) // self.steps

    def within(self, done: int) -> int:
        """How many steps of the next epoch are done."""
        return (done - self.first_step) % self.steps

    def total(self, epochs: int) -> int:
        """How many steps so many epochs take in all."""
        return self.first_step + (epochs - self.first_epoch) * self.steps
