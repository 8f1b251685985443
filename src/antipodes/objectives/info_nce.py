"""`InfoNCE`: the softmax loss of SimCLR and MoCo, on the negatives that a policy keeps."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from antipodes.functional.sums import Sums
from antipodes.objectives.objective import Objective
from antipodes.pairs import Pairs


class InfoNCE(Objective):
    """NT-Xent on a batch, MoCo's loss on a queue, SupCon with the oracle's attraction.

    For an anchor with positive s+ and kept candidates k (Eq. 1 of IFND with W in {0, 1}):

        loss_i = -s+/tau + log( e^{s+/tau} + sum_k e^{s_k/tau} )

    With `treatment="attract"` false negatives stay in the sum, and the pull goes evenly to the positive and to them;
    with `"refine"` each gets what the positive's similarity to it is worth.

    Example:
        >>> import torch
        >>> loss_fn = InfoNCE(temperature=0.1)
        >>> float(loss_fn(torch.eye(4), torch.eye(4), torch.arange(4))) < 0.01
        True
    """

    def value(self, pairs: Pairs, sums: Sums, progress: float) -> Tensor:
        """The loss per rule and anchor, (R, A)."""
        positive = pairs.positives / self.temperature
        # log(e^p + S) - p, never as a difference of two large numbers
        loss = F.softplus(sums.log_sum - positive)
        if self.treatment != "eliminate":
            loss = loss + positive - self.target(pairs, sums) / self.temperature
        return loss
