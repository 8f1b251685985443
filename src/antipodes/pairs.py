"""`Pairs`: what one step compares, as plain frozen data. A policy judges it and answers with a `Rule`.

`PairFacts` holds what was measured about the pairs already, so that it is read from the device once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from antipodes.functional.checks import Extent
from antipodes.functional.contrast import SigmoidSums, Sums, contrast, count_above, sigmoid_sums
from antipodes.functional.normalise import normalise, paired_similarity
from antipodes.functional.refine import Refined, refine
from antipodes.functional.rule import Bounds, Group, Listed, Ranks, Rule
from antipodes.functional.same_sample import FEW_PAIRS, Excluded, SameSample
from antipodes.functional.select import bounded
from antipodes.functional.tensors import read

__all__ = ["Bounds", "Group", "Guide", "Identities", "Listed", "PairFacts", "Pairs", "Ranks", "Rule", "normalise"]

Block = Literal[
    "query_to_document", "query_to_query", "document_to_query", "document_to_document", "positive_to_positive"
]
"""Which embeddings of pairs of a query and a document are compared; anchors first."""

AnySums = TypeVar("AnySums", Sums, SigmoidSums)


@dataclass(frozen=True)
class Guide:
    """The same anchors and candidates in a second space, of any dimension, L2-normalised and without gradient.

    Args:
        anchors: (A, G) vectors of the anchors.
        positives: (A,) cosine similarity of every anchor to its positive in this space.
        candidates: (C, G) vectors of the candidates; None where those of the pairs are.
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

    def part(self, rows: slice, columns: slice) -> Guide:
        """The vectors of some anchors and some candidates."""
        own = None if self.own is None else self.own[rows]
        return Guide(self.anchors[rows], self.positives[rows], self.keys()[columns], own)


@dataclass(frozen=True)
class PairFacts:
    """What is known about pairs in addition to the pairs themselves. Each is None until it was measured.

    Attributes:
        extent: The longest embeddings and the lowest id, which kernels must know.
        row_span: The lowest and the highest table row of the anchors.
        same_sample: Which pairs never count.
        product: (A, C) the similarities without gradient, where there are few pairs.
    """

    extent: Extent | None = None
    row_span: tuple[int, int] | None = None
    same_sample: SameSample | None = None
    product: Tensor | None = None


@dataclass(frozen=True)
class Identities:
    """Which query and which document the pairs of anchors and of candidates consist of.

    Attributes:
        anchor_queries: (A,) the query of every anchor's pair.
        anchor_documents: (A,) its document.
        candidate_queries: (C,) the query of every candidate's pair; -1 for a given negative, which has none.
        candidate_documents: (C,) its document; negative for an empty slot.
    """

    anchor_queries: Tensor
    anchor_documents: Tensor
    candidate_queries: Tensor
    candidate_documents: Tensor


