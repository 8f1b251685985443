"""`LocalAggregation`: towards the samples of the own cluster, away from the neighbourhood as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.sums import Sums
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.policy import Policy
from antipodes.objectives.objective import Objective
from antipodes.pairs import Pairs, Rule


class LocalAggregation(Objective):
    """Local aggregation (Zhuang et al. 2019) as Eq. 5 of Ring (Wu et al. 2021) has it, with means over two sets.

        loss_i = - log( mean over C_i of e^{s/tau} ) + log( mean over B_i of e^{s/tau} )

    The close set C_i has the candidates of the anchor's cluster, the background B_i those that the policy keeps:
    `Hardest` is local aggregation, `Ring` the paper's Ring + C_i. The positive (the anchor's own entry of the bank)
    belongs to both, being in its own cluster and its own nearest neighbour. So an anchor that is alone in its cluster,
    or has no cluster yet, is pulled to its positive, and one without a background is pushed by nothing else.
    Several numbers of clusters take the mean of their losses.

    Args:
        close: Whose clusters are the close sets.
        temperature: Divides the similarities.
        negatives: The policy of the background; None keeps every candidate.
    """

    def __init__(self, close: Clustered, temperature: float = 0.07, negatives: Policy | None = None) -> None:
        super().__init__(temperature, negatives)
        if negatives is not None and negatives.reweighs:
            raise ValueError(
                "local aggregation compares the means over two sets: policies that reweigh a sum do not fit"
            )
        self.close = close

    def beside(self, pairs: Pairs) -> Sequence[Rule]:
        """The close sets."""
        self.close.look(pairs)
        return self.close.together(pairs)

    def value(self, pairs: Pairs, sums: Sums, progress: float) -> Tensor:
        """The loss per anchor, (1, A)."""
        own = pairs.positives / self.temperature
        log_mean = torch.logaddexp(sums.log_sum, own) - sums.kept.to(own).log1p()
        rows = len(sums.kept) - len(self.close.clusters)
        self.stats["close_per_anchor"] = 1 + sums.kept[rows:].float().mean().item()
        return log_mean[:rows].mean(0, keepdim=True) - log_mean[rows:].mean(0, keepdim=True)
