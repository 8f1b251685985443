"""What all objectives share: views in, pairs judged by the policy, the kernel's sums, a mean over anchors out."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from antipodes.candidates.batch import batch_pairs
from antipodes.functional.errors import NotFinite
from antipodes.functional.sums import Sums
from antipodes.negatives.policy import Policy
from antipodes.pairs import Pairs, Rule, normalise

TreatmentName = Literal["eliminate", "attract", "refine"]
Contrast = Callable[[Pairs, float, Sequence[Rule]], Sums]
"""Pairs, the temperature and rules to sums: `Pairs.contrast`, or another way to sum over what the rules keep."""


@dataclass(frozen=True)
class Refine:
    """The treatment `refine` with its numbers; the defaults are those of SANE on CIFAR.

    Args:
        mu: Confidence in what the anchor's positive says; 0 pulls the positive alone.
        tau_prime: Sharpens what it says: its softmax has the temperature tau * tau'.
    """

    mu: float = 1.0
    tau_prime: float = 0.8

    def __post_init__(self) -> None:
        check_refinery(self.tau_prime, self.mu)


Treatment = TreatmentName | Refine


class Objective(nn.Module, ABC):
    """A contrastive loss whose negatives a policy decides.

    Args:
        temperature: Divides the similarities.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate` takes them out of the sum, `attract` pulls them like
            positives, `refine` pulls each as much as the anchor's positive resembles it, with the numbers of `Refine`.
    """

    whole: ClassVar[bool] = False  # True: on a bank it wants every entry, not a draw
    stats: dict[str, float]

    def __init__(
        self,
        temperature: float = 0.1,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise ValueError(f"temperature must be above 0 and finite, got {temperature}: it divides the similarities")
        self.refinery = treatment if isinstance(treatment, Refine) else Refine()
        self.treatment: TreatmentName = "refine" if isinstance(treatment, Refine) else treatment
        if self.treatment not in get_args(TreatmentName):
            raise ValueError(f"treatment must be one of {', '.join(get_args(TreatmentName))}, got {treatment!r}")
        if treatment != "eliminate" and negatives is None:
            raise ValueError(f"treatment {treatment!r} needs a policy that finds false negatives: give negatives")
        self.temperature = temperature
        self.negatives = negatives
        self.stats = {}
        self.observer: Callable[[Pairs, Sequence[Rule]], None] | None = None  # sees every step's pairs and rules
        self._warned: set[str] = set()

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        ids: Tensor,
        *,
        candidates: Tensor | None = None,
        candidate_ids: Tensor | None = None,
        supports: Tensor | None = None,
        progress: float = 1.0,
    ) -> Tensor:
        """The mean loss over this rank's anchors.

        Args:
            z1: (B, D) embeddings of one view (the queries, when candidates are given); any length.
            z2: (B, D) embeddings of the other view (the keys).
            ids: (B,) int64 dataset indices.
            candidates: (C, D) negatives from a queue or bank; then only z1 is an anchor. None: the batch, both ways.
            candidate_ids: (C,) their dataset indices, -1 for empty slots.
            supports: (S, B, D) embeddings of further views of the samples, for a policy that asks for some.
            progress: Share of training done, for policies that move with it; the default is the end.

        Raises:
            ValueError: for shapes that do not fit, candidates without ids, or embeddings that are not finite.
        """
        if z1.dim() != 2 or z1.shape != z2.shape or ids.shape != z1.shape[:1] or not ids.numel():
            raise ValueError(
                "z1 and z2 must be (B, D) and ids (B,), "
                f"got {tuple(z1.shape)}, {tuple(z2.shape)} and {tuple(ids.shape)}"
            )
        if int(ids.min()) < 0:
            raise ValueError(f"ids must be at least 0, got {int(ids.min())}: they are dataset indices")
        if (candidates is None) != (candidate_ids is None):
            raise ValueError("candidates and candidate_ids go together: the ids keep an anchor's own copy out")
        if supports is not None and (supports.dim() != 3 or supports.shape[1:] != z1.shape or not len(supports)):
            raise ValueError(f"supports must be (S, B, D) of views like z1, got {tuple(supports.shape)}")
        first, second = normalise(z1), normalise(z2)
        if not bool((first.detach().any(1) & second.detach().any(1)).all()):
            self._warn("some embeddings are zero vectors: their similarities are 0 and they get no gradient")
        if candidates is None or candidate_ids is None:
            pairs = batch_pairs(first, second, ids)
        else:
            positives, keys = (first * second).sum(1), normalise(candidates)
            pairs = Pairs(first, ids, positives, keys, candidate_ids, second.detach())
        return self.evaluate(pairs.with_supports(supports), progress)

    def evaluate(self, pairs: Pairs, progress: float = 1.0, contrast: Contrast = Pairs.contrast) -> Tensor:
        """The mean loss of pairs that are ready (normalised, gathered); methods with a queue or bank come in here.

        Args:
            pairs: What is compared.
            progress: Share of training done.
            contrast: How to sum over what the rules keep; the default takes every kept candidate once.
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must be in [0, 1], got {progress}: it is the share of training done")
        if not bool(pairs.positives.detach().isfinite().all()):
            raise NotFinite("z1 or z2 hold NaN or infinite numbers: check the encoder's output before the loss")
        with torch.no_grad():
            rules = self.judge(pairs, progress)
        if self.observer is not None:
            self.observer(pairs, rules)
        if self.treatment != "eliminate":
            rules = [rule.attract() for rule in rules]
        if self.treatment == "refine" or (self.negatives is not None and self.negatives.reweighs):
            rules = pairs.bounded(rules)
        sums = contrast(pairs, self.temperature, [*rules, *self.beside(pairs, progress)])
        if self.negatives is not None and self.negatives.reweighs:
            sums = self.negatives.reweigh(pairs, rules, sums, self.temperature)
        self.stats = _statistics(pairs, Sums(*(each[: len(rules)] for each in sums)), rules)
        if self.negatives is not None:
            self.stats |= self.negatives.statistics()
        empty = pairs.candidate_ids is not None and not bool((pairs.candidate_ids >= 0).any())  # a queue's first step
        if self.stats["without_negatives"] > 0 and not empty:
            self._warn("some anchors have no negatives left: nothing pushes them")
        if self.treatment == "refine":
            sums = self._refine(pairs, sums, rules)
        return self.value(pairs, sums, progress).mean()

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """The rules of the policy."""
        return [Rule()] if self.negatives is None else self.negatives.judge(pairs, progress)

    def beside(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Rules whose sums the loss needs beside those of the policy; they come last."""
        return ()

    @abstractmethod
    def value(self, pairs: Pairs, sums: Sums, progress: float) -> Tensor:
        """The loss per rule and anchor, (R, A)."""

    def target(self, pairs: Pairs, sums: Sums) -> Tensor:
        """What is pulled: the similarity of the positive and of the pulled candidates, a weighted mean per anchor."""
        if self.treatment == "eliminate":
            return pairs.positives
        return (pairs.positives + sums.pulled_sum) / (1 + sums.pulled)

    def _refine(self, pairs: Pairs, sums: Sums, rules: Sequence[Rule]) -> Sums:
        """Put weights in the place of counts: what pulls a candidate, relative to what pulls the positive.

        The label is y = (1 - a) onehot + a p with a = mu max p / (1 + mu max p). The largest p is the positive's own,
        p = 1 / (1 + sum w), so y of a candidate over y of the positive is w mu p^2 / (1 + mu p^2).
        """
        refined = pairs.refine(self.temperature, self.temperature * self.refinery.tau_prime, rules)
        confidence = self.refinery.mu / (1 + refined.weight) ** 2
        share = confidence / (1 + confidence)
        weight = share * refined.weight
        self.stats["refined_mass"] = (weight / (1 + weight)).mean().item()  # of a label, off the positive
        return sums._replace(pulled_sum=share * refined.weighted_sum, pulled=weight)

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            warnings.warn(sentence, stacklevel=5)


def check_refinery(tau_prime: float, *mu: float) -> None:
    """Refuse numbers with which labels cannot be refined."""
    if not 0 < tau_prime <= 1:
        raise ValueError(f"tau_prime must be in (0, 1], got {tau_prime}: it sharpens the refined labels")
    if not all(0 <= confidence < math.inf for confidence in mu):
        raise ValueError(f"mu must be at least 0 and finite, got {mu}: it is the confidence in refined labels")


def _statistics(pairs: Pairs, sums: Sums, rules: Sequence[Rule]) -> dict[str, float]:
    """What a log shows of one call; flagged are the candidates that the rules dropped or pull as false negatives."""
    kept, pulled = sums.kept.float().mean().item(), sums.pulled.float().mean().item()
    numbers = {
        "positive_similarity": pairs.positives.mean().item(),
        "kept_per_anchor": kept,
        "pulled_per_anchor": pulled,
        "without_negatives": (sums.kept == 0).float().mean().item(),
    }
    if not any(rule.ignores for rule in rules):
        available = pairs.available().float().mean().item()
        numbers["flagged_share"] = (available - kept + pulled) / available if available else 0.0
    return numbers
