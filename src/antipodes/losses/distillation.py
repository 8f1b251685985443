"""`Distillation`: a guide's vector of a sample as one more view of it, which the anchors have to find."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from antipodes.arguments import checked
from antipodes.pairs import Pairs, Rule


@dataclass(frozen=True)
class Distillation:
    """What a loss with this view has besides, where s is the similarity of an anchor to a guide's vector:

        weight * ( -s+/tau + log( e^{s+/tau} + sum_k e^{s_k/tau} ) )

    s+ is that to the guide's vector of the anchor's own sample, s_k those to the guide's vectors of its candidates,
    all of them but the anchor's own sample. Embeddings and the guide's vectors have to be of one length. An anchor so
    learns where the guide puts its sample among the others: LiT's loss (Zhai et al. 2022) with the guide as the locked
    tower, or contrastive distillation (Tian et al. 2020), in addition to the base's own. A sample that the guide
    does not know has no such term. No policy decides about it, and on a bank it has the candidates that the policy
    judges.

    Args:
        weight: Of this term. The base's own has 1; that of `GlobalContrastive` is its temperature times InfoNCE's.
        temperature: tau.
    """

    weight: float = 1.0
    temperature: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"the weight of a guide's view must be above 0, got {self.weight}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"the temperature of a guide's view must be above 0, got {self.temperature}")

    def losses(self, pairs: Pairs) -> Tensor:
        """The term of every anchor, (A,).

        Raises:
            ValueError: if the pairs have no guide, or its vectors another length than the embeddings.
        """
        seen, known = pairs.against_guide()
        sums = seen.contrast(self.temperature, [Rule()])
        losses = F.softplus(sums.log_sum[0] - seen.positives / self.temperature)
        return self.weight * torch.where(known, losses, 0.0)


Distillation.__init__ = checked(Distillation.__init__)  # type: ignore[method-assign]
