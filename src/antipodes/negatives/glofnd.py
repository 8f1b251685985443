"""`GloFND`: a learned similarity threshold per sample, above which a candidate is a false negative."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from antipodes.distributed import gather
from antipodes.functional.select import top_share
from antipodes.functional.tensors import has_zero
from antipodes.negatives.policy import Alpha, Needs, Numbers, Policy, check_shares
from antipodes.pairs import Pairs, Rule
from antipodes.state import ByRow, SampleTable, check_span, sample_count

SETTLED = 20
"""Visits of a sample before the paper's start flags about the right share (research/pages/glofnd-settling.md)."""


class GloFND(Policy):
    """Global false negative discovery (Balmaseda et al. 2025): learn the (1 - alpha) quantile of each sample's cosines.

    For every sample of the batch, once warm-up is over:

    1. g = alpha - mean(s > lambda) over the candidates of all its views
    2. lambda <- clamp(lambda - lr Adam(g), -1, 1), with moments and a step count of its own
    3. candidates above the new lambda are false negatives, on the same batch

    The optimum is the threshold that the share alpha of the whole dataset exceeds (Lemma 3.1), which no single batch
    shows. State: 16 bytes a sample. In `eval()`, with `learn=False` and under `torch.no_grad()` step 3 is all that
    happens: the learned thresholds are applied and stay as they are.

    Args:
        num_samples: Size of the dataset.
        alpha: Share of the candidates treated as false; about 1 / classes, or less. In Python also (n,), one by row for
            every sample, such as those of `estimate_alpha(..., per_sample=True)`.
        start: Share of training before the first flag; embeddings mean little until then.
        lr: Step size of the thresholds; the paper's is 0.05.
        betas: Adam's decay rates.
        optimizer: adam, or sgd for plain steps lr * g.
        decay: Let lr fall linearly, to a tenth at the end of training.
        initial: Where a sample's threshold starts: `quantile` at the quantile of its first batch, `one` at 1, the
            paper's start, which needs at least 20 visits of a sample to settle. `initial="one", lr=0.05` is what the
            name `glofnd-paper` stands for on the command line.
        folder: Keep the state in memory-mapped files in this folder, for datasets whose state exceeds the memory.
        sharded: Of several ranks, hold a share of the state on each, as `SampleTable` does.

    Example:
        >>> policy = GloFND(num_samples=100, alpha=0.1)
        >>> policy.threshold.shape
        torch.Size([100])
    """

    needs = Needs(cosine=True, learn=True)
    num_samples: int
    row_state: ClassVar[Mapping[str, ByRow]] = {"alpha": ByRow(holds="data")}
    alpha: Alpha

    def __init__(
        self,
        num_samples: int,
        alpha: Alpha = 0.01,
        start: float = 0.0,
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
        optimizer: Literal["adam", "sgd"] = "adam",
        decay: bool = False,
        initial: Literal["one", "quantile"] = "quantile",
        folder: str | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        num_samples = sample_count(num_samples)
        check_shares(alpha, start)
        if not lr > 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"lr must be above 0 and betas in [0, 1), got {lr} and {betas}")
        if optimizer not in ("adam", "sgd") or initial not in ("one", "quantile"):
            raise ValueError(f"optimizer is adam or sgd and initial one or quantile, got {optimizer!r} and {initial!r}")
        if isinstance(alpha, Tensor):
            if len(alpha) != num_samples:
                raise ValueError(f"alpha by sample has the shape {tuple(alpha.shape)}: it must be ({num_samples},)")
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha
        self.num_samples, self.start, self.lr, self.betas = num_samples, start, lr, betas
        self.optimizer, self.decay, self.initial = optimizer, decay, initial
        # threshold, Adam's two moments and the number of steps of every sample, read and written as one row
        self._table = SampleTable(
            self._entries(num_samples), (4,), fill=(1.0, 0.0, 0.0, 0.0), folder=folder, sharded=sharded
        )
        self._log: Numbers = {"threshold": 1.0}

    @property
    def threshold(self) -> Tensor:
        """The thresholds by sample, (n,); 1 for a sample that was never visited."""
        return self._table.whole()[:, 0]

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag, or a rate that falls."""
        return self.start > 0 or self.decay

    def check_visits(self, epochs: int) -> None:
        """Warn where thresholds that start at 1 will not have settled by the end of the run."""
        visits = (1 - self.start) * epochs
        if self.initial == "one" and 0 < visits < SETTLED:
            warnings.warn(
                f"GloFND's thresholds start at 1 (initial='one') and settle after about {SETTLED} visits of a sample, "
                f"but this run makes {visits:.3g} after start={self.start:g}: train longer, or use initial='quantile' "
                "with lr=0.01",
                stacklevel=2,
            )

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Move the thresholds of the batch's samples, then flag what lies above them."""
        check_span(*pairs.row_span, self.num_samples)
        if progress < self.start:
            return [Rule()]
        rows = self._places(pairs.rows()[0])
        moves = learn and self.training
        thresholds = self._move(pairs, rows, progress) if moves else self._table.read_checked(rows)[:, 0]
        self._log["threshold"] = thresholds
        return [Rule(ceiling=thresholds.to(pairs.anchors.dtype))]

    def statistics(self) -> Numbers:
        """The thresholds of the last step's samples, of which a log shows the mean."""
        return self._log

    def _entries(self, num_samples: int) -> int:
        """The length of the table: an entry for every sample. A subclass may share entries between samples."""
        return num_samples

    def _places(self, rows: Tensor) -> Tensor:
        """Where the thresholds of these rows of the dataset stand in the table."""
        return rows

    def _visits(self, pairs: Pairs, places: Tensor) -> _Visits:
        """The entries of the table that the global batch moves, and which anchors are theirs."""
        distinct = pairs.same_sample.views == 2 and pairs.anchor_rows is None
        return _Visits(places, 2 if distinct else 0)

    def _move(self, pairs: Pairs, places: Tensor, progress: float) -> Tensor:
        """Move every entry of the table that the global batch visits by one step.

        1. Read the state (S, 4) of the batch's samples; unvisited ones start at their first quantile.
        2. Count, over the anchors of every sample, the candidates and those above its threshold.
        3. Step against g = alpha - above / total (Eq. 4), which is 0 where the share alpha exceeds the threshold.
        4. Write the state, but where there was nothing to count (an empty queue).

        Returns:
            (A,) the thresholds of our anchors, moved.
        """
        visits = self._visits(pairs, places)
        table = self._table
        state = table.read_checked(visits.samples)
        if self.initial == "quantile":
            state = self._first_quantile(pairs, visits, state)
        share, counted = visits.share(pairs, pairs.count_above(visits.spread(state[:, 0])))
        rate = self.lr * (1 - 0.9 * self._done(progress) if self.decay else 1.0)
        after = self._step(state, (self._of(visits.samples) - share).to(state.dtype), rate)
        if counted is not None:
            after = torch.where(counted[:, None], after, state)
        table.write_gathered(visits.samples, after, distinct=True)
        return visits.spread(after[:, 0])

    def _step(self, state: Tensor, gradient: Tensor, rate: float) -> Tensor:
        """The state (S, 4) after a step against this gradient (S,)."""
        thresholds, moments = state[:, 0], Moments(*state[:, 1:].unbind(1))
        if self.optimizer == "adam":
            thresholds, moments = adam_step(thresholds, gradient, moments, rate, self.betas)
        else:
            thresholds = (thresholds - rate * gradient).clamp(-1, 1)
            moments = moments._replace(steps=moments.steps + 1)
        return torch.stack((thresholds, *moments), dim=1)

    def _first_quantile(self, pairs: Pairs, visits: _Visits, state: Tensor) -> Tensor:
        """The state with thresholds of unvisited samples replaced by the mean batch quantile of their anchors.

        The mean is over the anchors of all ranks: where samples share a threshold, every rank may hold some of them.
        """
        if not has_zero(state[:, 3]):  # the same on every rank: so is the state
            return state
        fresh = state[:, 3] == 0
        keys, key_ids = pairs.keys()
        alpha = self._of(pairs.rows()[0])
        anchors = pairs.anchors.detach()
        quantile = top_share(anchors, keys.detach(), pairs.anchor_ids, key_ids, alpha, pairs.same_sample)
        mean = visits.mean(quantile.clamp(max=1.0).to(self._table.rows.dtype))
        state[fresh, 0] = mean[fresh]
        return state

    def _of(self, rows: Tensor) -> Alpha:
        """The share of all samples, or those of these rows."""
        return self.alpha.to(rows.device)[rows] if isinstance(self.alpha, Tensor) else self.alpha

    def _done(self, progress: float) -> float:
        """Share of the phase after the start that is done."""
        return (progress - self.start) / (1 - self.start) if self.start < 1 else 1.0


