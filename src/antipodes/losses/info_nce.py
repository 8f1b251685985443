"""`InfoNCE`: the softmax loss of SimCLR and MoCo, on the negatives that a policy keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from antipodes.functional.contrast import Sums
from antipodes.functional.plan import Inputs
from antipodes.functional.softmax_losses import SoftmaxLosses, Views, softmax_losses
from antipodes.losses.distillation import Distillation
from antipodes.losses.hardness import Hardness, hardened, split_given
from antipodes.losses.loss import Contrast, Loss, Reduction, Similarity, Treatment, add_in_log, joined
from antipodes.losses.step import Step
from antipodes.losses.temperature import Temperature
from antipodes.negatives.policy import Numbers, Policy
from antipodes.pairs import Pairs


class InfoNCE(Loss):
    """NT-Xent on a batch, MoCo's loss on a queue, SupCon with the oracle's attraction.

    For an anchor with positive s+ and kept candidates k (Eq. 1 of IFND with W in {0, 1}):

        loss_i = -s+/tau + log( e^{s+/tau} + sum_k e^{s_k/tau} )

    `treatment` says what becomes of the candidates that the policy flags. With P_i the positive and what is flagged:

    - `eliminate` leaves them out of the sum.
    - `attract` keeps them in the sum, and s+ becomes the mean similarity of P_i: the mean over positives is outside the
      logarithm (SupCon's L_out).
    - `attract_inside` has -log( sum over P_i of e^{s/tau} / sum over P_i and all others of e^{s/tau} ).
    - `refine` pulls each as much as the positive's similarity to it says. `Refine(share=1.0, positive=False)` has no
      e^{s+/tau} in the sum: the cross entropy of the anchor's softmax over its candidates with the teacher's (ReSSL).

    With `attract` and `attract_inside` z2 may be None: P_i is then what is flagged, and an anchor without any
    contributes 0.

    The statistic `loss_above_chance` is the mean of loss_i - log(kept + 1): 0 where the positive cannot be told from
    what is kept, and comparable between policies that keep different numbers of candidates.

    Args:
        temperature: Divides the similarities: a number, or a `Temperature` that moves or learns.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate`, `attract`, `attract_inside` or `refine`.
        reduction: `mean` over anchors, or `none` for the loss of every anchor.
        total_steps: How many calls the training will have, so that `progress` may be left out.
        distill: Let the anchors find the guide's vector of their sample as well.
        similarity: `cosine`, or `dot` for models that score by dot products. Embeddings are then taken as they are, and
            policies whose thresholds lie in [-1, 1], such as `GloFND`, are refused.
        positive_in_sum: False leaves e^{s+/tau} out of the sum: the decoupled loss (Yeh et al. 2022).
        hardness: A log weight that makes similar negatives count more; see `Hardness`.

    Example:
        >>> import torch
        >>> loss_fn = InfoNCE(temperature=0.1)
        >>> float(loss_fn(torch.eye(4), torch.eye(4), torch.arange(4))) < 0.01
        True
    """

    pulls_inside = True

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        reduction: Reduction = "mean",
        total_steps: int | None = None,
        distill: Distillation | None = None,
        similarity: Similarity = "cosine",
        positive_in_sum: bool = True,
        hardness: Hardness | None = None,
    ) -> None:
        super().__init__(temperature, negatives, treatment, reduction, total_steps, distill)
        if similarity not in get_args(Similarity):
            raise ValueError(f"similarity must be one of {', '.join(get_args(Similarity))}, got {similarity!r}")
        if similarity == "dot":
            self._check_dot(negatives, distill)
        if not positive_in_sum and self.treatment in ("attract_inside", "refine"):
            raise ValueError("without the positive in the sum there is treatment 'eliminate' or 'attract' alone")
        if hardness is not None and negatives is not None and negatives.needs.reweighs:
            raise ValueError(f"{type(negatives).__name__} weighs the negatives itself: leave hardness out")
        if hardness is not None and self.treatment == "refine":
            raise ValueError("refined labels and a log weight of the negatives exclude each other: leave one out")
        self.similarity, self.positive_in_sum, self.hardness = similarity, positive_in_sum, hardness

    def goes_direct(self, temperature: float | Tensor | None = None) -> bool:
        """Whether the loss is the plain softmax, whose temperature all anchors share."""
        by_policy = self.negatives is not None and self.negatives.needs.reweighs
        guided = self.ask_guide is not None or self.distill is not None
        plain = self.treatment == "eliminate" and self.positive_in_sum and self.hardness is None
        tau = self.temperature if temperature is None else temperature
        shared = not isinstance(tau, Temperature) or tau.per_sample is None
        return plain and shared and self.similarity == "cosine" and not (by_policy or guided)

    def direct(self, steps: Sequence[Step], views: Views) -> list[SoftmaxLosses] | None:
        """The losses of one or two directions as one operation; None if a rule pulls, which changes the formula."""
        if any(not rule.ceiling_alone and rule.pulls for step in steps for rule in step.rules):
            return None
        pairs, guide, facts = steps[0].pairs, steps[0].pairs.guide, steps[0].pairs.facts
        inputs = Inputs(
            pairs.anchors, pairs.candidates, pairs.anchor_ids, pairs.candidate_ids, steps[0].temperature,
            steps[0].rules, None if len(steps) == 1 else steps[1].rules,
            guide=None if guide is None else (guide.anchors, guide.candidates),
            same_sample=facts.same_sample, extent=facts.extent, product=facts.product,
        )  # fmt: skip
        return softmax_losses(views, inputs)

    def finish_direct(self, step: Step, found: SoftmaxLosses, weights: Tensor | None = None) -> Tensor:
        """Turn what `direct` returned for this step into the loss, as `finish` does with the kernel's sums."""
        losses, kept = found
        self.take_down(step, kept)
        seen, pairs = losses.detach(), step.pairs  # pairs without gradient: nothing holds on to a graph
        self._report_later(lambda: _above_chance(seen, pairs.available() if kept is None else kept))
        return self._conclude(step, losses, weights)

    def sums(self, step: Step, contrast: Contrast = Pairs.contrast) -> Sums:
        """The kernel's sums over what the rules keep, with the log weights of `hardness`."""
        if self.hardness is None or contrast is not Pairs.contrast:
            if self.hardness is not None:
                raise ValueError("hardness weighs all candidates: it cannot weigh draws from a bank")
            return super().sums(step, contrast)
        first, *others = split_given(step.pairs, step.all_rules, self.hardness)
        sums = hardened(first.pairs, step.temperature, first.rules, first.hardness * step.scale**2)
        parts = [(part.pairs, part.rules, part.hardness * step.scale**2) for part in (*others, *step.parts)]
        return joined(sums, [hardened(pairs, step.temperature, rules, each) for pairs, rules, each in parts])

    @property
    def shares_product(self) -> bool:
        """Whether two directions may come from one product; not with a log weight of its own."""
        return self.hardness is None

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A)."""
        if self.treatment == "attract_inside":
            return self._inside(step, *sums.log_sum.chunk(2))
        log_sum, counted = self._negatives(step, sums)
        if not (self.soft_targets.positive and step.pairs.has_positive):
            # an anchor without a teacher contributes 0, and so does one without candidates
            alone = sums.pulled == 0
            return torch.where(alone, 0.0, log_sum.masked_fill(alone, 0.0) - self.target(step, sums) / step.temperature)
        if not self.positive_in_sum:
            nothing = log_sum == -torch.inf
            loss = torch.where(nothing, 0.0, log_sum.masked_fill(nothing, 0.0) - step.positive_logits)
            if self.treatment != "eliminate":
                moved = (step.pairs.positives - self.target(step, sums)) / step.temperature
                loss = loss + moved.masked_fill(nothing, 0.0)
            return loss
        if step.positive_again:
            log_sum = add_in_log(log_sum, (step.pairs.positives / step.temperature).expand_as(log_sum))
        # log(e^p + S) - p, never as a difference of two large numbers
        loss = F.softplus(log_sum - step.positive_logits)
        if self.treatment != "eliminate":  # what is pulled besides has the positive's log weight here: a constant
            loss = loss + step.pairs.positives / step.temperature - self.target(step, sums) / step.temperature
        if step.pairs.log_weights is None and self.hardness is None:  # with weights the loss of guessing is not known
            seen, chance = loss.detach(), counted.detach()
            self._report_later(lambda: _above_chance(seen, chance))
        return loss

    def _negatives(self, step: Step, sums: Sums) -> tuple[Tensor, Tensor]:
        """The logarithm of the sum over the negatives, and how many they count as, each (R, A)."""
        return sums.log_sum, sums.kept

    def _inside(self, step: Step, negatives: Tensor, pulled: Tensor) -> Tensor:
        """-log( P / (P + N) ) = softplus(log N - log P), with P the sum over the positive and what is pulled."""
        positives = add_in_log(pulled, step.positive_logits.expand_as(pulled)) if step.pairs.has_positive else pulled
        if step.positive_again:
            negatives = add_in_log(negatives, (step.pairs.positives / step.temperature).expand_as(negatives))
        alone = positives == -torch.inf
        return F.softplus(negatives - positives.masked_fill(alone, 0.0)).masked_fill(alone, 0.0)

    @staticmethod
    def _check_dot(negatives: Policy | None, distill: Distillation | None) -> None:
        """Refuse what dot products cannot be compared with."""
        cosines = [policy for policy in ([] if negatives is None else negatives.parts()) if policy.needs.cosine]
        if cosines:
            raise ValueError(
                f"{type(cosines[0]).__name__} compares similarities with numbers in [-1, 1]: "
                "dot products have no such range, give similarity='cosine'"
            )
        if distill is not None:
            raise ValueError("a guide's vector of a sample is found by its cosine: leave distill out with dot products")


def _above_chance(losses: Tensor, counted: Tensor) -> Numbers:
    """By how much the losses exceed the losses of guessing among so many candidates."""
    return {"loss_above_chance": (losses - counted.to(losses.dtype).log1p()).mean()}
