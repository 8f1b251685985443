"""What all losses on pairs share: views in, pairs judged by the policy, the kernel's sums, a mean over anchors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from antipodes.candidates.batch import batch_pairs, single_view_pairs, unlinked_batch
from antipodes.distributed import gather, mean_over_anchors, world_size
from antipodes.functional.contrast import Sums, contrast_both
from antipodes.functional.normalise import Measured
from antipodes.functional.rule import EVERY_PAIR
from antipodes.functional.softmax_losses import SoftmaxLosses, Views
from antipodes.functional.tensors import NotFinite, eager_full_precision, has_zero, on_host
from antipodes.losses.base import LossModule, statistics
from antipodes.losses.distillation import Distillation
from antipodes.losses.dot import shrink
from antipodes.losses.inputs import (
    NOT_FINITE,
    Given,
    Ids,
    ViewFacts,
    check_call,
    examine_views,
    own_numbers,
    queue_pairs,
    share_of_training,
)
from antipodes.losses.mined import count_skipped
from antipodes.losses.observation import FlaggedPairs
from antipodes.losses.soft_targets import Refine
from antipodes.losses.step import Part, Step
from antipodes.losses.temperature import Temperature, check_temperature
from antipodes.negatives.policy import Policy
from antipodes.negatives.ranked import COLLAPSED, NARROW, negative_similarity
from antipodes.pairs import Guide, Pairs, Rule

TreatmentName = Literal["eliminate", "attract", "attract_inside", "refine"]
Reduction = Literal["mean", "none"]
Similarity = Literal["cosine", "dot"]
Contrast = Callable[[Pairs, float | Tensor, Sequence[Rule]], Sums]
"""Pairs, the temperature and rules to sums: `Pairs.contrast`, or another way to sum over what the rules keep."""

_PATIENCE = 2  # calls in a row whose ids are 0..B-1 before that is called odd


Treatment = TreatmentName | Refine


class Loss(LossModule, ABC):
    """A contrastive loss whose negatives a policy decides.

    Args:
        temperature: Divides the similarities: a number, or a `Temperature` that moves or learns.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate` takes them out of the sum, `attract` pulls them like
            positives (the mean over positives is outside the logarithm), `attract_inside` sums them with the positive
            inside the logarithm, and `refine` pulls each as much as the anchor's positive resembles it, with the
            numbers of `Refine`.
        reduction: `mean` over anchors, or `none` for the loss of every anchor, (A,): of a batch its first views, then
            its second ones.
        total_steps: How many calls the training will have. With it the loss counts them itself, and `progress`
            may be left out.
        distill: Let the anchors find the guide's vector of their sample as well.
    """

    general: ClassVar[bool] = True  # False: only methods that name it in their `trains` can train it
    whole: ClassVar[bool] = False  # True: on a bank it needs every entry, not a draw
    sums_positives: ClassVar[bool] = True  # False: the positive does not compete with the candidates
    pulls_inside: ClassVar[bool] = False  # True: it can sum positives inside the logarithm, and do without a view
    similarity: Similarity = "cosine"
    steps: Tensor

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        reduction: Reduction = "mean",
        total_steps: int | None = None,
        distill: Distillation | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(temperature, Temperature):
            check_temperature(temperature)
        if negatives is not None and not isinstance(negatives, Policy):
            raise ValueError(
                f"negatives must be a policy such as GloFND(num_samples=50_000), got {negatives!r}: "
                "names are for the command line"
            )
        self.soft_targets = treatment if isinstance(treatment, Refine) else Refine()
        self.treatment: TreatmentName = "refine" if isinstance(treatment, Refine) else treatment
        if self.treatment not in get_args(TreatmentName):
            raise ValueError(f"treatment must be one of {', '.join(get_args(TreatmentName))}, got {treatment!r}")
        if treatment != "eliminate" and negatives is None:
            raise ValueError(f"treatment {treatment!r} needs a policy that finds false negatives: give negatives")
        if self.treatment == "attract_inside" and not self.pulls_inside:
            raise ValueError(f"{type(self).__name__} has no logarithm of a sum of positives: give treatment='attract'")
        if self.treatment in ("eliminate", "attract_inside") and negatives is not None and negatives.needs.weighs:
            raise ValueError("the policy's weights say how much pairs are pulled: give treatment='attract' or 'refine'")
        if reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {total_steps}: it is the number of calls")
        self.temperature = temperature
        self.negatives = negatives
        self.reduction, self.total_steps, self.distill = reduction, total_steps, distill
        self.ask_guide: Callable[..., Guide] | None = None
        if total_steps is not None:
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def use_guide(self, ask_guide: Callable[..., Guide]) -> None:
        """Take a run's guide, which is asked in every call that gives none.

        Args:
            ask_guide: From pairs, and `learn`, whether it may learn from them, to the guide's view of the pairs.
        """
        self.ask_guide = ask_guide

    @eager_full_precision
    def forward(
        self,
        z1: Tensor,
        z2: Tensor | None = None,
        ids: Ids | None = None,
        *,
        rows: Ids | None = None,
        candidates: Tensor | None = None,
        candidate_ids: Ids | None = None,
        candidate_rows: Ids | None = None,
        gathered: bool | None = None,
        supports: Tensor | None = None,
        guide: tuple[Tensor, Tensor] | None = None,
        candidate_guide: Tensor | None = None,
        weights: Tensor | None = None,
        candidate_log_weights: Tensor | None = None,
        positive_log_weights: Tensor | None = None,
        temperature: float | Tensor | None = None,
        progress: float | None = None,
    ) -> Tensor:
        """The mean loss over this rank's anchors.

        Queries and documents, images and texts go through `OneWay` or `TwoWay` instead: without candidates this call
        also pushes z1 from z1 and z2 from z2.

        Args:
            z1: (B, D) embeddings of one view (the queries, when candidates are given); any length.
            z2: (B, D) embeddings of the other view (the keys); None if there is no other view: then the candidates that
                the policy flags are the positives, with `attract` or `attract_inside`.
            ids: (B,) dataset indices, as a tensor, list or array of whole numbers, or texts. They may be left out where
                neither a policy nor candidates need to know which sample is which.
            rows: (B,) where the samples stand in tables and labels; None takes the ids.
            candidates: (C, D) negatives from a queue or bank; then only z1 is an anchor. None: the batch, both ways.
            candidate_ids: (C,) their dataset indices, -1 for empty slots. A candidate of the anchor's own id or of -1
                does not count; mined negatives need the ids of the samples that they show, or ids that nothing else
                has. On the CPU the loss warns once of mined negatives that have the ids of their queries.
            candidate_rows: (C,) their rows, with `rows`; not needed if the candidates are z2.
            gathered: Whether all ranks give the same candidates, as a queue or bank that every rank holds (True), or
                each its own share, which are then joined (False). None finds out by comparing their ids over the ranks.
            supports: (S, B, D) embeddings of further views of the samples, for a policy that needs some.
            guide: A guide's vectors (B, G) of both views, for policies that compare there; any length.
            candidate_guide: (C, G) the guide's vectors of the candidates; not needed if the candidates are z2.
            weights: (B,) at least 0: the loss is then a weighted mean.
            candidate_log_weights: (C,), or (B,) without candidates: raises the logit of every candidate; bounds still
                compare the similarity itself. -log of the sampling probability is the logQ correction of Yi et al.,
                which is meant for all logits: without candidates a sample's weight is also that of its positive.
            positive_log_weights: (B,) raises the logits of the positives, with candidates: those of z2.
            temperature: In the place of the loss's own, for this call: a number, or a tensor of one with gradient.
            progress: Share of training done. It may be left out with `total_steps`, or if nothing depends on it.

        Raises:
            ValueError: for shapes that do not fit, candidates without ids, or embeddings that are not finite.
        """
        given = check_call(
            self, z1, z2, ids, rows, candidates, candidate_ids, candidate_rows, gathered, supports, guide,
            candidate_guide, weights, candidate_log_weights, positive_log_weights, temperature,
        )  # fmt: skip
        pairs, views = self.make_pairs(given)
        pairs = pairs if supports is None else pairs.with_supports(supports)
        weights = None if given.weights is None else given.weights.repeat(len(pairs.anchors) // len(given.weights))
        return self.evaluate_blocks([pairs], progress, weights, given.temperature, views)

    def make_pairs(self, given: Given) -> tuple[Pairs, Views | None]:
        """The pairs of a call; with its views, if `direct` may do without a link between these and the pairs."""
        if given.candidates is not None:
            pairs = queue_pairs(given)
            self._warn_of_skipped(given)
            return pairs, None
        if given.second is None:
            return single_view_pairs(given.first, given.ids, given.rows, given.log_weights, given.facts), None
        views = given.views
        plain = views is not None and given.log_weights is None and world_size() == 1
        if views is not None and plain and self.goes_direct(given.temperature):
            unit = views.measured.unit
            return unlinked_batch(unit, given.ids, given.distinct, given.rows, given.guide, given.facts), views
        teachers = self.treatment == "refine" or self.ask_guide is not None
        linked = torch.cat((given.first, given.second)) if views is None else views.joined()
        pairs = batch_pairs(
            linked, given.ids, given.rows, given.guide, given.log_weights, teachers, given.distinct, given.facts
        )
        return pairs, None

    @eager_full_precision
    def evaluate(
        self,
        pairs: Pairs,
        progress: float | None = None,
        contrast: Contrast = Pairs.contrast,
        weights: Tensor | None = None,
        temperature: float | Tensor | None = None,
    ) -> Tensor:
        """The mean loss of pairs that are ready (normalised, gathered); methods with a queue or bank use it.

        Args:
            pairs: What is compared.
            progress: Share of training done; see `forward`.
            contrast: How to sum over what the rules keep; the default takes every kept candidate once.
            weights: (A,) of the anchors, for a weighted mean.
            temperature: As in `forward`.
        """
        pairs, (total,) = pairs.measured(pairs.positives.detach().sum())
        if not math.isfinite(total):
            raise NotFinite(NOT_FINITE)
        step = self.begin(pairs, progress, temperature)
        return self.finish(step, self.sums(step, contrast), weights)

    def evaluate_blocks(
        self,
        blocks: Sequence[Pairs],
        progress: float | None = None,
        weights: Tensor | None = None,
        temperature: float | Tensor | None = None,
        views: Views | None = None,
    ) -> Tensor:
        """The mean loss of pairs whose candidates stand in one denominator.

        Args:
            blocks: As `OneWay` makes them; the first compares queries with documents. Or the pairs of a batch.
            progress: As in `forward`.
            weights: (A,) of the anchors.
            temperature: As in `forward`.
            views: What the one block was made of, if no gradient leads from it to them yet.
        """
        step = self.begin(blocks[0], progress, temperature, blocks[1:])
        if views is not None:
            found = self.direct([step], views)
            if found is not None:
                return self.finish_direct(step, found[0], weights)
            linked = (views.joined(),) if step.pairs.candidates is None else views.linked()
            step = step.linked(*linked)
        return self.finish(step, self.sums(step), weights)

    def goes_direct(self, temperature: float | Tensor | None = None) -> bool:
        """Whether `direct` can compute the loss of a plain batch, unless a rule of the policy forbids it."""
        return False

    def direct(self, steps: Sequence[Step], views: Views) -> list[SoftmaxLosses] | None:
        """The losses of one or two directions from views that are not linked to the graph; None if it cannot."""
        return None

    def finish_direct(self, step: Step, found: SoftmaxLosses, weights: Tensor | None = None) -> Tensor:
        """Turn what `direct` returned for this step into the loss, as `finish` does with the kernel's sums."""
        raise NotImplementedError

    def sums(self, step: Step, contrast: Contrast = Pairs.contrast) -> Sums:
        """The kernel's sums over what the rules keep, of all parts of the denominator."""
        sums = contrast(step.pairs, step.temperature, step.all_rules)
        further = [part.pairs.contrast(step.temperature, part.rules) for part in step.parts]
        return joined(sums, further) if further else sums

    def sums_both(self, step: Step, other: Step) -> tuple[Sums, Sums]:
        """The sums of two directions, whose anchors are each other's candidates, from one product of similarities."""
        pairs, guide = step.pairs, step.pairs.guide
        return contrast_both(
            pairs.anchors,
            other.pairs.anchors,
            first_ids=pairs.anchor_ids,
            second_ids=other.pairs.anchor_ids,
            temperature=step.temperature,
            first_rules=step.all_rules,
            second_rules=other.all_rules,
            guide=None if guide is None else (guide.anchors, guide.keys()),
            extent=pairs.facts.extent,
        )

    @property
    def shares_product(self) -> bool:
        """Whether two directions may come from one product of similarities (`sums_both`)."""
        return True

    def shared_parts(self) -> list[nn.Module | nn.Parameter]:
        """What two directions of one loss have in common: a temperature, unless every sample has its own."""
        learned = isinstance(self.temperature, Temperature) and self.temperature.per_sample is None
        return [self.temperature] if learned else []  # type: ignore[list-item]

    def begin(
        self,
        pairs: Pairs,
        progress: float | None = None,
        temperature: float | Tensor | None = None,
        blocks: Sequence[Pairs] = (),
    ) -> Step:
        """Judge the pairs: what `evaluate` does before the kernel sums.

        Tables learn from the first pairs alone, and what they have learned applies to all blocks.
        """
        progress, learn = self._progress(progress), self.learning
        if self.ask_guide is not None and pairs.guide is None:
            pairs = pairs.with_guide(self.ask_guide(pairs, learn=learn))
        rules: Sequence[Rule] = EVERY_PAIR
        of_blocks: list[Sequence[Rule]] = [rules] * len(blocks)
        policy = self.negatives
        if policy is not None:
            self._check_needs(policy, pairs, blocks)
            with torch.no_grad():
                rules = self.judge(pairs, progress, learn)
                of_blocks = [self.judge(block, progress, learn=False) for block in blocks]
            self._observe(lambda: FlaggedPairs(pairs.detached(), rules))
            if policy.needs.order:
                self._warn_of_collapse(pairs, rules)
        if temperature is None:
            temperature = self.temperature  # type: ignore[assignment]
            if isinstance(temperature, Temperature):
                temperature = temperature(pairs.rows()[0], progress)
        treated, further = self.treat(pairs, rules), self.extra_rules(pairs, progress, learn)
        parts, again = [], False
        if blocks:
            if further:
                raise ValueError(f"{type(self).__name__} compares two sets of candidates: it has no further blocks")
            several = max(len(each) for each in (treated, *of_blocks))
            treated = _repeated(treated, several)
            for block, judged in zip(blocks, of_blocks, strict=True):
                of_block = _repeated(self.treat(block, judged), several)
                parts.append(Part(block, [*of_block, *self.inside(of_block)]))
                again = again or block.block == "document_to_query"
        extra = (*self.inside(treated), *further)
        step = Step(pairs, progress, learn, temperature, treated, extra, tuple(parts), positive_again=again)  # type: ignore[arg-type]
        return step if self.similarity == "cosine" else shrink(step)

    def treat(self, pairs: Pairs, rules: Sequence[Rule]) -> Sequence[Rule]:
        """The rules with false negatives dropped or pulled, as the treatment says."""
        if self.treatment == "attract_inside":
            return [rule.eliminate() for rule in pairs.bounded(rules)]
        treated = rules if self.treatment == "eliminate" else [rule.attract() for rule in rules]
        policy = self.negatives
        if self.treatment == "refine" or (policy is not None and policy.needs.reweighs):
            treated = pairs.bounded(treated)
        return treated

    def inside(self, treated: Sequence[Rule]) -> Sequence[Rule]:
        """Rules that sum what stands with the positive inside the logarithm."""
        if self.treatment != "attract_inside":
            return ()
        return [replace(rule.attract(), only_pulled=True) for rule in treated]

    def finish(self, step: Step, sums: Sums, weights: Tensor | None = None) -> Tensor:
        """Turn the kernel's sums into the loss: what `evaluate` does after the kernel."""
        return self._conclude(step, self.reweighed_value(step, sums), weights)

    def reweighed_value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A), of sums that the policy and the treatment may change first."""
        if self.negatives is not None and self.negatives.needs.reweighs:
            sums = self.negatives.reweigh(step.pairs, step.rules, sums, step.temperature)
        count = len(step.rules)  # what the loss needs besides comes last
        kept, pulled = sums.kept[:count], sums.pulled[:count]
        if self.treatment == "attract_inside":
            pulled = sums.kept[count : 2 * count]
            kept = kept + pulled
        self.take_down(step, kept, pulled)
        if self.treatment == "refine":
            sums, self._record.numbers["refined_mass"] = self.soft_targets.relabel(step, sums)
        return self.value(step, sums)

    def take_down(self, step: Step, kept: Tensor | None, pulled: Tensor | None = None) -> None:
        """Keep what a log shows of this step, and warn of what is odd about it; numbers as in `statistics`."""
        blocks = [part.pairs for part in step.parts] if step.parts else ()
        self._report({}, statistics(step.pairs, step.rules, kept, pulled, blocks, step.scale**2))
        if self._record.ignored is not None:
            self._record.numbers["given_ignored"] = self._record.ignored
            self._record.ignored = None
        policy = self.negatives
        if policy is not None:
            self._record.numbers |= policy.statistics()
        if isinstance(step.temperature, Tensor):
            self._record.numbers["temperature"] = step.temperature.detach().mean()
        self._warn_of_none_left(step.pairs, kept)

    def _conclude(self, step: Step, losses: Tensor, weights: Tensor | None) -> Tensor:
        """Count the step, and reduce the losses of anchors (A,), or of rules and anchors (R, A)."""
        if self.distill is not None:
            besides = self.distill.losses(step.pairs)
            self._record.numbers["distill"] = besides.detach().mean()
            losses = losses + besides
        if step.learn and self.total_steps is not None:
            self.steps += 1
        if weights is None and self.reduction == "mean":
            return mean_over_anchors(losses)
        return self._reduce(losses if losses.ndim == 1 else losses.mean(0), weights)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """The rules of the policy."""
        policy = self.negatives
        return EVERY_PAIR if policy is None else policy.rules(pairs, progress, learn)

    def extra_rules(self, pairs: Pairs, progress: float, learn: bool) -> Sequence[Rule]:
        """Rules whose sums the loss needs in addition to those of the policy; they come last."""
        return ()

    @property
    def uses_progress(self) -> bool:
        """Whether the loss depends on the share of training done."""
        temperature, policy = self.temperature, self.negatives
        if isinstance(temperature, Temperature) and temperature.uses_progress:
            return True
        return policy is not None and policy.uses_progress

    @property
    def needs_rows(self) -> bool:
        """Whether a policy, the temperature or the loss itself looks samples up in tables."""
        per_sample = isinstance(self.temperature, Temperature) and self.temperature.per_sample is not None
        return per_sample or any(policy.needs.rows for policy in self.policies())

    @property
    def uses_guide(self) -> bool:
        """Whether a policy, the treatment or the loss itself compares in the guide's space."""
        refined = self.treatment == "refine" and self.soft_targets.space == "guide"
        return refined or self.distill is not None or any(policy.needs.guide for policy in self.policies())

    @abstractmethod
    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A)."""

    def target(self, step: Step, sums: Sums) -> Tensor:
        """What is pulled: the similarity of the positive and of the pulled candidates, a weighted mean per anchor."""
        if self.treatment == "eliminate":
            return step.pairs.positives
        if not (self.soft_targets.positive and step.pairs.has_positive):
            return sums.pulled_sum / torch.where(sums.pulled > 0, sums.pulled, 1.0)
        return (step.pairs.positives + sums.pulled_sum) / (1 + sums.pulled)

    def _check_needs(self, policy: Policy, pairs: Pairs, blocks: Sequence[Pairs]) -> None:
        """Refuse pairs that lack what the policy compares with."""
        needs, name = policy.needs, type(policy).__name__
        if needs.positive and not pairs.has_positive:
            raise ValueError(f"{name} compares with the anchor's own positive: give z2, the other views")
        if needs.identities and pairs.identities is None:
            raise ValueError(
                f"{name} looks queries and documents up by their identities: "
                "give OneWay or TwoWay ids=(query_ids, document_ids)"
            )
        if blocks and (needs.reweighs or self.treatment == "refine"):
            what = "refine" if self.treatment == "refine" else name
            raise ValueError(f"{what} changes the sum over one block of candidates: leave the further blocks out")

    def _warn_of_skipped(self, given: Given) -> None:
        """Warn of mined negatives that their ids leave out; checked where reading is free, and ever more seldom."""
        calls = self._record.calls
        candidates, candidate_ids, second = given.candidates, given.candidate_ids, given.raw_second
        if candidates is None or candidate_ids is None or second is None:
            return
        if calls & (calls - 1) or not on_host(candidates) or self._record.skipped:
            return
        self._record.skipped = count_skipped(second, given.ids, candidates, candidate_ids)
        if self._record.skipped:
            self.warn_once(
                f"{self._record.skipped} of {len(candidates)} candidates have the id of the anchor at their place or "
                "-1 and do not count for it: a mined negative needs in candidate_ids the id of the sample that it shows"
            )

    def count_ignored(self, ignored: Tensor, given_ids: Tensor) -> None:
        """Count given negatives (B K,) that have their anchor's own document, and warn of them once."""
        self._record.ignored = ignored
        calls = self._record.calls
        due = on_host(ignored) or calls & (calls - 1) == 0
        if due and int(ignored):
            self.warn_once(
                f"{int(ignored)} of {len(given_ids)} hard_negatives have the document id of their own anchor and are "
                "ignored: a negative must be another document"
            )

    def _warn_of_collapse(self, pairs: Pairs, rules: Sequence[Rule]) -> None:
        """Warn where a policy goes by the order of nearly equal similarities; checked in calls 1, 2, 4, 8, ..."""
        ranked = any(rule.ranks for rule in rules)
        if not ranked or self.similarity != "cosine" or COLLAPSED in self._record.warned:
            return
        record = self._record
        record.rankings += 1
        if record.rankings & (record.rankings - 1) == 0 and negative_similarity(pairs).item() > NARROW:
            self.warn_once(COLLAPSED)

    def _warn_of_none_left(self, pairs: Pairs, kept: Tensor | None) -> None:
        """Warn where an anchor has no negatives left; checked where reading is free, and in calls 1, 2, 4, 8, ...

        Args:
            pairs: What was compared.
            kept: (R, A) how many candidates were kept; None for all of other samples.
        """
        record = self._record
        record.calls += 1
        same_sample = pairs.facts.same_sample
        if _NONE_LEFT in record.warned or (kept is None and same_sample is not None and same_sample.leaves_some):
            return
        kept = pairs.available() if kept is None else kept
        due = on_host(kept) or record.calls & (record.calls - 1) == 0
        if due and has_zero(kept.detach()):
            ids = pairs.candidate_ids
            if ids is None or bool((ids >= 0).any()):  # else it is the first step of a queue
                self.warn_once(_NONE_LEFT)

    def _progress(self, progress: float | None) -> float:
        """The share of training done: as told, as counted, or the end where it makes no difference."""
        if progress is not None:
            return share_of_training(progress)
        if self.total_steps is not None:
            return min(1.0, int(self.steps) / self.total_steps)
        if self.uses_progress:
            raise ValueError(
                "this loss changes with training and was not told how far it is: "
                "give progress= (0 to 1) to every call, or total_steps= to the constructor"
            )
        return 1.0

    def _reduce(self, losses: Tensor, weights: Tensor | None) -> Tensor:
        """The mean over anchors, weighted by weights whose total all ranks share; or the losses themselves."""
        if weights is None:
            return losses
        weights = weights.detach().to(losses)
        if self.reduction == "none":
            return weights * losses
        total = gather(weights.sum()[None]).sum() / world_size()  # so that the mean over ranks is the global one
        return (weights * losses).sum() / torch.where(total > 0, total, 1.0)

    def own_ids(self, z1: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Ids where none were given, if nothing needs to know them."""
        if candidates is not None or self.needs_rows:
            who = "candidates" if candidates is not None else "the policy or the loss"
            raise ValueError(f"ids are missing: {who} must know which sample is which, give dataset indices (B,)")
        return own_numbers(len(z1), z1)

    def check_views(self, measured: Sequence[Measured], ids: Tensor, rows: Tensor | None = None) -> ViewFacts:
        """Refuse ids and embeddings that make no sense, and warn of odd ones; everything in one read.

        Args:
            measured: The views, in one pass or one after the other.
            ids: (B,) identities of the samples.
            rows: (B,) where they stand in tables; None takes the ids.
        """
        seen = examine_views(measured, ids, rows)
        (lowest, highest), count = seen.rows, ids.shape[0]
        if seen.shortest == 0 and self.similarity == "cosine":
            self.warn_once("some embeddings are zero vectors: their similarities are 0 and they get no gradient")
        local = self.learning and lowest == 0 < highest and self._table_rows() >= 10 * count
        record = self._record
        record.local_ids = record.local_ids + 1 if local and highest == count - 1 else 0
        if record.local_ids == _PATIENCE:
            self.warn_once(
                f"ids were 0..{highest} in {_PATIENCE} calls in a row, with tables of {self._table_rows()} rows: "
                "they must be positions in the dataset, not in the batch"
            )
        return seen

    def _table_rows(self) -> int:
        """The size of the dataset, as far as tables know it."""
        per_sample = self.temperature.per_sample if isinstance(self.temperature, Temperature) else None
        return max([per_sample or 0, *(policy.num_samples or 0 for policy in self.policies())])


_NONE_LEFT = "some anchors have no negatives left: nothing pushes them"


def joined(sums: Sums, further: Sequence[Sums]) -> Sums:
    """The sums of several sets of candidates in one denominator: logarithms of sums add up in the exponent."""
    every = (sums, *further)
    log_sum = sums.log_sum
    for each in further:
        log_sum = add_in_log(log_sum, each.log_sum)
    kept, pulled_sum, pulled = (sum(column[1:], column[0]) for column in list(zip(*every, strict=True))[1:])
    return Sums(log_sum, kept, pulled_sum, pulled)


def add_in_log(a: Tensor, b: Tensor) -> Tensor:
    """log(e^a + e^b), also where both are -inf, with no gradient there."""
    nothing = (a == -torch.inf) & (b == -torch.inf)
    total = torch.logaddexp(a.masked_fill(nothing, 0.0), b.masked_fill(nothing, 0.0))
    return total.masked_fill(nothing, -torch.inf)


def _repeated(rules: Sequence[Rule], count: int) -> Sequence[Rule]:
    """One rule so many times, or as many rules as there are."""
    return [*rules] * count if len(rules) == 1 and count > 1 else rules
