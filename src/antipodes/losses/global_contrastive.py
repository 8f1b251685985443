"""`GlobalContrastive`: SogCLR's loss, a sum over the whole dataset estimated from small batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antipodes.distributed import gather
from antipodes.functional.contrast import Sums
from antipodes.losses.distillation import Distillation
from antipodes.losses.loss import Loss, Reduction, Treatment
from antipodes.losses.step import Step
from antipodes.losses.temperature import Temperature
from antipodes.negatives.policy import Policy
from antipodes.pairs import Pairs
from antipodes.schedules import cosine
from antipodes.state import SampleTable, check_ids, sample_count


class GlobalContrastive(Loss):
    """Each sample's denominator is a running mean over visits, so that small batches do not bias the gradient.

    1. g_i = mean over kept candidates of e^{s_ik/tau}, without the positive
    2. u_i <- (1 - gamma) u_i + gamma g_i;  at the first visit of that sample u_i = g_i
    3. loss_i = -s_i+ + tau g_i / stop_grad(u_i)

    Both views of a sample share u_i, which moves by the mean of their g. It is kept as a logarithm: at tau = 0.03
    e^{s/tau} reaches e^33. An anchor with nothing kept has no second term and leaves u_i alone. In `eval()` and under
    `torch.no_grad()` u is mixed with the batch as in training, but not stored.

    With a `Temperature` that learns this is the loss of FastCLIP: what is minimised is the mean of
    -s_i+ + tau (log g_i + rho), whose derivative for tau is estimated by log u_i + rho + tau g_i' / u_i. Version 3 has
    one temperature, version 2 (iSogCLR) one per sample, version 1 (SogCLR) a number; `TwoWay` makes both directions.

    Args:
        num_samples: Size of the dataset.
        temperature: Divides the similarities: a number, or a `Temperature` that moves or learns.
        gamma: Weight of the new estimate; with `gamma_until` above 0, the value a cosine falls to from 1.
        gamma_until: Share of training after which gamma has fallen to its value; 0 keeps it constant.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate`, `attract` or `refine`.
        folder: Keep u in a memory-mapped file in this folder, for datasets whose state exceeds the memory.
        reduction: `mean` over anchors, or `none` for the loss of every anchor.
        total_steps: How many calls the training will have, so that `progress` may be left out.
        rho: Of a temperature that learns: how far from even the weights of negatives may be; FastCLIP takes 6.5. More
            makes the temperature smaller.
        distill: Let the anchors find the guide's vector of their sample as well.
        sharded: Of several ranks, hold a share of u on each, as `SampleTable` does.
    """

    sums_positives = False

    def __init__(
        self,
        num_samples: int,
        temperature: float | Temperature = 0.1,
        gamma: float = 0.9,
        gamma_until: float = 0.0,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        folder: str | None = None,
        reduction: Reduction = "mean",
        total_steps: int | None = None,
        rho: float = 0.0,
        distill: Distillation | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__(temperature, negatives, treatment, reduction, total_steps, distill)
        num_samples = sample_count(num_samples)
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {gamma}: it is the weight of the new estimate")
        if not 0 <= gamma_until <= 1:
            raise ValueError(f"gamma_until must be in [0, 1], got {gamma_until}: it is a share of training")
        if not 0 <= rho < math.inf:
            raise ValueError(f"rho must be at least 0 and finite, got {rho}: it is the price of a high temperature")
        self.num_samples, self.gamma, self.gamma_until, self.rho = num_samples, gamma, gamma_until, rho
        # u = 0: unseen
        self.log_u = SampleTable(self._entries(num_samples), fill=-math.inf, folder=folder, sharded=sharded)

    @property
    def uses_progress(self) -> bool:
        """Whether gamma, the temperature or the policy moves with training."""
        return self.gamma_until > 0 or super().uses_progress

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per rule and anchor, (R, A), after moving u by this step's estimates."""
        pairs, tau = step.pairs, step.temperature
        fixed = tau.detach() if isinstance(tau, Tensor) else tau
        count = sums.kept.clamp(min=1).to(sums.log_sum.dtype).log()
        log_g = sums.log_sum - count
        self._before_update(step)
        log_u = self._update(self._places(pairs), log_g.detach(), step)
        present = sums.kept > 0
        ratio = torch.where(present, (log_g.where(present, log_u) - log_u).exp(), 0.0)
        target = self.target(step, sums)
        loss = -target + fixed * ratio
        if isinstance(tau, Tensor) and tau.requires_grad:  # the rest of tau's derivative, adding nothing to the value
            loss = loss + (tau - fixed) * (torch.where(present, log_u, 0.0) + self.rho)
        with torch.no_grad():
            value = -target + fixed * torch.where(present, log_u + count, 0.0)
            self._record.numbers["value"] = value.mean()
        return loss

    def _before_update(self, step: Step) -> None:
        """Called before u moves by a step's estimates."""

    def _entries(self, num_samples: int) -> int:
        """The length of the table of u: an entry for every sample."""
        return num_samples

    def _places(self, pairs: Pairs) -> Tensor:
        """Where the anchors' u stand in the table, (A,)."""
        rows = pairs.rows()[0]
        check_ids(rows, self.num_samples)
        return rows

    def _update(self, places: Tensor, log_g: Tensor, step: Step) -> Tensor:
        """Move u of every sample by the mean g of its views and rules; returns the new log u per anchor, (A,)."""
        ours, places, log_g = places, gather(places), gather(log_g.T).T  # a sample may have anchors on several ranks
        samples, inverse = places.unique(return_inverse=True)
        # a sample's mean over its anchors and rules, in log space; an anchor with nothing kept (-inf) does not count
        flat, owner = log_g.flatten(), inverse.repeat(log_g.shape[0])
        peak = torch.full_like(samples, -math.inf, dtype=flat.dtype).scatter_reduce_(0, owner, flat, "amax")
        seen = flat > -math.inf
        shifted = torch.where(seen, flat - peak[owner], -math.inf)
        total = torch.zeros_like(peak).index_add_(0, owner, shifted.exp())
        count = torch.zeros_like(peak).index_add_(0, owner, seen.to(flat.dtype))
        new = peak + (total / count.clamp(min=1)).log()
        old = self.log_u.read_checked(samples).to(new.dtype)
        gamma = self._gamma(step.progress)
        mixed = torch.logaddexp(old + math.log1p(-gamma), new + math.log(gamma)) if gamma < 1 else new
        updated = torch.where(old == -math.inf, new, mixed).where(count > 0, old)
        if step.learn:
            self.log_u.write_gathered(samples, updated, distinct=True)
        return updated[torch.searchsorted(samples, ours)]

    def _gamma(self, progress: float) -> float:
        if self.gamma_until == 0:
            return self.gamma
        return cosine(1.0, self.gamma, until=self.gamma_until)(progress)

    def _table_rows(self) -> int:
        return max(self.num_samples, super()._table_rows())

    @property
    def needs_rows(self) -> bool:
        """It keeps a number for every row."""
        return True

    def own_ids(self, z1: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Refuse to go without ids."""
        raise ValueError("ids are missing: the global loss keeps a number for every sample, give dataset indices (B,)")