class _Visits:
    """The samples of the global batch, each of them once, and which anchors are theirs.

    Args:
        rows: (A,) table rows of this rank's anchors.
        views: 2 if the anchors are the first views of different samples and then their second views, on one rank; 0 if
            nothing is known, so that equal rows have to be found.
    """

    def __init__(self, rows: Tensor, views: int = 0) -> None:
        self._views = views
        if views:
            self.samples = rows[: rows.shape[0] // views]
            return
        self.samples, self._owner = gather(rows).unique(return_inverse=True)
        self._ours = self._owner if len(self._owner) == len(rows) else torch.searchsorted(self.samples, rows)

    def spread(self, values: Tensor) -> Tensor:
        """Return what this rank's anchors (A,) get of values by sample (S,)."""
        if self._views:
            return torch.cat((values,) * self._views)
        mine: Tensor = values[self._ours]
        return mine

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over every sample's anchors, (S, ...), of numbers by this rank's anchors (A, ...)."""
        if self._views:
            return values.view(self._views, -1, *values.shape[1:]).sum(0)
        every = gather(values)
        return torch.zeros_like(every[: len(self.samples)]).index_add_(0, self._owner, every)

    def share(self, pairs: Pairs, above: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the share of all candidates of every sample's anchors that is above its threshold, (S,).

        Args:
            pairs: Of this rank.
            above: (A,) how many of the candidates of every anchor are.

        Returns:
            The shares, and which samples (S,) have candidates; None for all.
        """
        if self._views and pairs.same_sample.leaves_some:
            return self.total(above) / (self._views * (above.shape[0] - self._views)), None
        above, total = self.total(torch.stack((above, pairs.available().to(above.dtype)), dim=1)).unbind(1)
        return above / total.clamp(min=1), total > 0

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over every sample's anchors, (S,), of numbers by this rank's anchors (A,)."""
        counts = self._views or self._owner.bincount()
        return self.total(values) / counts


class Moments(NamedTuple):
    """Adam's state, one entry per threshold (S,): running means of the gradient and its square, and the steps taken."""

    first: Tensor
    second: Tensor
    steps: Tensor


def adam_step(
    thresholds: Tensor, gradient: Tensor, moments: Moments, rate: float, betas: tuple[float, float]
) -> tuple[Tensor, Moments]:
    """Take one step of Adam on thresholds (S,), with bias correction by each threshold's own number of steps.

    1. The moments move towards the gradient and its square by 1 - beta.
    2. Each is divided by 1 - beta^steps.
    3. lambda <- clamp(lambda - rate first / sqrt(second), -1, 1)

    Example:
        >>> fresh = Moments(torch.zeros(1), torch.zeros(1), torch.zeros(1))
        >>> adam_step(torch.tensor([0.5]), torch.tensor([0.2]), fresh, 0.1, (0.9, 0.98))[0]
        tensor([0.4000])
    """
    steps = moments.steps + 1
    first = torch.lerp(moments.first, gradient, 1 - betas[0])
    second = torch.lerp(moments.second, gradient * gradient, 1 - betas[1])
    mean = first / torch.pow(betas[0], steps).neg_().add_(1)
    scale = (second / torch.pow(betas[1], steps).neg_().add_(1)).sqrt_().add_(1e-8)
    return torch.addcdiv(thresholds, mean, scale, value=-rate).clamp_(-1, 1), Moments(first, second, steps)
