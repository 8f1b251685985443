"""`Pairs`: what one step compares. A policy looks at it and answers with a `Rule`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent
from antipodes.functional._compiling import full_precision
from antipodes.functional._plan import few_pairs
from antipodes.functional._reading import read
from antipodes.functional.contrast import contrast
from antipodes.functional.counts import count_above
from antipodes.functional.normalise import normalise
from antipodes.functional.positives import paired_similarity
from antipodes.functional.ranks import bounded
from antipodes.functional.refine import Refined, refine
from antipodes.functional.rule import Bounds, Group, Listed, Ranks, Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.sigmoid import SigmoidSums, sigmoid_sums
from antipodes.functional.sums import Sums

__all__ = ["Bounds", "Group", "Guide", "Listed", "Pairs", "Ranks", "Rule", "normalise"]


@dataclass(frozen=True)
class Guide:
    """The same anchors and candidates in a second space, of any dimension, L2-normalised and without gradient.

    Args:
        anchors: (A, G) vectors of the anchors.
        positives: (A,) cosine similarity of every anchor to its positive in this space.
        candidates: (C, G) vectors of the candidates; None together with those of the pairs.
        own: (A, G) vectors of the anchors' samples as candidates are seen, which may be by another source than anchors;
            None takes those of the anchors.
    """

    anchors: Tensor
    positives: Tensor
    candidates: Tensor | None = None
    own: Tensor | None = None

    def keys(self) -> Tensor:
        """The vectors of the candidates, whether or not they are the anchors."""
        return self.anchors if self.candidates is None else self.candidates


@dataclass(frozen=True)
class Pairs:
    """Anchors, their positives and their candidates, all L2-normalised.

    An *id* says which sample an embedding shows: candidates of the anchor's own id are never its negatives. A *row*
    says where a sample stands in tables and labels. The two are equal unless several rows share an identity, such as
    five captions of one image or two records of one patient.

    Args:
        anchors: (A, D) with gradient.
        anchor_ids: (A,) identity of every anchor, by default its dataset index.
        positives: (A,) cosine similarity of every anchor to its positive, with gradient.
        candidates: (C, D), or None when the anchors themselves are the candidates (a batch on one rank).
        candidate_ids: (C,) identity of every candidate, -1 for an empty slot; None together with candidates.
        teachers: (A, D) the embedding of every anchor's positive, without gradient; only `refine` asks for it.
        supports: (A, D) the mean embedding of further views of every anchor's sample, without gradient; None unless
            the policy asks for some (`Policy.supports`).
        anchor_rows: (A,) table row of every anchor; None takes the ids.
        candidate_rows: (C,) table row of every candidate, negative where it has none; None takes the ids.
        guide: The same anchors and candidates in the space of a guide, for policies that look there.
        log_weights: (C,) by which every candidate's logit is raised, for candidates that were not drawn evenly.
        positive_log_weights: (A,) by which every positive's logit is.
        views: How many views of every sample are anchors; with 2 the second half of the anchors are the second views.
    """

    anchors: Tensor
    anchor_ids: Tensor
    positives: Tensor
    candidates: Tensor | None = None
    candidate_ids: Tensor | None = None
    teachers: Tensor | None = None
    supports: Tensor | None = None
    anchor_rows: Tensor | None = None
    candidate_rows: Tensor | None = None
    guide: Guide | None = None
    log_weights: Tensor | None = None
    positive_log_weights: Tensor | None = None
    views: int = 1

    def keys(self) -> tuple[Tensor, Tensor]:
        """The candidates and their ids, whether or not they are the anchors."""
        if self.candidates is None or self.candidate_ids is None:
            return self.anchors, self.anchor_ids
        return self.candidates, self.candidate_ids

    def rows(self) -> tuple[Tensor, Tensor]:
        """The table rows of anchors (A,) and candidates (C,); negative for empty slots and for what has no row."""
        anchors = self.anchor_ids if self.anchor_rows is None else self.anchor_rows
        if self.candidates is None or self.candidate_ids is None:
            return anchors, anchors
        if self.candidate_rows is None:
            return anchors, self.candidate_ids
        return anchors, self.candidate_rows.masked_fill(self.candidate_ids < 0, -1)

    def contrast(self, temperature: float | Tensor, rules: Rule | Sequence[Rule]) -> Sums:
        """The kernel's sums over these pairs: per rule and anchor what is kept, and what is pulled."""
        return contrast(
            self.anchors,
            self.candidates,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            temperature=temperature,
            rules=rules,
            offsets=self.log_weights,
            guide=self._guides(rules),
            same_sample=self.same_sample,
            extent=self.extent,
            product=self.__dict__.get("product"),
        )

    def count_above(self, thresholds: Tensor) -> Tensor:
        """How many candidates of other samples are more similar to every anchor than its threshold, (A,)."""
        return count_above(
            self.anchors.detach(),
            None if self.candidates is None else self.candidates.detach(),
            thresholds,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            same_sample=self.same_sample,
            extent=self.extent,
            product=self.product,
        )

    def sigmoid(
        self, temperature: float | Tensor, bias: float | Tensor, rules: Rule | Sequence[Rule], soft: bool = False
    ) -> SigmoidSums:
        """The sums of SigLIP's loss over these pairs: per rule and anchor of what is kept, and of what is pulled.

        With `soft` what is pulled counts among the negatives, as labels between 0 and 1 need it.
        """
        return sigmoid_sums(
            self.anchors,
            self.candidates,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            temperature=temperature,
            bias=bias,
            rules=rules,
            guide=self._guides(rules),
            same_sample=self.same_sample,
            extent=self.extent,
            soft=soft,
        )

    def measure(self, *numbers: Tensor) -> list[float]:
        """Read these numbers, and with them what kernels will ask about these pairs: a GPU then waits once."""
        keys, ids = self.keys()
        if not (len(self.anchors) and len(keys)):
            self.remember(None, (0, -1))
            return read(*numbers)
        of_ids = (ids,) if self.candidates is None else (self.anchor_ids, ids)
        asked = [*Extent.numbers(self.anchors, self.candidates, *of_ids), *torch.aminmax(self.rows()[0])]
        answers = read(*asked, *numbers)
        *extent, lowest, highest = answers[: len(asked)]
        self.remember(Extent(*extent), (int(lowest), int(highest)))
        return answers[len(asked) :]

    def remember(self, extent: Extent | None, row_span: tuple[int, int]) -> None:
        """Take down what somebody has found out about the numbers already."""
        self.__dict__.update(extent=extent, row_span=row_span)

    @cached_property
    def extent(self) -> Extent | None:
        """What kernels must know about the numbers in embeddings and ids, read once; None where there are none."""
        self.measure()
        found: Extent | None = self.__dict__["extent"]
        return found

    @cached_property
    def row_span(self) -> tuple[int, int]:
        """The lowest and the highest row of the anchors, read with the rest."""
        self.measure()
        found: tuple[int, int] = self.__dict__["row_span"]
        return found

    @cached_property
    def product(self) -> Tensor | None:
        """(A, C) the similarities without gradient, if there are so few pairs that kernels keep them; else None."""
        keys = self.keys()[0]
        if not few_pairs(len(self.anchors), len(keys)):
            return None
        dtype = torch.promote_types(self.anchors.dtype, torch.float32)
        with full_precision():
            return torch.mm(self.anchors.detach().to(dtype), keys.detach().to(dtype).T)

    @cached_property
    def same_sample(self) -> SameSample:
        """Which candidates show the anchors' own samples, found once for all who ask."""
        return SameSample(self.anchor_ids, self.candidate_ids)

    def _guides(self, rules: Rule | Sequence[Rule]) -> tuple[Tensor, Tensor | None] | None:
        """The guide's vectors, if a rule looks at them."""
        rules = (rules,) if isinstance(rules, Rule) else rules
        if self.guide is None or not any(rule.needs_guide for rule in rules):
            return None
        return self.guide.anchors, self.guide.candidates

    def bounded(self, rules: Sequence[Rule]) -> Sequence[Rule]:
        """The rules with their ranks as bounds, for those who apply them more than once."""
        keys, ids = self.keys()
        guide = None if self.guide is None else (self.guide.anchors, self.guide.keys())
        return bounded(rules, self.anchors, keys, self.anchor_ids, ids, guide=guide, same_sample=self.same_sample)

    def with_supports(self, supports: Tensor | None) -> Pairs:
        """The same pairs with the embeddings (S, B, D) of further views, if any; both views of a sample share them."""
        if supports is None:
            return self
        mean = normalise(supports.detach()).mean(0)
        return self._with(supports=mean.repeat(len(self.anchors) // len(mean), 1))

    def refine(
        self,
        temperature: float,
        teacher_temperature: float,
        rules: Rule | Sequence[Rule],
        space: Literal["own", "guide"] = "own",
        among: Literal["all", "others"] = "all",
    ) -> Refined:
        """What the teachers make of the pairs that the rules pull: the sums of their weights, alone and times s.

        The teachers are the anchors' positives, or with the space `guide` the anchors as the guide sees them. Weights
        are relative to the teacher's similarity to itself or, with `others`, to the largest among the pulled.
        """
        teachers, teacher_keys = self.teachers, None
        if space == "guide":
            if self.guide is None:
                raise ValueError("refining in the guide's space needs a guide: give the loss guide=(first, second)")
            teachers, teacher_keys = self.guide.anchors, self.guide.keys()
        if teachers is None:
            raise ValueError("refining needs the embeddings of the positives: give Pairs its teachers")
        return refine(
            self.anchors,
            self.candidates,
            teachers=teachers,
            teacher_keys=teacher_keys,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            temperature=temperature,
            teacher_temperature=teacher_temperature,
            rules=rules,
            among=among,
            guide=self._guides(rules),
            same_sample=self.same_sample,
        )

    def detached(self) -> Pairs:
        """The same pairs without gradient, for those who only look."""
        keys = None if self.candidates is None else self.candidates.detach()
        return self._with(anchors=self.anchors.detach(), positives=self.positives.detach(), candidates=keys)

    def linked(self, views: Tensor) -> Pairs:
        """The pairs of a batch with gradients: its views (2b, D) have the same numbers, and a graph behind them."""
        return self._with(anchors=views, positives=paired_similarity(views))

    def with_guide(self, guide: Guide) -> Pairs:
        """The same pairs as a guide sees them besides."""
        return self._with(guide=guide)

    def against_guide(self) -> tuple[Pairs, Tensor]:
        """The anchors beside the guide's vectors: that of their own sample is the positive, those of the candidates are
        the candidates. And which anchors (A,) the guide knows.

        Raises:
            ValueError: if there is no guide, or its vectors are of another length than the embeddings.
        """
        guide = self.guide
        if guide is None:
            raise ValueError("a guide's view needs a guide: give the loss guide=(first, second)")
        if guide.anchors.shape[1] != self.anchors.shape[1]:
            raise ValueError(
                f"as a view of a sample a guide's vector must be as long as an embedding, {self.anchors.shape[1]}, got "
                f"{guide.anchors.shape[1]}: give guide or head another dim"
            )
        found = guide.anchors if guide.own is None else guide.own
        own, keys = (each.to(self.anchors.dtype) for each in (found, guide.keys()))
        seen = Pairs(self.anchors, self.anchor_ids, (self.anchors * own).sum(1), keys, self.keys()[1])
        # the same anchors and ids, and vectors of length 1: nothing has to be read again
        seen.remember(None if self.extent is None else self.extent._replace(farthest=1.0), self.row_span)
        return seen, found.any(1)

    def _with(self, **changes: Any) -> Pairs:
        """The same numbers in other fields: what was found out about them stays known."""
        other = replace(self, **changes)
        known = {name: value for name, value in self.__dict__.items() if name in ("extent", "row_span", "product")}
        other.__dict__.update(known, same_sample=self.same_sample)
        return other

    def available(self) -> Tensor:
        """How many candidates every anchor has before any rule, (A,): filled slots of other samples."""
        return self.same_sample.available
