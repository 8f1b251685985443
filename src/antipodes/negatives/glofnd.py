"""`GloFND`: a learned similarity threshold per sample, above which a candidate is a false negative."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from antipodes.distributed import gather
from antipodes.functional.select import top_share
from antipodes.functional.tensors import on_host
from antipodes.negatives.policy import Alpha, Needs, Numbers, Policy, check_shares
from antipodes.negatives.quantile_step import Moments, adam_step, quantile_gradient
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
        self._table = SampleTable(self._entries(num_samples), (4,), fill=(1.0, 0.0, 0.0, 0.0), folder=folder)
        self._log: Numbers = {"threshold": 1.0}

    @property
    def threshold(self) -> Tensor:
        """The thresholds by sample, (n,); 1 for a sample that was never visited."""
        return self._table.rows[:, 0]

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
        self._log["threshold"] = thresholds.mean()
        return [Rule(ceiling=thresholds.to(pairs.anchors.dtype))]

    def statistics(self) -> Numbers:
        """The mean threshold of the last step's samples."""
        return self._log

    def _entries(self, num_samples: int) -> int:
        """The length of the table: an entry for every sample. A subclass may share entries between samples."""
        return num_samples

    def _places(self, rows: Tensor) -> Tensor:
        """Where the thresholds of these rows of the dataset stand in the table."""
        return rows

    def _visits(self, pairs: Pairs, places: Tensor) -> _Visits | _TwoViews:
        """The entries of the table that the global batch moves, and which anchors are theirs."""
        halves = pairs.same_sample.halves and pairs.anchor_rows is None and on_host(self._table.rows)
        return _TwoViews(places) if halves else _Visits(places)

    def _move(self, pairs: Pairs, places: Tensor, progress: float) -> Tensor:
        """One step for every entry of the table that the global batch visits, from the counts of all its anchors.

        Returns:
            (A,) the thresholds of our anchors, moved.
        """
        visits = self._visits(pairs, places)
        state = visits.read(self._table)
        if self.initial == "quantile":
            state = self._first_quantile(pairs, visits, state)
        above, total = visits.counts(pairs, state[:, 0])
        rate = self.lr * (1 - 0.9 * self._done(progress) if self.decay else 1.0)
        gradient = quantile_gradient(above, total, visits.known(self._of(visits.samples)))
        after = visits.write(self._table, self._step(state, gradient, rate), state, total)
        return visits.spread(after[:, 0])

    def _step(self, state: Any, gradient: Any, rate: float) -> tuple[Any, ...]:
        """The columns of the state (S, 4), each (S,), after a step against this gradient; tensors or arrays."""
        start, *rest = state.T
        moments = Moments(*rest)
        if self.optimizer == "adam":
            start, moments = adam_step(start, gradient, moments, rate, self.betas)
        else:
            start, moments = (start - rate * gradient).clip(-1, 1), moments._replace(steps=moments.steps + 1)
        return start, *moments

    def _first_quantile(self, pairs: Pairs, visits: _Visits | _TwoViews, state: Any) -> Any:
        """The state with thresholds of unvisited samples replaced by the mean batch quantile of their anchors.

        The mean is over the anchors of all ranks: where samples share a threshold, every rank may hold some of them.
        """
        fresh = state[:, 3] == 0
        if not bool(fresh.any()):  # the same on every rank: so is the state
            return state
        keys, key_ids = pairs.keys()
        quantile = top_share(
            pairs.anchors.detach(),
            keys.detach(),
            pairs.anchor_ids,
            key_ids,
            self._of(pairs.rows()[0]),
            pairs.same_sample,
        )
        mean = visits.mean(quantile.clamp(max=1.0).to(self._table.rows.dtype))
        state[fresh, 0] = visits.known(mean)[fresh]
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
        rows: (A,) of this rank's anchors.
    """

    def __init__(self, rows: Tensor) -> None:
        samples, owner = gather(rows).unique(return_inverse=True)
        self.samples: Tensor = samples
        self._owner: Tensor = owner
        self._ours = owner if len(owner) == len(rows) else torch.searchsorted(samples, rows)

    def read(self, table: SampleTable) -> Any:
        """A copy of the samples' rows of the table, (S, 4)."""
        return table.read_checked(self.samples)

    def write(self, table: SampleTable, columns: tuple[Any, ...], before: Any, total: Any) -> Any:
        """Put new columns into the table, but where there was nothing to learn from (an empty queue); returns them."""
        after = torch.where(total[:, None] > 0, torch.stack(columns, dim=1).to(before.dtype), before)
        table.write_gathered(self.samples, after, distinct=True)
        return after

    def known(self, values: Any) -> Any:
        """Values by sample in the kind that `read` returns."""
        return values

    def spread(self, values: Any) -> Tensor:
        """What our anchors get of values by sample, (A,)."""
        mine: Tensor = values[self._ours]
        return mine

    def counts(self, pairs: Pairs, thresholds: Any) -> tuple[Any, Any]:
        """How many candidates of a sample's anchors exceed its threshold (S,), and how many there are."""
        above = pairs.count_above(self.spread(thresholds))
        sums = self._total(torch.stack((above, pairs.available().to(above.dtype)), dim=1))
        return sums[:, 0], sums[:, 1]

    def mean(self, values: Tensor) -> Tensor:
        """The mean over every sample's anchors of a number by anchor (A,)."""
        return self._total(values) / self._owner.bincount()

    def _total(self, values: Tensor) -> Tensor:
        every = gather(values)
        return torch.zeros_like(every[: len(self.samples)]).index_add_(0, self._owner, every)


class _TwoViews:
    """The same where the anchors are two views of different samples, all first views before all second ones.

    It works with arrays of NumPy, which take less time than tensors where they are small.
    """

    def __init__(self, rows: Tensor) -> None:
        self.samples = rows[: rows.shape[0] // 2]
        self._places = self.samples.numpy()

    def read(self, table: SampleTable) -> Any:
        """A copy of the samples' rows of the table, (S, 4)."""
        return table.rows.numpy()[self._places]

    def write(self, table: SampleTable, columns: tuple[Any, ...], before: Any, total: Any) -> Any:
        """Put new columns into the table; returns them."""
        after = np.array(columns, dtype=before.dtype).T
        table.rows.numpy()[self._places] = after
        return after

    def known(self, values: Any) -> Any:
        """Values by sample in the kind that `read` returns."""
        return values.numpy() if isinstance(values, Tensor) else values

    def spread(self, values: Any) -> Tensor:
        """What our anchors get of values by sample, (A,)."""
        return torch.from_numpy(np.concatenate((values, values)))

    def counts(self, pairs: Pairs, thresholds: Any) -> tuple[Any, Any]:
        """How many candidates of a sample's anchors exceed its threshold (S,), and how many there are."""
        half = len(self._places)
        above = pairs.count_above(self.spread(thresholds)).numpy()
        return above[:half] + above[half:], 2.0 * (2 * half - 2)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over every sample's anchors of a number by anchor (A,)."""
        return values.view(2, -1).mean(0)