@dataclass(frozen=True, slots=True)
class Pairs:
    """Anchors, their positives and their candidates, all L2-normalised unless the loss compares dot products.

    An *id* says which sample an embedding shows: candidates of the anchor's own id are never its negatives. A *row*
    says where a sample stands in tables and labels. The two are equal unless several rows share an identity, such as
    five captions of one image or two records of one patient.

    Args:
        anchors: (A, D) with gradient.
        anchor_ids: (A,) identity of every anchor, by default its dataset index.
        positives: (A,) similarity of every anchor to its positive, with gradient; of pairs of a query and a document
            the similarity of these two, whatever the anchors are. Zeros without `has_positive`.
        candidates: (C, D), or None when the anchors themselves are the candidates (a batch on one rank).
        candidate_ids: (C,) identity of every candidate, -1 for an empty slot; None where candidates are.
        teachers: (A, D) the embedding of every anchor's positive, without gradient; for the treatment `refine`.
        supports: (A, D) the mean embedding of further views of every anchor's sample, without gradient; None unless
            the policy needs some (`Needs.supports`).
        anchor_rows: (A,) table row of every anchor; None takes the ids.
        candidate_rows: (C,) table row of every candidate, negative where it has none; None takes the ids.
        guide: The same anchors and candidates in the space of a guide, for policies that compare there.
        log_weights: (C,) by which every candidate's logit is raised, for candidates that were not drawn evenly.
        positive_log_weights: (A,) by which every positive's logit is raised.
        views: How many views of every sample are anchors; with 2 the second half of the anchors are the second views.
        has_positive: Whether every anchor has a view of its own as positive.
        block: What is compared, for pairs of a query and a document; None for views of samples.
        identities: Queries and documents of the pairs, where these have identities of their own.
        owners: Numbers of the anchors (A,), and for every candidate (C,) that of the anchor which it was given to as a
            hard negative, -1 for none.
        facts: What was measured about all of this already.
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
    has_positive: bool = True
    block: Block | None = None
    identities: Identities | None = None
    owners: tuple[Tensor, Tensor] | None = None
    facts: PairFacts = field(default_factory=PairFacts)

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
        if self._owners is not None:
            return self._in_chunks(rules, lambda part, some, rows: part.contrast(_rows(temperature, rows), some))
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
            extent=self.facts.extent,
            product=self.facts.product,
        )

    def count_above(self, thresholds: Tensor) -> Tensor:
        """How many candidates that count are more similar to every anchor than its threshold, (A,)."""
        if self._owners is not None:
            return torch.cat([_count(part, related, thresholds[rows]) for rows, _, part, related in self._chunks()])
        return count_above(
            self.anchors.detach(),
            None if self.candidates is None else self.candidates.detach(),
            thresholds,
            anchor_ids=self.anchor_ids,
            candidate_ids=self.candidate_ids,
            same_sample=self.same_sample,
            extent=self.facts.extent,
            product=self.facts.product,
        )

    def sigmoid(
        self, temperature: float | Tensor, bias: float | Tensor, rules: Rule | Sequence[Rule], soft: bool = False
    ) -> SigmoidSums:
        """The sums of SigLIP's loss over these pairs: per rule and anchor of what is kept, and of what is pulled.

        With `soft` what is pulled counts among the negatives, as labels between 0 and 1 need it.
        """
        if self._owners is not None:
            return self._in_chunks(
                rules, lambda part, some, rows: part.sigmoid(_rows(temperature, rows), bias, some, soft)
            )
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
            extent=self.facts.extent,
            soft=soft,
        )

    def measured(self, *numbers: Tensor) -> tuple[Pairs, list[float]]:
        """Read the facts about these pairs that are missing, and with them these numbers, in one synchronisation.

        Returns:
            The pairs with their facts, and the numbers.
        """
        keys, ids = self.keys()
        facts = replace(self.facts, same_sample=self.same_sample)
        if not (len(self.anchors) and len(keys)):
            return replace(self, facts=replace(facts, row_span=(0, -1))), read(*numbers)
        of_ids = (ids,) if self.candidates is None else (self.anchor_ids, ids)
        asked = [*Extent.numbers(self.anchors, self.candidates, *of_ids), *torch.aminmax(self.rows()[0])]
        answers = read(*asked, *numbers)
        *extent, lowest, highest = answers[: len(asked)]
        facts = replace(facts, extent=Extent(*extent), row_span=(int(lowest), int(highest)))
        return replace(self, facts=facts), answers[len(asked) :]

    @property
    def row_span(self) -> tuple[int, int]:
        """The lowest and the highest row of the anchors."""
        if self.facts.row_span is not None:
            return self.facts.row_span
        rows = self.rows()[0]
        lowest, highest = read(*torch.aminmax(rows)) if len(rows) else (0, -1)
        return int(lowest), int(highest)

    @property
    def same_sample(self) -> SameSample:
        """Which pairs never count: candidates that show the anchor's own sample, and empty slots."""
        found = self.facts.same_sample
        return SameSample(self.anchor_ids, self.candidate_ids) if found is None else found

    def _guides(self, rules: Rule | Sequence[Rule]) -> tuple[Tensor, Tensor | None] | None:
        """The guide's vectors, if a rule compares there."""
        rules = (rules,) if isinstance(rules, Rule) else rules
        if self.guide is None or not any(rule.needs_guide for rule in rules):
            return None
        return self.guide.anchors, self.guide.candidates

    @property
    def _owners(self) -> Excluded | None:
        """The relation of candidates that belong to one anchor each, or None."""
        same = self.facts.same_sample
        return same if isinstance(same, Excluded) and same.owners is not None else None

    def _chunks(self) -> Iterator[tuple[slice, slice, Pairs, Excluded]]:
        """Split pairs whose candidates belong to one anchor each, in the order of anchors: few pairs at a time.

        Yields:
            The anchors, the candidates that are theirs, the pairs of both, in which every candidate counts for every
            anchor, and which of these pairs count.
        """
        keys, ids = self.keys()
        each = len(keys) // max(len(self.anchors), 1)
        height = max(1, math.isqrt(FEW_PAIRS // max(each, 1)))
        candidate_rows, guide, related = self.rows()[1], self.guide, self._owners
        assert related is not None
        for start in range(0, len(self.anchors), height):
            rows = slice(start, min(start + height, len(self.anchors)))
            columns = slice(rows.start * each, rows.stop * each)
            seen = guide if guide is None else guide.part(rows, columns)
            here = related.part(rows, columns)
            yield (
                rows,
                columns,
                replace(
                    self,
                    anchors=self.anchors[rows],
                    anchor_ids=self.anchor_ids[rows],
                    positives=self.positives[rows],
                    candidates=keys[columns],
                    candidate_ids=ids[columns],
                    teachers=None,
                    supports=None,
                    anchor_rows=self.rows()[0][rows],
                    candidate_rows=candidate_rows[columns],
                    guide=seen,
                    log_weights=None if self.log_weights is None else self.log_weights[columns],
                    positive_log_weights=None,
                    identities=None,
                    owners=None,
                    facts=PairFacts(
                        self.facts.extent, None, Excluded(here.anchor_ids, here.candidate_ids, here.further)
                    ),
                ),
                here,
            )

    def _in_chunks(self, rules: Rule | Sequence[Rule], sums: Callable[[Pairs, list[Rule], slice], AnySums]) -> AnySums:
        """Sum chunk by chunk; the sums are those of all anchors."""
        rules = self.bounded((rules,) if isinstance(rules, Rule) else rules)
        positions = torch.arange(len(self.keys()[0]), device=self.anchors.device)
        parts = []
        for rows, columns, part, related in self._chunks():
            assert related.owners is not None
            of_their_own = Rule(groups=(Group(*related.owners, "only"),))
            some = []
            for rule in rules:
                here = rule.of_anchors(rows).of_candidates(positions[columns])
                some.append(replace(here & of_their_own, only_pulled=rule.only_pulled))
            parts.append(sums(part, some, rows))
        return type(parts[0])(*(torch.cat(column, dim=1) for column in zip(*parts, strict=True)))

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
        return replace(self, supports=mean.repeat(len(self.anchors) // len(mean), 1))

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
        """The same pairs without gradient."""
        keys = None if self.candidates is None else self.candidates.detach()
        return replace(self, anchors=self.anchors.detach(), positives=self.positives.detach(), candidates=keys)

    def linked(self, anchors: Tensor, candidates: Tensor | None = None) -> Pairs:
        """The pairs with gradients: these embeddings have the same numbers, and a graph behind them.

        Args:
            anchors: (A, D); without candidates the views of a batch, which are both.
            candidates: (A, D), of which each is the positive of the anchor in its row.
        """
        if candidates is None:
            return replace(self, anchors=anchors, positives=paired_similarity(anchors))
        positives = torch.linalg.vecdot(anchors, candidates)
        return replace(self, anchors=anchors, positives=positives, candidates=candidates)

    def with_guide(self, guide: Guide) -> Pairs:
        """The same pairs with a guide's vectors."""
        return replace(self, guide=guide)

    def against_guide(self) -> tuple[Pairs, Tensor]:
        """Compare the anchors with the guide's vectors: that of their own sample is the positive, those of the
        candidates are the candidates.

        Returns:
            The pairs, and which anchors (A,) the guide knows.

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
        # the same anchors and ids, and vectors of length 1: nothing has to be read again
        extent = None if self.facts.extent is None else self.facts.extent._replace(farthest=1.0)
        facts = PairFacts(extent, self.facts.row_span, self.facts.same_sample)
        positives = (self.anchors * own).sum(1)
        return Pairs(self.anchors, self.anchor_ids, positives, keys, self.keys()[1], facts=facts), found.any(1)

    def available(self) -> Tensor:
        """How many candidates every anchor has before any rule, (A,): filled slots of other samples."""
        return self.same_sample.available


def _rows(temperature: float | Tensor, rows: slice) -> float | Tensor:
    """The temperature of some anchors."""
    return temperature[rows] if isinstance(temperature, Tensor) and temperature.ndim else temperature


def _count(pairs: Pairs, related: Excluded, thresholds: Tensor) -> Tensor:
    """How many candidates of few pairs, among those that count, exceed their anchor's threshold, (A,)."""
    anchors, (keys, ids) = pairs.anchors.detach(), pairs.keys()
    return count_above(
        anchors, keys, thresholds, anchor_ids=pairs.anchor_ids, candidate_ids=ids, same_sample=related,
        product=anchors @ keys.detach().T,
    )  # fmt: skip
