"""`Ring` and `Hardest`: negatives by their rank, and the collapse in which ranks mean nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from antipodes import schedules
from antipodes.distributed import gather
from antipodes.functional.select import whole_below
from antipodes.negatives.policy import Needs, Numbers, Policy, Receives
from antipodes.pairs import Pairs, Ranks, Rule

NARROW = 0.5  # mean similarity of candidates above which their order says little

COLLAPSED = (
    f"the embeddings have nearly collapsed: the candidates' mean similarity exceeds {NARROW}, so their order is mostly "
    "noise; end the head centred (--head.centred true), or let the ring wait (anneal='collapse')"
)


@torch.no_grad()
def negative_similarity(pairs: Pairs, over_ranks: bool = False) -> Tensor:
    """The mean similarity of anchors to candidates of other samples, a scalar; NaN where there are none.

    The sum over all pairs is the product of two sums, (sum_i a_i) . (sum_k c_k). The few pairs of the same sample are
    subtracted one by one, and empty slots never enter.

    Args:
        pairs: Anchors and candidates, normalised.
        over_ranks: Whether to take the mean over the anchors of all ranks; all must call then.

    Example:
        >>> negative_similarity(Pairs(torch.eye(3), torch.arange(3), torch.ones(3)))
        tensor(0.)
    """
    total, count = _total(pairs)
    if over_ranks:
        total, count = gather(torch.stack((total, count))[None]).sum(0)
    return torch.where(count > 0, total / count, torch.nan)


def later(pairs: Pairs) -> Callable[[], Tensor]:
    """The mean similarity for whoever asks for it after the step, without holding on to the graph.

    What belongs to this step is measured on demand. Candidates without gradient may stand in a queue or bank,
    which will have changed by then: their sums are taken now.
    """
    keys = pairs.keys()[0]
    if pairs.candidates is None or keys.requires_grad:
        seen = Pairs(pairs.anchors.detach(), pairs.anchor_ids, pairs.positives.detach())
        if pairs.candidates is not None:
            seen = Pairs(seen.anchors, seen.anchor_ids, seen.positives, keys.detach(), pairs.candidate_ids)
        return lambda: negative_similarity(seen)
    now = negative_similarity(pairs)
    return lambda: now


def _total(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """The sum of the similarities of pairs of different samples, and how many there are."""
    keys, same = pairs.keys()[0], pairs.same_sample
    keys = keys.to(pairs.anchors.dtype)
    rows, columns = same.pairs()
    filled = same.filled.to(keys.dtype)
    total = pairs.anchors.sum(0) @ (filled @ keys)
    of_same_sample = (pairs.anchors[rows] * keys[columns]).sum()
    return total - of_same_sample, len(pairs.anchors) * filled.sum() - len(rows)


class Hardest(Policy):
    """Hard negative mining: the k most similar candidates of every anchor count, the others are ignored.

    Args:
        k: How many; HNSSL takes the single most similar.

    Example:
        >>> Hardest(k=5)
        Hardest()
    """

    needs = Needs(rows=False, order=True)

    def __init__(self, k: int = 1) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}: it is the number of negatives that count")
        self.k = k

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Ignore what is less similar than the k-th."""
        return [Rule(ranks=(Ranks(0, self.k),))]


Anneal = Literal["linear", "step", "none", "validation", "loss", "collapse"]
ADAPTIVE: dict[Anneal, Receives] = {"validation": "score", "loss": "loss"}
MEMORY = {"score": 0.0, "loss": 0.99}  # what stays of the mean that the next number is compared with


