"""What all losses on pairs share: views in, pairs judged by the policy, the kernel's sums, a mean over anchors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from antipodes.candidates.batch import batch_pairs, small_batch
from antipodes.distributed import gather, world_size
from antipodes.functional._compiling import eager_full_precision
from antipodes.functional._reading import has_zero, on_host
from antipodes.functional.batch_softmax import Views
from antipodes.functional.contrast import contrast_both
from antipodes.functional.errors import NotFinite
from antipodes.functional.normalise import Measured, measure
from antipodes.functional.sums import Sums
from antipodes.losses.base import LossModule
from antipodes.losses.distillation import Distillation
from antipodes.losses.inputs import (
    Ids,
    check_embeddings,
    check_length,
    check_shapes,
    check_supports,
    check_weights,
    own_numbers,
    queue_pairs,
    share_of_training,
    view_guide,
    whole_numbers,
)
from antipodes.losses.mined import count_skipped
from antipodes.losses.observation import FlaggedPairs
from antipodes.losses.shares import check_shares
from antipodes.losses.soft_targets import Refine
from antipodes.losses.step import Step, statistics
from antipodes.losses.temperature import Temperature, check_temperature
from antipodes.losses.views import NOT_FINITE, ViewFacts, examine_views
from antipodes.negatives.collapse import COLLAPSED, NARROW, negative_similarity
from antipodes.negatives.policy import Policy
from antipodes.pairs import Guide, Pairs, Rule

TreatmentName = Literal["eliminate", "attract", "refine"]
Reduction = Literal["mean", "none"]
Contrast = Callable[[Pairs, Any, Sequence[Rule]], Sums]
"""Pairs, the temperature and rules to sums: `Pairs.contrast`, or another way to sum over what the rules keep."""

_PATIENCE = 2  # calls in a row whose ids are 0..B-1 before that is called odd


Treatment = TreatmentName | Refine


class Loss(LossModule, ABC):
    """A contrastive loss whose negatives a policy decides.

    Args:
        temperature: Divides the similarities: a number, or a `Temperature` that moves or learns.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate` takes them out of the sum, `attract` pulls them like
            positives, `refine` pulls each as much as the anchor's positive resembles it, with the numbers of `Refine`.
        reduction: `mean` over anchors, or `none` for the loss of every anchor, (A,): of a batch its first views, then
            its second ones.
        total_steps: How many calls the training will have. With it the loss counts them itself, and `progress`
            may be left out.
        distill: Let the anchors find the guide's vector of their sample as well.
    """

    general: ClassVar[bool] = True  # False: only methods that name it in their `trains` can train it
    whole: ClassVar[bool] = False  # True: on a bank it wants every entry, not a draw
    sums_positives: ClassVar[bool] = True  # False: the positive does not compete with the candidates
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
        if self.treatment == "eliminate" and negatives is not None and negatives.weighs:
            raise ValueError("the policy's weights say how much pairs are pulled: give treatment='attract' or 'refine'")
        if reduction not in get_args(Reduction):
            raise ValueError(f"reduction must be one of {', '.join(get_args(Reduction))}, got {reduction!r}")
        if total_steps is not None and total_steps < 1:
            raise ValueError(f"total_steps must be at least 1, got {total_steps}: it is the number of calls")
        self.temperature = temperature
        self.negatives = negatives
        self.reduction, self.total_steps, self.distill = reduction, total_steps, distill
        # a run's guide: pairs, and whether it may learn from them, to the same pairs in its space
        self.ask_guide: Callable[..., Guide] | None = None
        if total_steps is not None:
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @eager_full_precision
    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
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
        progress: float | None = None,
    ) -> Tensor:
        """The mean loss over this rank's anchors.

        Args:
            z1: (B, D) embeddings of one view (the queries, when candidates are given); any length.
            z2: (B, D) embeddings of the other view (the keys).
            ids: (B,) dataset indices, as a tensor, list or array of whole numbers. They may be left out where neither a
                policy nor candidates need to know which sample is which.
            rows: (B,) where the samples stand in tables and labels; only if several share an id.
            candidates: (C, D) negatives from a queue or bank; then only z1 is an anchor. None: the batch, both ways.
            candidate_ids: (C,) their dataset indices, -1 for empty slots. A candidate of the anchor's own id or of -1
                does not count; mined negatives need the ids of the samples that they show, or ids that nothing else
                has. On the CPU the loss warns once of mined negatives that have the ids of their queries.
            candidate_rows: (C,) their rows, with `rows`.
            gathered: Whether all ranks give the same candidates, as a queue or bank that every rank holds (True), or
                each its own share, which are then joined (False). None finds out by comparing their ids over the ranks.
            supports: (S, B, D) embeddings of further views of the samples, for a policy that asks for some.
            guide: A guide's vectors (B, G) of both views, for policies that look there; any length.
            candidate_guide: (C, G) the guide's vectors of the candidates.
            weights: (B,) at least 0: the loss is then a weighted mean.
            candidate_log_weights: (C,), or (B,) without candidates: raises the logit of every candidate; bounds still
                compare the similarity itself. -log of the sampling probability is the logQ correction of Yi et al.,
                which is meant for all logits: without candidates a sample's weight is also that of its positive.
            positive_log_weights: (B,) raises the logits of the positives, with candidates: those of z2.
            progress: Share of training done. It may be left out with `total_steps`, or if nothing depends on it.

        Raises:
            ValueError: for shapes that do not fit, candidates without ids, or embeddings that are not finite.
        """
        if (candidates is None) != (candidate_ids is None):
            raise ValueError("candidates and candidate_ids go together: the ids keep an anchor's own copy out")
        check_embeddings(z1=z1, z2=z2, candidates=candidates)
        numbers = None if ids is None else whole_numbers(ids, z1)
        check_shapes(z1, z2, numbers)
        if numbers is None:
            numbers = self.own_ids(z1, candidates)
        places = None if rows is None else whole_numbers(rows, z1, "rows")
        check_length("rows", places, len(z1))
        if supports is not None:
            check_supports(supports, z1)
        if weights is not None:
            check_weights("weights", weights, len(z1), least=0)
        if candidate_log_weights is not None or positive_log_weights is not None:
            raised = len(z1 if candidates is None else candidates)
            check_weights("candidate_log_weights", candidate_log_weights, raised)
            self._check_positives(positive_log_weights, candidate_log_weights, candidates, len(z1))
        # in one go, and linked to the graph once it is known how: small batches pay by the operation
        views = Views(z1, z2, measure(torch.cat((z1.detach(), z2.detach()))))
        seen, small = self.check_views([views.measured], numbers, places), False
        vectors = view_guide(guide, len(z1))
        if candidates is None or candidate_ids is None:
            check_shares(z1, z2, numbers)
            asks = self.ask_guide is not None or self.distill is not None
            plain = world_size() == 1 and candidate_log_weights is None and not asks
            small = plain and self.goes_direct(views.measured.unit)
            if small:
                pairs = small_batch(views.measured.unit, numbers, seen.distinct, places, vectors)
            else:
                teachers = self.treatment == "refine" or self.ask_guide is not None
                pairs = batch_pairs(
                    views.linked(), numbers, places, vectors, candidate_log_weights, teachers, seen.distinct
                )
        else:
            first, second = views.linked().chunk(2)
            key_ids = whole_numbers(candidate_ids, z1, "candidate_ids")
            key_rows = None if candidate_rows is None else whole_numbers(candidate_rows, z1, "candidate_rows")
            pairs = queue_pairs(
                first, second, numbers, candidates, key_ids, places, key_rows, vectors, candidate_guide,
                candidate_log_weights, positive_log_weights, gathered,
            )  # fmt: skip
            self._warn_of_skipped(z2, numbers, candidates, key_ids)
        if pairs.candidates is None:
            pairs.remember(*seen.known())
        if weights is not None:
            weights = weights.repeat(len(pairs.anchors) // len(z1))
        step = self.begin(pairs.with_supports(supports), progress)
        if small:
            losses = self.direct(step, views)
            if losses is not None:
                return self._conclude(step, losses, weights)
            step = step.linked(views)
        return self.finish(step, self.sums(step), weights)

    @eager_full_precision
    def evaluate(
        self,
        pairs: Pairs,
        progress: float | None = None,
        contrast: Contrast = Pairs.contrast,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The mean loss of pairs that are ready (normalised, gathered); methods with a queue or bank come in here.

        Args:
            pairs: What is compared.
            progress: Share of training done; see `forward`.
            contrast: How to sum over what the rules keep; the default takes every kept candidate once.
            weights: (A,) of the anchors, for a weighted mean.
        """
        if not math.isfinite(pairs.measure(pairs.positives.detach().sum())[0]):
            raise NotFinite(NOT_FINITE)
        step = self.begin(pairs, progress)
        return self.finish(step, self.sums(step, contrast), weights)

    def goes_direct(self, unit: Tensor) -> bool:
        """Whether `direct` may have a quicker way for a batch of these views (2b, D), unless the policy forbids it."""
        return False

    def direct(self, step: Step, views: Views) -> Tensor | None:
        """The loss per anchor, (A,), from views that are not linked to the graph; None if it needs the kernel's sums.

        It then takes the statistics down as well (`take_down`).
        """
        return None

    def sums(self, step: Step, contrast: Contrast = Pairs.contrast) -> Sums:
        """The kernel's sums over what the rules keep."""
        return contrast(step.pairs, step.temperature, step.all_rules)

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
            extent=pairs.extent,
        )

    def shared_parts(self) -> list[nn.Module | nn.Parameter]:
        """What two directions of one loss have in common: a temperature, unless every sample has its own."""
        learned = isinstance(self.temperature, Temperature) and self.temperature.per_sample is None
        return [self.temperature] if learned else []  # type: ignore[list-item]

    def begin(self, pairs: Pairs, progress: float | None = None) -> Step:
        """Judge the pairs: what `evaluate` does before the kernel sums."""
        progress, learn = self._progress(progress), self.learning
        if self.ask_guide is not None and pairs.guide is None:
            pairs = pairs.with_guide(self.ask_guide(pairs, learn=learn))
        rules: Sequence[Rule] = [Rule()]
        if self.negatives is not None:
            with torch.no_grad():
                rules = self.judge(pairs, progress, learn)
            self._observe(lambda: FlaggedPairs(pairs.detached(), rules))
            self._warn_of_collapse(pairs, rules)
        treated = rules if self.treatment == "eliminate" else [rule.attract() for rule in rules]
        if self.treatment == "refine" or (self.negatives is not None and self.negatives.reweighs):
            treated = pairs.bounded(treated)
        temperature = self.temperature
        if isinstance(temperature, Temperature):
            temperature = temperature(pairs.rows()[0], progress)
        return Step(pairs, progress, learn, temperature, treated, self.extra_rules(pairs, progress, learn))

    def finish(self, step: Step, sums: Sums, weights: Tensor | None = None) -> Tensor:
        """Turn the kernel's sums into the loss: what `evaluate` does after the kernel."""
        if self.negatives is not None and self.negatives.reweighs:
            sums = self.negatives.reweigh(step.pairs, step.rules, sums, step.temperature)
        policy = slice(len(step.rules))  # what the loss needs besides comes last
        self.take_down(step, sums.kept[policy], sums.pulled[policy])
        if self.treatment == "refine":
            sums, self._record.numbers["refined_mass"] = self.soft_targets.relabel(step, sums)
        return self._conclude(step, self.value(step, sums), weights)

    def take_down(self, step: Step, kept: Tensor | None, pulled: Tensor | None = None) -> None:
        """Keep what a log shows of this step, and warn of what is odd about it; numbers as in `statistics`."""
        self._report({}, statistics(step.pairs, step.rules, kept, pulled))
        if self.negatives is not None:
            self._record.numbers |= self.negatives.statistics()
        if isinstance(step.temperature, Tensor):
            self._record.numbers["temperature"] = step.temperature.detach().mean()
        if kept is not None:
            self._warn_of_nobody(step.pairs, kept)

    def _conclude(self, step: Step, losses: Tensor, weights: Tensor | None) -> Tensor:
        """Count the step, and reduce the losses of anchors (A,), or of rules and anchors (R, A)."""
        if self.distill is not None:
            besides = self.distill.losses(step.pairs)
            self._record.numbers["distill"] = besides.detach().mean()
            losses = losses + besides
        if step.learn and self.total_steps is not None:
            self.steps += 1
        if weights is None and self.reduction == "mean":
            return losses.mean()
        return self._reduce(losses if losses.ndim == 1 else losses.mean(0), weights)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """The rules of the policy."""
        return [Rule()] if self.negatives is None else self.negatives.judge(pairs, progress, learn=learn)

    def extra_rules(self, pairs: Pairs, progress: float, learn: bool) -> Sequence[Rule]:
        """Rules whose sums the loss needs beside those of the policy; they come last."""
        return ()

    @property
    def uses_progress(self) -> bool:
        """Whether the loss depends on the share of training done."""
        by_policy = any(policy.uses_progress for policy in self.policies())
        return by_policy or (isinstance(self.temperature, Temperature) and self.temperature.uses_progress)

    @property
    def uses_guide(self) -> bool:
        """Whether a policy, the treatment or the loss itself looks at the guide's space."""
        refined = self.treatment == "refine" and self.soft_targets.space == "guide"
        return refined or self.distill is not None or any(policy.uses_guide for policy in self.policies())

    @abstractmethod
    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A)."""

    def target(self, step: Step, sums: Sums) -> Tensor:
        """What is pulled: the similarity of the positive and of the pulled candidates, a weighted mean per anchor."""
        if self.treatment == "eliminate":
            return step.pairs.positives
        if not self.soft_targets.positive:
            return sums.pulled_sum / torch.where(sums.pulled > 0, sums.pulled, 1.0)
        return (step.pairs.positives + sums.pulled_sum) / (1 + sums.pulled)

    def _warn_of_skipped(self, z2: Tensor, ids: Tensor, candidates: Tensor, candidate_ids: Tensor) -> None:
        """Warn of mined negatives that their ids leave out; looked at where reading is free, and ever more seldom."""
        calls = self._record.calls
        if calls & (calls - 1) or not on_host(candidates) or self._record.skipped:
            return
        self._record.skipped = count_skipped(z2, ids, candidates, candidate_ids)
        if self._record.skipped:
            self._warn(
                f"{self._record.skipped} of {len(candidates)} candidates have the id of the anchor at their place or "
                "-1 and do not count for it: a mined negative needs in candidate_ids the id of the sample that it shows"
            )

    def _warn_of_collapse(self, pairs: Pairs, rules: Sequence[Rule]) -> None:
        """Warn where a policy goes by the order of nearly equal similarities; looked at in calls 1, 2, 4, 8, ..."""
        ranked = self.negatives is not None and self.negatives.ranks and any(rule.ranks for rule in rules)
        if not ranked or COLLAPSED in self._record.warned:
            return
        record = self._record
        record.rankings += 1
        if record.rankings & (record.rankings - 1) == 0 and negative_similarity(pairs).item() > NARROW:
            self._warn(COLLAPSED)

    def _warn_of_nobody(self, pairs: Pairs, kept: Tensor) -> None:
        """Warn where an anchor has no negatives left; looked at where it is free, and in calls 1, 2, 4, 8, ..."""
        record = self._record
        record.calls += 1
        due = on_host(kept) or record.calls & (record.calls - 1) == 0
        if due and _NONE_LEFT not in record.warned and has_zero(kept.detach()):
            ids = pairs.candidate_ids
            if ids is None or bool((ids >= 0).any()):  # else it is the first step of a queue
                self._warn(_NONE_LEFT)

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
        """Ids where none were given, if nobody needs to know them."""
        per_sample = isinstance(self.temperature, Temperature) and self.temperature.per_sample is not None
        if candidates is not None or per_sample or any(policy.by_row for policy in self.policies()):
            who = "candidates" if candidates is not None else "the policy or the loss"
            raise ValueError(f"ids are missing: {who} must know which sample is which, give dataset indices (B,)")
        return own_numbers(len(z1), z1)

    def check_views(self, measured: Sequence[Measured], ids: Tensor, rows: Tensor | None = None) -> ViewFacts:
        """Refuse ids and embeddings that make no sense, and warn of odd ones; everything in one read.

        Args:
            measured: The views, together or one after the other.
            ids: (B,) identities of the samples.
            rows: (B,) where they stand in tables; None takes the ids.
        """
        seen = examine_views(measured, ids, rows)
        (lowest, highest), count = seen.rows, ids.shape[0]
        if seen.shortest == 0:
            self._warn("some embeddings are zero vectors: their similarities are 0 and they get no gradient")
        local = self.learning and lowest == 0 < highest and self._table_rows() >= 10 * count
        record = self._record
        record.local_ids = record.local_ids + 1 if local and highest == count - 1 else 0
        if record.local_ids == _PATIENCE:
            self._warn(
                f"ids were 0..{highest} in {_PATIENCE} calls in a row, with tables of {self._table_rows()} rows: "
                "they must be positions in the dataset, not in the batch"
            )
        return seen

    def _check_positives(
        self, weights: Tensor | None, of_candidates: Tensor | None, candidates: Tensor | None, count: int
    ) -> None:
        """Refuse log weights of positives that do not fit, and warn where only the candidates have some."""
        if weights is not None and candidates is None:
            raise ValueError("without candidates the positives have the weights of their samples: leave them out")
        check_weights("positive_log_weights", weights, count)
        if self.sums_positives and weights is None and of_candidates is not None and candidates is not None:
            self._warn(_ONE_SIDED)

    def _table_rows(self) -> int:
        """The size of the dataset, as far as tables know it."""
        per_sample = self.temperature.per_sample if isinstance(self.temperature, Temperature) else None
        return max([per_sample or 0, *(policy.num_samples or 0 for policy in self.policies())])


_ONE_SIDED = (
    "candidate_log_weights without positive_log_weights leave the positives' logits as they are: "
    "a logQ correction is meant for both"
)
_NONE_LEFT = "some anchors have no negatives left: nothing pushes them"
