"""`InfoNCE`: the softmax loss of SimCLR and MoCo, on the negatives that a policy keeps."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from antipodes.functional.batch_softmax import Views, batch_softmax, fits_batch_softmax
from antipodes.functional.sums import Sums
from antipodes.losses.distillation import Distillation
from antipodes.losses.loss import Loss, Reduction, Treatment
from antipodes.losses.step import Step
from antipodes.losses.temperature import Temperature
from antipodes.negatives.policy import Numbers, Policy


class InfoNCE(Loss):
    """NT-Xent on a batch, MoCo's loss on a queue, SupCon with the oracle's attraction.

    For an anchor with positive s+ and kept candidates k (Eq. 1 of IFND with W in {0, 1}):

        loss_i = -s+/tau + log( e^{s+/tau} + sum_k e^{s_k/tau} )

    With `treatment="attract"` false negatives stay in the sum, and the pull goes evenly to the positive and to them;
    with `"refine"` each gets what the positive's similarity to it is worth. `Refine(share=1.0, positive=False)` has no
    e^{s+/tau} in the sum: the cross entropy of the anchor's softmax over its candidates with the teacher's (ReSSL).

    The statistic `loss_above_chance` is the mean of loss_i - log(kept + 1): 0 where the positive cannot be told from
    what is kept, and comparable between policies that keep different numbers of candidates.

    Args:
        temperature: Divides the similarities: a number, or a `Temperature` that moves or learns.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate`, `attract` or `refine`.
        reduction: `mean` over anchors, or `none` for the loss of every anchor.
        total_steps: How many calls the training will have, so that `progress` may be left out.
        rescaled: Multiply the sum over the kept candidates by N / kept, N how many there were, as in the code of
            GloFND's authors: elimination then does not make the loss smaller by itself.
        distill: Let the anchors find the guide's vector of their sample as well.

    Example:
        >>> import torch
        >>> loss_fn = InfoNCE(temperature=0.1)
        >>> float(loss_fn(torch.eye(4), torch.eye(4), torch.arange(4))) < 0.01
        True
    """

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        reduction: Reduction = "mean",
        total_steps: int | None = None,
        rescaled: bool = False,
        distill: Distillation | None = None,
    ) -> None:
        super().__init__(temperature, negatives, treatment, reduction, total_steps, distill)
        self.rescaled = rescaled

    def goes_direct(self, unit: Tensor) -> bool:
        """Whether a batch is so small that operations count, and its loss the plain one."""
        by_policy = self.negatives is not None and self.negatives.reweighs
        plain = self.treatment == "eliminate" and not (by_policy or self.rescaled)
        return plain and not isinstance(self.temperature, Temperature) and fits_batch_softmax(unit, self.temperature)

    def direct(self, step: Step, views: Views) -> Tensor | None:
        """The loss of a small batch that nothing but a ceiling bounds, in few operations."""
        pairs, temperature, product = step.pairs, step.temperature, step.pairs.product
        if isinstance(temperature, Tensor) or product is None or len(step.rules) != 1:
            return None
        (rule,) = step.rules
        if not rule.ceiling_alone:
            return None
        losses, kept = batch_softmax(views, product, pairs.same_sample, temperature, rule)
        self.take_down(step, kept)
        seen = losses.detach()
        self._report_later(lambda: _above_chance(seen, pairs.available() if kept is None else kept))
        return losses

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A)."""
        log_sum, counted = sums.log_sum, sums.kept
        if self.rescaled:
            available = step.pairs.available()
            log_sum = log_sum + (available.to(log_sum.dtype) / sums.kept.clamp(min=1)).log()
            counted = torch.where(sums.kept > 0, available, 0)
        if not self.soft_targets.positive:  # who has no teacher is left alone, and so is who has no candidates
            alone = sums.pulled == 0
            return torch.where(alone, 0.0, log_sum.masked_fill(alone, 0.0) - self.target(step, sums) / step.temperature)
        # log(e^p + S) - p, never as a difference of two large numbers
        loss = F.softplus(log_sum - step.positive_logits)
        if self.treatment != "eliminate":  # what is pulled besides has the positive's log weight here: a constant
            loss = loss + step.pairs.positives / step.temperature - self.target(step, sums) / step.temperature
        if step.pairs.log_weights is None:  # with weights nobody knows what chance would come to
            seen, chance = loss.detach(), counted.detach()
            self._report_later(lambda: _above_chance(seen, chance))
        return loss


def _above_chance(losses: Tensor, counted: Tensor) -> Numbers:
    """By how much the losses exceed those of guessing among so many candidates."""
    return {"loss_above_chance": (losses - counted.to(losses.dtype).log1p()).mean()}
