"""`LocalAggregation`: towards the samples of the own cluster, away from the neighbourhood as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.sums import Sums
from antipodes.negatives.clustered import Clustered
from antipodes.negatives.policy import Policy
from antipodes.objectives.objective import Objective
from antipodes.objectives.step import Step
from antipodes.objectives.temperature import Temperature
from antipodes.pairs import Pairs, Rule


class LocalAggregation(Objective):
    """Local aggregation (Zhuang et al. 2019) as Eq. 5 of Ring (Wu et al. 2021) has it, with means over two sets.

        loss_i = - log( mean over C_i of e^{s/tau} ) + log( mean over B_i of e^{s/tau} )

    The close set C_i has the candidates of the anchor's cluster, the background B_i those that the policy keeps:
    `Hardest` is local aggregation, `Ring` the paper's Ring + C_i. The positive (the anchor's own entry of the bank)
    belongs to both, being in its own cluster and its own nearest neighbour. So an anchor that is alone in its cluster,
    or has no cluster yet, is pulled to its positive, and one without a background is pushed by nothing else.
    Several numbers of clusters take the mean of their losses. Before the start, C_i is the positive and B_i every
    candidate, which is instance discrimination.

    Args:
        close: Whose clusters are the close sets.
        temperature: Divides the similarities.
        negatives: The policy of the background; None keeps every candidate.
        start: Share of training before it begins.
    """

    def __init__(
        self,
        close: Clustered,
        temperature: float | Temperature = 0.07,
        negatives: Policy | None = None,
        start: float = 0.0,
    ) -> None:
        super().__init__(temperature, negatives)
        if not 0 <= start <= 1:
            raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training without clusters")
        if negatives is not None and negatives.reweighs:
            raise ValueError(
                "local aggregation compares the means over two sets: policies that reweigh a sum do not fit"
            )
        self.close = close
        self.start = start

    def policies(self) -> list[Policy]:
        """The policies of the background, and that of the close sets."""
        return [*super().policies(), self.close]

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the start, or a policy that moves with training."""
        return self.start > 0 or super().uses_progress

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """The background."""
        return super().judge(pairs, progress, learn) if progress >= self.start else [Rule()]

    def extra_rules(self, pairs: Pairs, progress: float, learn: bool) -> Sequence[Rule]:
        """The close sets; none before the start."""
        self.close.observe(pairs, learn)
        return self.close.same_cluster(pairs) if progress >= self.start else ()

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per anchor, (1, A)."""
        own = step.pairs.positives[None] / step.temperature
        log_mean = torch.logaddexp(sums.log_sum, own) - sums.kept.to(own).log1p()
        sets = len(step.extra_rules)
        background, close = log_mean.tensor_split([len(log_mean) - sets])
        self._numbers["close_per_anchor"] = 1 + (sums.kept[-sets:].float().mean() if sets else 0)
        target: Tensor = close.mean(0, keepdim=True) if sets else own
        return background.mean(0, keepdim=True) - target
