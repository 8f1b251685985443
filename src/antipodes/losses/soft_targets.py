"""`Refine`: the treatment that pulls a false negative as much as a teacher resembles it, with its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from antipodes.arguments import checked
from antipodes.functional.contrast import Sums
from antipodes.losses.step import Step


@dataclass(frozen=True)
class Refine:
    """The treatment `refine` with its numbers; the defaults are those of SANE on CIFAR.

    The label of an anchor is y = (1 - a) onehot + a p, with p the teacher's softmax over the positive and what the
    policy flags; the teacher's similarity to the positive is that to itself, 1.

    Args:
        mu: Confidence in what the teacher says, a = mu max p / (1 + mu max p); 0 pulls the positive alone.
        tau_prime: Sharpens what it says: its softmax has the temperature tau * tau'.
        space: Who the teacher is: the positive's own embedding (with a queue the momentum network's key), or the anchor
            as a guide sees it.
        share: In the place of mu, the same a for every anchor: 1 makes p itself the target (X-CLR, SoftCLIP), 0.3 mixes
            it with the one-hot label.
        positive: False leaves the positive out of the label and of the sum, so that an anchor agrees with its teacher
            about the candidates alone (ReSSL); with a share of 1.
        among: What the teacher compares. With `all`, the positive and what is flagged: as it resembles itself most, a
            sharp teacher says the positive alone. With `others`, what is flagged alone, SANE's q: the label is
            (1 - share) onehot + share q, and a sharp teacher says who of them is most alike.
    """

    mu: float = 1.0
    tau_prime: float = 0.8
    space: Literal["own", "guide"] = "own"
    share: float | None = None
    positive: bool = True
    among: Literal["all", "others"] = "all"

    def __post_init__(self) -> None:
        if self.share is not None and not 0 <= self.share <= 1:
            raise ValueError(f"share must be in [0, 1], got {self.share}: it is the part of a label that is refined")
        if self.share is not None and self.mu != Refine.mu:
            raise ValueError("share takes the place of mu: leave mu out")
        if not self.positive and self.share != 1:
            raise ValueError("without the positive a label is the teacher's alone: give share=1.0 with positive=False")
        if self.among not in ("all", "others"):
            raise ValueError(f"among must be all or others, got {self.among!r}: it says what the teacher compares")
        if self.among == "others" and (self.share is None or self.share == 1 or not self.positive):
            raise ValueError("the others' part of a label has to be said: give a share below 1 with among='others'")
        if self.space not in ("own", "guide"):
            raise ValueError(f"space must be own or guide, got {self.space!r}: it is where candidates are weighed")
        check_soft_targets(self.tau_prime, self.mu)

    def relabel(self, step: Step, sums: Sums) -> tuple[Sums, Tensor]:
        """Put weights in the place of counts: what pulls a candidate, relative to what pulls the positive.

        Returns:
            The sums with what is pulled by such weights, and the mean share of a label that is off the positive.

        Raises:
            ValueError: if every sample has a temperature of its own.
        """
        if isinstance(step.temperature, Tensor) and step.temperature.dim():
            raise ValueError("refined labels need one temperature for all: a temperature per sample cannot make them")
        temperature = float(step.temperature.detach() if isinstance(step.temperature, Tensor) else step.temperature)
        among = self.among if self.positive else "others"
        refined = step.pairs.refine(temperature, temperature * self.tau_prime, step.rules, self.space, among)
        if not self.positive:  # the weights themselves are the label
            mass = (refined.weight > 0).to(refined.weight).mean()
            return sums._replace(pulled_sum=refined.weighted_sum, pulled=refined.weight), mass
        pull = self.pull(refined.weight)
        weight = pull * refined.weight
        return sums._replace(pulled_sum=pull * refined.weighted_sum, pulled=weight), (weight / (1 + weight)).mean()

    def pull(self, weight: Tensor) -> Tensor:
        """Times this, a candidate's weight w is its part of the label over that of the positive.

        The label is y = (1 - a) onehot + a p, and the positive's own p = 1 / (1 + sum w) is the largest. So y of a
        candidate over y of the positive is w a p / (1 - a + a p), which for a = mu p / (1 + mu p) is
        w mu p^2 / (1 + mu p^2). Among the others alone q = w / sum w, and the same ratio is w a / ((1 - a) sum w).

        Args:
            weight: The sum of an anchor's weights, of any shape.
        """
        if self.share is None:
            confidence = self.mu / (1 + weight) ** 2
            return confidence / (1 + confidence)
        if self.among == "others":
            odds = self.share / (1 - self.share)
            return torch.where(weight > 0, odds / weight, 0.0)
        return self.share / (1 + (1 - self.share) * weight)


Refine.__init__ = checked(Refine.__init__)  # type: ignore[method-assign]


def check_soft_targets(tau_prime: float, *mu: float) -> None:
    """Refuse numbers with which labels cannot be refined."""
    if not 1e-4 <= tau_prime <= 1:
        raise ValueError(f"tau_prime must be in [0.0001, 1], got {tau_prime}: it sharpens the refined labels")
    if not all(0 <= confidence < math.inf for confidence in mu):
        raise ValueError(f"mu must be at least 0 and finite, got {mu}: it is the confidence in refined labels")
