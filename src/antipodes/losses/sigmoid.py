"""`Sigmoid`: SigLIP's loss, a yes-or-no question for every pair."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipodes.functional.contrast import Sums, sigmoid_both
from antipodes.losses.distillation import Distillation
from antipodes.losses.loss import Contrast, Loss, Reduction, Treatment
from antipodes.losses.step import Step
from antipodes.losses.temperature import Temperature, averaged_over_ranks
from antipodes.negatives.policy import Policy
from antipodes.pairs import Pairs


class Sigmoid(Loss):
    """The sigmoid loss (SigLIP, Zhai et al. 2023), on the negatives that a policy keeps.

    For an anchor with positive s+ and kept candidates k, with z = s/tau + bias,

        loss_i = softplus(-z_i+) + sum_k softplus(z_ik)

    There is one logarithm per pair, not one per anchor. With `treatment="attract"` a false negative is a positive as
    well: it has softplus(-z) instead of softplus(z). With `"refine"` its answer is q between no and yes, and its loss

        q_ik softplus(-z_ik) + (1 - q_ik) softplus(z_ik),   q_ik = w_ik mu p_i^2 / (1 + mu p_i^2)

    where q is what pulls it in InfoNCE, relative to the positive, whose own answer stays yes: with t_ik the similarity
    of the positive's embedding to the candidate, w_ik = e^((t_ik - t_ii) / (tau tau')) and p_i = 1 / (1 + sum_k w_ik).

    SigLIP's loss between images and texts is one direction of it, `OneWay(Sigmoid())(image, text, ids)`; `TwoWay` gives
    every direction a policy.

    Args:
        temperature: Divides the similarities: where it starts, or a `Temperature` of one's own. SigLIP starts at 1/10.
        bias: Where the bias starts: nearly all pairs are negatives, so that it begins far below 0.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate`, `attract` or `refine`.
        reduction: `mean` over anchors, or `none` for the loss of every anchor.
        total_steps: How many calls the training will have, so that `progress` may be left out.
        learnable: Whether temperature and bias are learned; give `loss_fn.parameters()` to the optimiser.
        distill: Let the anchors find the guide's vector of their sample as well.

    Example:
        >>> loss_fn = Sigmoid()
        >>> sorted(name for name, _ in loss_fn.named_parameters())
        ['bias', 'temperature.parameter']
    """

    general = False  # draws from a bank are summed for a softmax
    bias: Tensor

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        bias: float = -10.0,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        reduction: Reduction = "mean",
        total_steps: int | None = None,
        learnable: bool = True,
        distill: Distillation | None = None,
    ) -> None:
        if learnable and not isinstance(temperature, Temperature):
            temperature = Temperature(temperature, learnable=True)
        super().__init__(temperature, negatives, treatment, reduction, total_steps, distill)
        if not math.isfinite(bias):
            raise ValueError(f"bias must be finite, got {bias}: it is added to every logit")
        if negatives is not None and negatives.needs.reweighs:
            raise ValueError("the sigmoid loss has no sum of exponentials: policies that reweigh it do not fit")
        if self.soft_targets.among == "others":
            raise ValueError("the sigmoid loss asks about each pair by itself: there is no share of others to give")
        if isinstance(temperature, Temperature) and temperature.per_sample is not None:
            raise ValueError("the sigmoid loss has one temperature for all pairs: leave per_sample out")
        value = torch.tensor(float(bias))
        if learnable:
            self.bias = nn.Parameter(value)
        else:
            self.register_buffer("bias", value)

    def shared_parts(self) -> list[nn.Module | nn.Parameter]:
        """Temperature and bias: one for both directions."""
        return [*super().shared_parts(), *([self.bias] if isinstance(self.bias, nn.Parameter) else [])]

    def sums(self, step: Step, contrast: Contrast = Pairs.contrast) -> Sums:
        """The sums of the loss over what the rules keep and pull."""
        if contrast is not Pairs.contrast:
            raise ValueError("the sigmoid loss sums over all candidates: it cannot draw some of them from a bank")
        if step.pairs.log_weights is not None or step.pairs.positive_log_weights is not None:
            raise ValueError("the sigmoid loss does not compare candidates: leave their log weights out")
        soft, bias = self.treatment == "refine", averaged_over_ranks(self.bias)
        sums = Sums(*step.pairs.sigmoid(step.temperature, bias, step.all_rules, soft))
        for part in step.parts:  # losses of pairs add up
            more = Sums(*part.pairs.sigmoid(step.temperature, bias, part.rules, soft))
            sums = Sums(*(one + other for one, other in zip(sums, more, strict=True)))
        if not step.positive_again:
            return sums
        again = F.softplus(-(step.pairs.positives / step.temperature + bias))
        return sums._replace(log_sum=sums.log_sum + again)

    def sums_both(self, step: Step, other: Step) -> tuple[Sums, Sums]:
        """The sums of two directions from one product of similarities."""
        pairs, guide = step.pairs, step.pairs.guide
        soft = self.treatment == "refine"
        one, back = sigmoid_both(
            pairs.anchors,
            other.pairs.anchors,
            first_ids=pairs.anchor_ids,
            second_ids=other.pairs.anchor_ids,
            temperature=step.temperature,
            bias=averaged_over_ranks(self.bias),
            first_rules=step.all_rules,
            second_rules=other.all_rules,
            guide=None if guide is None else (guide.anchors, guide.keys()),
            soft=soft,
        )
        return Sums(*one), Sums(*back)

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A)."""
        bias = averaged_over_ranks(self.bias)
        self._record.numbers["bias"] = self.bias.detach()
        loss = F.softplus(-(step.pairs.positives / step.temperature + bias)) + sums.log_sum
        if self.treatment == "refine":  # q softplus(-z) + (1 - q) softplus(z) is softplus(z) - q z
            return loss - (sums.pulled_sum / step.temperature + bias * sums.pulled)
        return loss + sums.pulled_sum