class Ring(Policy):
    """Conditional negative sampling (Wu et al. 2021): not the easy candidates, and not the very closest.

    Of an anchor's N allowed candidates, sorted from the most similar on, ranks [inner * outer * N, outer * N) count,
    rounded down, and at least one however few there are.
    `outer` is the share of the candidates in the outer ball, `inner` the share of that ball which is too close. The
    paper speaks of percentiles of similarity: it keeps those between w_l = 100 (1 - outer) and w_u = 100 (1 - inner *
    outer), so with the defaults its ring goes from [0, 90] to [90, 99]. `inner=0` is its ball, w_u = 100.

    Where there are few classes the final ring sits on the false negatives: try it on a queue, with many classes and
    long training, and join it with a policy that finds false negatives, as in `Ring() & GloFND(n, alpha=0.1)`. What
    came of it in short runs is in research/pages/hard-negatives.md.

    The adaptive anneals shrink the ball when they hear of an improvement and widen it again when they do not, each time
    by what the linear one would have shrunk it since the last time. `validation` compares a score with the one before
    (the kNN accuracy of the training loop, every `knn_every` epochs); `loss` compares the training loss of a step with
    its running mean over about a hundred steps, because single losses are noise. In a loop of your own, call
    `on_score` or `on_loss`.

    `collapse` goes by what it sees: the ball shrinks as linearly as time passes, but only while the candidates' mean
    similarity is below `collapse_limit`. Embeddings that all point one way have no order worth ranking; until they have
    spread for the first time every candidate counts, and later the ball waits where it is.

    Args:
        outer: Share in the outer ball, at the start of training and when annealing is over.
        inner: Share of the outer ball that is left out; 0 is the paper's ball.
        until: Share of training that annealing takes, where the adaptive ones hear of nothing but improvements.
        anneal: How the ball shrinks: linear, at once (step), by the validation score or the training loss, while the
            embeddings are spread out (collapse), or none, which has the final ring from the start.
        patience: Of the adaptive anneals: how many times in a row there is no improvement before the ball widens; the
            paper does not wait.
        start: Share of training before the ring begins to shrink; until then every candidate counts, and the adaptive
            anneals only remember what they hear.
        collapse_limit: Of the anneal `collapse`: the mean similarity of candidates above which the ball waits.

    Example:
        >>> Ring(outer=(1.0, 0.1), inner=0.1).share(0.0)
        1.0
    """

    needs = Needs(rows=False, order=True)
    ball: Tensor
    heard: Tensor
    heard_at: Tensor
    waited: Tensor

    def __init__(
        self,
        outer: tuple[float, float] = (1.0, 0.1),
        inner: float = 0.1,
        until: float = 1 / 3,
        anneal: Anneal = "linear",
        patience: int = 1,
        start: float = 0.0,
        collapse_limit: float = NARROW,
    ) -> None:
        super().__init__()
        if isinstance(outer, (int, float)) or len(outer) != 2:
            raise ValueError(
                f"outer must be two shares, at the start and at the end, such as (1.0, 0.1), got {outer!r}"
            )
        if not all(0 < share <= 1 for share in outer):
            raise ValueError(f"outer must be two shares in (0, 1], got {tuple(outer)}: of the candidates, in the ball")
        if not 0 <= inner < 1:
            raise ValueError(f"inner must be in [0, 1), got {inner}: it is the share of the ball that is left out")
        if not 0 < until <= 1:
            raise ValueError(f"until must be in (0, 1], got {until}: it is a share of training")
        if anneal not in get_args(Anneal):
            raise ValueError(f"anneal must be one of {', '.join(get_args(Anneal))}, got {anneal!r}")
        if patience < 1:
            raise ValueError(f"patience must be at least 1, got {patience}: it counts scores or losses")
        if not 0 <= start < 1 or (anneal != "none" and start >= until):
            raise ValueError(f"start must be in [0, 1) and before until, got {start}: it is a share of training")
        if not -1 < collapse_limit < 1:
            raise ValueError(
                f"collapse_limit must be in (-1, 1), got {collapse_limit}: it is a mean similarity of candidates"
            )
        self.start = start
        self.collapse_limit = collapse_limit
        self.inner = inner
        self.patience = patience
        receives = ADAPTIVE.get(anneal)
        self.waits_for_spread = anneal == "collapse"
        self.needs = replace(self.needs, receives=receives, learn=self.waits_for_spread, cosine=self.waits_for_spread)
        self.adaptive = receives is not None or self.waits_for_spread
        if anneal == "none":
            self.schedule = schedules.constant(outer[1])
        elif anneal == "step":
            self.schedule = schedules.step((start, outer[0]), (until, outer[1]))
        else:
            self.schedule = self._moving((start, outer[0]), (until, outer[1]))
        if self.adaptive:
            self.register_buffer("ball", torch.tensor(float(outer[0])))
            self.register_buffer("heard", torch.tensor(math.nan))  # nothing yet
            self.register_buffer("heard_at", torch.zeros(()))
            self.register_buffer("waited", torch.zeros((), dtype=torch.int64))

    def share(self, progress: float) -> float:
        """The share of the candidates in the outer ball."""
        # a float32 has seven digits; without the last of them 0.7 is 0.7
        return round(self.ball.item(), 6) if self.adaptive else self.schedule(progress)

    def on_loss(self, loss: float, progress: float) -> None:
        """Shrink the ball after an improvement, widen it otherwise.

        The first number, and all that come before `start`, are only remembered.
        """
        if self.needs.receives == "loss":
            self._compare(loss, progress)

    def on_score(self, score: float, progress: float) -> None:
        """Shrink the ball after an improvement, widen it otherwise, as `on_loss` does."""
        if self.needs.receives == "score":
            self._compare(score, progress)

    def _compare(self, value: float, progress: float) -> None:
        """Compare a number with those before, and move the ball."""
        assert self.needs.receives is not None
        before, memory, notch = self.heard.item(), MEMORY[self.needs.receives], self._notch(progress)
        better = value < before if self.needs.receives == "loss" else value > before
        if math.isnan(before):
            before = value
        elif progress >= self.start:
            self._move(better, notch)
        self._remember(memory * before + (1 - memory) * value, progress)

    def statistics(self) -> Numbers:
        """The share in the outer ball, where it is not known in advance."""
        return {"ring_outer": self.share(1.0)} if self.adaptive else {}

    @property
    def uses_progress(self) -> bool:
        """Whether the ring moves with time or waits for its start."""
        moves = self.needs.receives is None and len({value for _, value in self.schedule.points}) > 1
        return self.start > 0 or self.waits_for_spread or moves

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Ignore what lies outside of every anchor's ring."""
        if progress < self.start:
            return [Rule()]
        if self.waits_for_spread:
            if learn and self.training:
                self._shrink_if_spread(pairs, progress)
            if self.ball == self.schedule.points[0][1] and not self.heard < self.collapse_limit:
                return [Rule()]  # the embeddings have never spread, so their order is noise
        outer, count = self.share(progress), pairs.available()
        first = whole_below(self.inner * outer, count)
        last = torch.maximum(whole_below(outer, count), first + 1)  # at least one, however few there are
        return [Rule(ranks=(Ranks(first, last),))]

    def _moving(self, first: tuple[float, float], last: tuple[float, float]) -> schedules.Schedule:
        """The share in the outer ball from one point (share of training, share in the ball) to another."""
        return schedules.interpolate(first, last)

    def _move(self, better: bool, notch: float) -> None:
        """Shrink the ball by a notch, or widen it where its patience is at an end."""
        if better:
            self.waited.zero_()
            self.ball -= notch
        else:
            self.waited += 1
            if self.waited >= self.patience:
                self.ball += notch

    def _shrink_if_spread(self, pairs: Pairs, progress: float) -> None:
        """Shrink the ball by the time since the last call if the candidates are spread out, on all ranks alike."""
        similarity = negative_similarity(pairs, over_ranks=True).item()
        if similarity < self.collapse_limit and not math.isnan(self.heard.item()):
            self.ball -= self._notch(progress)
        self._remember(similarity, progress)

    def _notch(self, progress: float) -> float:
        """The amount by which the linear anneal would have shrunk the ball since the last number came, or it began."""
        (began, start), (until, end) = self.schedule.points
        return abs(start - end) / (until - began) * (progress - max(began, self.heard_at.item()))

    def _remember(self, value: float, progress: float) -> None:
        """Keep the ball between its first and its last share, and the number for the next time."""
        (_, start), (_, end) = self.schedule.points
        self.ball.clamp_(min(start, end), max(start, end))
        self.heard.fill_(value)
        self.heard_at.fill_(progress)
