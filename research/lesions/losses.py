"""Details in which the authors' code of losses differs from their papers."""

from __future__ import annotations

import math
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from antipodes import GlobalContrastive, InfoNCE
from antipodes.functional.contrast import Sums
from antipodes.losses.step import Step
from antipodes.pairs import Pairs


class RescaledInfoNCE(InfoNCE):
    """InfoNCE whose sum over the kept candidates is multiplied by N / kept, N how many there were.

    So does the code of GloFND's authors: elimination then does not make the loss smaller by itself.
    """

    def goes_direct(self, temperature: float | Tensor | None = None) -> bool:
        """Never: the short way for small batches has the plain sum."""
        return False

    def _negatives(self, step: Step, sums: Sums) -> tuple[Tensor, Tensor]:
        log_sum, available = sums.log_sum, step.pairs.available()
        log_sum = log_sum + (available.to(log_sum.dtype) / sums.kept.clamp(min=1)).log()
        return log_sum, torch.where(sums.kept > 0, available, 0)


class PerViewGlobalContrastive(GlobalContrastive):
    """`GlobalContrastive` with a running mean for each of the two views of a batch, as in the code of SogCLR's authors.

    Anchors of one view alone, as with `candidates` and in `TwoWay`, have the first view's.
    """

    def _entries(self, num_samples: int) -> int:
        return 2 * num_samples

    def _places(self, pairs: Pairs) -> Tensor:
        rows = super()._places(pairs)
        second = torch.arange(len(rows), device=rows.device) >= len(rows) / pairs.views
        return 2 * rows + second


class RestartingGlobalContrastive(GlobalContrastive):
    """`GlobalContrastive` that forgets every u when the policy starts to flag.

    What it has summed until then has the false negatives in it, which are the largest; g / u, and with it the push, is
    too small until that has faded.
    """

    restarted: Tensor

    @wraps(GlobalContrastive.__init__)  # type: ignore[misc]  # the same arguments
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_buffer("restarted", torch.zeros((), dtype=torch.bool))

    def _before_update(self, step: Step) -> None:
        if step.learn and not bool(self.restarted) and self._has_started(step.progress):
            self.log_u.rows.fill_(-math.inf)
            self.restarted.fill_(True)

    def _has_started(self, progress: float) -> bool:
        """Return True if a policy that waits for its start has begun."""
        return any(0 < getattr(policy, "start", 0.0) <= progress for policy in self.policies())
