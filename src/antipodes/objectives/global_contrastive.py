"""`GlobalContrastive`: SogCLR's loss, a sum over the whole dataset estimated from small batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from antipodes.distributed import gather, rank, world_size
from antipodes.functional.sums import Sums
from antipodes.negatives.policy import Policy
from antipodes.objectives.objective import Objective, Treatment
from antipodes.pairs import Pairs
from antipodes.schedules import cosine
from antipodes.state import SampleTable


class GlobalContrastive(Objective):
    """Each sample's denominator is a running mean over visits, so that small batches do not bias the gradient.

    1. g_i = mean over kept candidates of e^{s_ik/tau}, without the positive
    2. u_i <- (1 - gamma) u_i + gamma g_i;  at the first visit of that sample u_i = g_i
    3. loss_i = -s_i+ + tau g_i / stop_grad(u_i)

    Both views of a sample share u_i, which moves by the mean of their g. It is kept as a logarithm: at tau = 0.03
    e^{s/tau} reaches e^33. An anchor with nothing kept has no second term and leaves u_i alone.

    Args:
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        gamma: Weight of the new estimate; with `gamma_until` above 0, the value a cosine falls to from 1.
        gamma_until: Share of training after which gamma has fallen to its value; 0 keeps it constant.
        negatives: The policy; None keeps every candidate but the anchor's own sample.
        treatment: What happens to false negatives: `eliminate`, `attract` or `refine`.
        folder: Keep u in a memory-mapped file in this folder, for datasets whose state exceeds the memory.
    """

    def __init__(
        self,
        num_samples: int,
        temperature: float = 0.1,
        gamma: float = 0.9,
        gamma_until: float = 0.0,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        folder: str | None = None,
    ) -> None:
        super().__init__(temperature, negatives, treatment)
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma must be in (0, 1], got {gamma}: it is the weight of the new estimate")
        if not 0 <= gamma_until <= 1:
            raise ValueError(f"gamma_until must be in [0, 1], got {gamma_until}: it is a share of training")
        self.gamma = gamma
        self.gamma_until = gamma_until
        self.log_u = SampleTable(num_samples, fill=-math.inf, folder=folder)  # u = 0: never visited

    def value(self, pairs: Pairs, sums: Sums, progress: float) -> Tensor:
        """The loss per rule and anchor, (R, A), after moving u by this step's estimates."""
        log_g = sums.log_sum - sums.kept.clamp(min=1).log()
        log_u = self._update(pairs.anchor_ids, log_g.detach(), progress)
        present = sums.kept > 0
        ratio = torch.where(present, (log_g.where(present, log_u) - log_u).exp(), 0.0)
        target = self.target(pairs, sums)
        with torch.no_grad():
            value = -target + self.temperature * torch.where(present, log_u + sums.kept.clamp(min=1).log(), 0.0)
            self.stats["value"] = value.mean().item()
        return -target + self.temperature * ratio

    def _update(self, ids: Tensor, log_g: Tensor, progress: float) -> Tensor:
        """Move u of every sample by the mean g of its views and rules; returns the new log u per anchor, (A,)."""
        anchors, ids, log_g = len(ids), gather(ids), gather(log_g.T).T  # a sample may have anchors on several ranks
        samples, inverse = ids.unique(return_inverse=True)
        # a sample's mean over its anchors and rules, in log space; an anchor with nothing kept (-inf) does not count
        rows = log_g.shape[0]
        flat, owner = log_g.flatten(), inverse.repeat(rows)
        seen = flat > -math.inf
        flat, owner = flat[seen], owner[seen]
        peak = torch.full_like(samples, -math.inf, dtype=flat.dtype).scatter_reduce_(0, owner, flat, "amax")
        total = torch.zeros_like(peak).index_add_(0, owner, (flat - peak[owner]).exp())
        count = torch.zeros_like(peak).index_add_(0, owner, torch.ones_like(flat))
        new = peak + (total / count.clamp(min=1)).log()
        old = self.log_u.read(samples).to(new.dtype)
        gamma = self._gamma(progress)
        mixed = torch.logaddexp(old + math.log1p(-gamma), new + math.log(gamma)) if gamma < 1 else new
        updated = torch.where(old == -math.inf, new, mixed).where(count > 0, old)
        self.log_u.put(samples, updated)
        return updated[inverse].view(world_size(), anchors)[rank()]

    def _gamma(self, progress: float) -> float:
        if self.gamma_until == 0:
            return self.gamma
        return cosine(1.0, self.gamma, until=self.gamma_until)(progress)
