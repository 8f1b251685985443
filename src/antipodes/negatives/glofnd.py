"""`GloFND`: a learned similarity threshold per sample, above which a candidate is a false negative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from antipodes.distributed import gather
from antipodes.functional.select import top_share
from antipodes.functional.threshold import Moments, adam_step, quantile_gradient
from antipodes.negatives.policy import Numbers, Policy, check_shares
from antipodes.pairs import Pairs, Rule
from antipodes.state import SampleTable, check_rows


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
        alpha: Share of the candidates treated as false; about 1 / classes, or less.
        start: Share of training before the first flag; embeddings mean little until then.
        lr: Step size of the thresholds.
        betas: Adam's decay rates.
        optimizer: adam, or sgd for plain steps lr * g.
        decay: Let lr fall linearly, to a tenth at the end of training.
        initial: one flags nothing at first (the paper); quantile starts from the first batch's own quantile.
        shared: One threshold for all samples (the paper's lesion).
        folder: Keep the state in memory-mapped files in this folder, for datasets whose state exceeds the memory.

    Example:
        >>> policy = GloFND(num_samples=100, alpha=0.1)
        >>> policy.threshold.shape
        torch.Size([100])
    """

    num_samples: int

    def __init__(
        self,
        num_samples: int,
        alpha: float = 0.01,
        start: float = 0.0,
        lr: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.98),
        optimizer: Literal["adam", "sgd"] = "adam",
        decay: bool = False,
        initial: Literal["one", "quantile"] = "one",
        shared: bool = False,
        folder: str | None = None,
    ) -> None:
        super().__init__()
        check_shares(alpha, start)
        if not lr > 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"lr must be above 0 and betas in [0, 1), got {lr} and {betas}")
        if optimizer not in ("adam", "sgd") or initial not in ("one", "quantile"):
            raise ValueError(f"optimizer is adam or sgd and initial one or quantile, got {optimizer!r} and {initial!r}")
        self.num_samples, self.alpha, self.start, self.lr, self.betas = num_samples, alpha, start, lr, betas
        self.optimizer, self.decay, self.initial, self.shared = optimizer, decay, initial, shared
        rows = 1 if shared else num_samples
        self._thresholds = SampleTable(rows, fill=1.0, folder=folder)
        self._first, self._second = SampleTable(rows, folder=folder), SampleTable(rows, folder=folder)
        self._steps = SampleTable(rows, dtype=torch.int32, folder=folder)
        self._mean: float | Tensor = 1.0  # of the thresholds of the last step's samples

    @property
    def threshold(self) -> Tensor:
        """The thresholds by sample, (n,); 1 for a sample that was never visited."""
        return self._thresholds.rows.expand(self.num_samples)

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag, or a rate that falls."""
        return self.start > 0 or self.decay

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Move the thresholds of the batch's samples, then flag what lies above them."""
        rows = pairs.rows()[0]
        check_rows(rows, rows, self.num_samples)
        if progress < self.start:
            return [Rule()]
        if self.shared:
            rows = torch.zeros_like(rows)
        if learn and self.training:
            self._move(pairs, rows, progress)
        thresholds = self._thresholds.read_checked(rows)
        self._mean = thresholds.mean()
        return [Rule(ceiling=thresholds.to(pairs.anchors.dtype))]

    def statistics(self) -> Numbers:
        """The mean threshold of the last step's samples."""
        return {"threshold": self._mean}

    def _move(self, pairs: Pairs, rows: Tensor, progress: float) -> None:
        """One step for every sample (row) of the global batch, from the counts of all its anchors."""
        pairs = pairs.detached()
        available = pairs.available()
        current = self._thresholds.read_checked(rows)
        if self.initial == "quantile":
            current = self._first_quantile(pairs, rows, current)
        at_most = pairs.contrast(1.0, Rule(ceiling=current.to(pairs.anchors.dtype))).kept[0]
        exceeding = available - at_most
        rows, current, exceeding, available = (gather(part) for part in (rows, current, exceeding, available))
        samples, owner = rows.unique(return_inverse=True)
        total = current.new_zeros(len(samples)).index_add_(0, owner, available.to(current.dtype))
        above = torch.zeros_like(total).index_add_(0, owner, exceeding.to(current.dtype))
        start = torch.zeros_like(total).index_put_((owner,), current)  # alike for all anchors of a sample
        gradient = quantile_gradient(above, total, self.alpha)
        rate = self.lr * (1 - 0.9 * self._done(progress) if self.decay else 1.0)
        moments = Moments(*(table.read_checked(samples) for table in (self._first, self._second, self._steps)))
        if self.optimizer == "adam":
            moved, moments = adam_step(start, gradient, moments, rate, self.betas)
        else:
            moved, moments = (start - rate * gradient).clamp(-1, 1), moments._replace(steps=moments.steps + 1)
        seen = total > 0  # nothing to learn from an empty queue
        tables = (self._thresholds, self._first, self._second, self._steps)
        for table, values in zip(tables, (moved, *moments), strict=True):
            kept = table.read_checked(samples)
            table.write_gathered(samples, torch.where(seen, values.to(kept), kept), distinct=True)

    def _first_quantile(self, pairs: Pairs, rows: Tensor, current: Tensor) -> Tensor:
        """Thresholds with those of unvisited samples replaced by the mean batch quantile of their anchors.

        The mean is over the anchors of all ranks: with one threshold for all samples every rank holds some of them.
        """
        fresh = self._steps.read_checked(rows) == 0
        if not bool(gather(fresh.any()[None]).any()):
            return current
        keys, key_ids = pairs.keys()
        quantile = top_share(pairs.anchors, keys, pairs.anchor_ids, key_ids, self.alpha)
        quantile = quantile.clamp(max=1.0).to(current.dtype)
        samples, owner = gather(rows).unique(return_inverse=True)
        total = quantile.new_zeros(len(samples)).index_add_(0, owner, gather(quantile))
        mean = total / owner.bincount()
        return torch.where(fresh, mean[torch.searchsorted(samples, rows)], current)

    def _done(self, progress: float) -> float:
        """Share of the phase after the start that is done."""
        return (progress - self.start) / (1 - self.start) if self.start < 1 else 1.0
