"""`Calendar`: the epoch that a step belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calendar:
    """Epochs of equal length, counted from a given step; data that has grown since a checkpoint makes longer epochs.

    Args:
        steps: Optimiser steps in an epoch.
        first_step: Steps before the first of these epochs.
        first_epoch: Epochs before the first of these epochs.

    Example:
        >>> calendar = Calendar(steps=10, first_step=14, first_epoch=2)
        >>> calendar.epoch(34), calendar.within(37), calendar.total(5)
        (4, 3, 44)
    """

    steps: int
    first_step: int = 0
    first_epoch: int = 0

    def epoch(self, done: int) -> int:
        """Return how many epochs are complete after `done` steps."""
        return self.first_epoch + (done - self.first_step) // self.steps

    def within(self, done: int) -> int:
        """Return how many steps of the current epoch are done after `done` steps."""
        return (done - self.first_step) % self.steps

    def total(self, epochs: int) -> int:
        """Return how many steps training takes until `epochs` epochs are complete."""
        return self.first_step + (epochs - self.first_epoch) * self.steps
