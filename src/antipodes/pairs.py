"""`Pairs`: what one step compares. A policy looks at it and answers with a `Rule`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from antipodes.functional.contrast import contrast
from antipodes.functional.ranks import bounded
from antipodes.functional.refine import Refined, refine
from antipodes.functional.rule import Group, Listed, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.sums import Sums

__all__ = ["Group", "Listed", "Pairs", "Ranks", "Rule", "normalise"]


@dataclass(frozen=True)
class Pairs:
    """Anchors, their positives and their candidates, all L2-normalised.

    Args:
        anchors: (A, D) with gradient.
        anchor_ids: (A,) dataset index of every anchor.
        positives: (A,) cosine similarity of every anchor to its positive, with gradient.
        candidates: (C, D), or None when the anchors themselves are the candidates (a batch on one rank).
        candidate_ids: (C,) dataset index of every candidate, -1 for an empty slot; None together with candidates.
        teachers: (A, D) the embedding of every anchor's positive, without gradient; only `refine` asks for it.
        supports: (A, D) the mean embedding of further views of every anchor's sample, without gradient; None unless
            the policy asks for some (`Policy.supports`).
    """

    anchors: Tensor
    anchor_ids: Tensor
    positives: Tensor
    candidates: Tensor | None = None
    candidate_ids: Tensor | None = None
    teachers: Tensor | None = None
    supports: Tensor | None = None

    def keys(self) -> tuple[Tensor, Tensor]:
        """The candidates and their ids, whether or not they are the anchors."""
        if self.candidates is None or self.candidate_ids is None:
            return self.anchors, self.anchor_ids
        return self.candidates, self.candidate_ids

    @cached_property
    def same_sample(self) -> SameSample:
        """Which candidates are of the anchors' own samples, found once for all that look at these pairs."""
        return SameSample(self.anchor_ids, self.candidate_ids)

    def contrast(self, temperature: float, rules: Rule | Sequence[Rule]) -> Sums:
        """The kernel's sums over these pairs: per rule and anchor what is kept, and what is pulled."""
        return contrast(
            self.anchors,
            self.candidates,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            temperature=temperature,
            rules=rules,
            same_sample=self.same_sample,
        )

    def bounded(self, rules: Sequence[Rule]) -> Sequence[Rule]:
        """The rules with their ranks as bounds, for those who apply them more than once."""
        keys, key_ids = self.keys()
        return bounded(rules, self.anchors, keys, self.anchor_ids, key_ids, same_sample=self.same_sample)

    def with_supports(self, supports: Tensor | None) -> Pairs:
        """The same pairs with the embeddings (S, B, D) of further views, if any; both views of a sample share them."""
        if supports is None:
            return self
        mean = normalise(supports.detach()).mean(0)
        return replace(self, supports=mean.repeat(len(self.anchors) // len(mean), 1))

    def refine(self, temperature: float, teacher_temperature: float, rules: Rule | Sequence[Rule]) -> Refined:
        """What the teachers make of the pairs that the rules pull: the sums of their weights, alone and times s."""
        if self.teachers is None:
            raise ValueError("refining needs the embeddings of the positives: give Pairs its teachers")
        return refine(
            self.anchors,
            self.candidates,
            teachers=self.teachers,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            temperature=temperature,
            teacher_temperature=teacher_temperature,
            rules=rules,
            same_sample=self.same_sample,
        )

    def detached(self) -> Pairs:
        """The same pairs without gradient, for those who only look."""
        keys = None if self.candidates is None else self.candidates.detach()
        pairs = replace(self, anchors=self.anchors.detach(), positives=self.positives.detach(), candidates=keys)
        pairs.__dict__["same_sample"] = self.same_sample  # of the same ids
        return pairs

    def available(self) -> Tensor:
        """How many candidates every anchor has before any rule, (A,): filled slots of other samples."""
        return self.same_sample.available


def normalise(embeddings: Tensor) -> Tensor:
    """Scale rows to length 1 in float32 or better; a zero row stays zero and gets no gradient.

    `torch.nn.functional.normalize` divides by its epsilon there, which multiplies the gradient by 1e12.
    """
    embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
    # by its largest entry first: the squares of a long row would overflow, those of a short one vanish
    peak = embeddings.detach().abs().amax(dim=-1, keepdim=True)
    absent = peak < math.sqrt(torch.finfo(peak.dtype).tiny)  # NaN is not absent: it stays and is refused later
    scaled = (embeddings / peak.masked_fill(absent, 1.0)).masked_fill(absent, 0.0)
    length = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    unit: Tensor = scaled / length.masked_fill(absent, 1.0)
    return unit
