"""i-Mix on MoCo: queries of mixed inputs, whose labels are mixed in the same shares."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from antipodes.distributed import gather, rank
from antipodes.methods.batch import Batch
from antipodes.methods.moco import MoCo
from antipodes.methods.towers import Network, TowerPlan, Towers
from antipodes.pairs import Pairs, normalise
from antipodes.seeding import generator


class IMix(MoCo):
    """i-Mix (Lee et al. 2021) with MoCo's momentum network and queue.

    1. x'_i = theta_i x_i + (1 - theta_i) x_k: the first views of samples i and k, k of a random permutation of the
       batch. theta_i is the larger of t and 1 - t, t of Beta(alpha, alpha), as in the authors' code
    2. queries = network(x'), keys = momentum network(view 2); the key set is this batch's keys and the queue
    3. loss_i = theta_i CE(query i, key i) + (1 - theta_i) CE(query i, key k), mean over samples

    The two terms are anchors of samples i and k with weights, so that a policy judges each by its own sample.

    Args:
        network: One tower, for images or vectors.
        loss_fn: The loss, with the policy that decides which keys count.
        dim: Dimension of the embeddings.
        alpha: Parameter of the Beta distribution; a small one mixes little.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys.
        seed: Determines permutations and shares, with the number of the step.
    """

    mixes = True
    accumulates = False  # keys of the batch are negatives, too
    steps: Tensor

    def __init__(
        self,
        network: Towers,
        loss_fn: nn.Module,
        dim: int = 128,
        alpha: float = 1.0,
        momentum: float = 0.999,
        queue_size: int = 65536,
        seed: int = 0,
    ) -> None:
        super().__init__(network, loss_fn, dim, momentum, queue_size)
        if not 0 < alpha < float("inf"):
            raise ValueError(f"alpha must be above 0 and finite, got {alpha}: shares come from Beta(alpha, alpha)")
        self.alpha, self.seed = alpha, seed
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """Return one tower, for the image or the vector."""
        found = super().plan(modalities)
        if any(plan.modality == "text" for plan in found.values()):
            raise ValueError("i-Mix mixes images or vectors and the data has texts: use moco")
        return found

    def compare(self, network: Network, batch: Batch, progress: float) -> tuple[Tensor, Tensor]:
        """Return the loss of mixed queries against both of their keys, and the queries (b, dim).

        1. All ranks draw the same permutation of the global batch and the same shares.
        2. Each query is an anchor twice: of sample i with weight theta_i, and of its partner k with 1 - theta_i.
        3. The candidates are the keys of all ranks' samples and the queue, without those of the anchor's own sample.
        """
        (tower,) = self.network.names()
        inputs = batch[self.network.plans[tower].input]
        first, second = inputs.views
        fresh = self.keys(second)
        self._fresh.append((fresh, batch.ids, batch.rows))
        every, ids, rows = gather(fresh), gather(batch.ids), gather(batch.rows)
        here = slice(rank() * len(first), (rank() + 1) * len(first))
        partners, theta = (each[here] for each in self._draw(len(ids), first))
        mixed = torch.lerp(gather(first)[partners], first, theta.view(-1, *[1] * (first.ndim - 1)))
        queries = normalise(network({tower: mixed})[tower])
        own = torch.cat((fresh, every[partners]))
        anchors = queries.repeat(2, 1)
        supports = None
        if inputs.supports:
            with self.precision(), torch.no_grad():
                views = torch.stack([self.key_network({tower: view})[tower] for view in inputs.supports])
            supports = torch.cat((views, torch.stack([gather(view)[partners] for view in views])), dim=1)
        pairs = Pairs(
            anchors,
            torch.cat((batch.ids, ids[partners])),
            (anchors * own).sum(1),
            torch.cat((every, self.queue.keys.to(every))),
            torch.cat((ids, self.queue.ids)),
            own,
            anchor_rows=torch.cat((batch.rows, rows[partners])),
            candidate_rows=torch.cat((rows, self.queue.rows)),
        )
        (loss_fn,) = self.pair_losses().values()
        weights = torch.cat((theta, 1 - theta))
        return loss_fn.evaluate(pairs.with_supports(supports), progress, weights=weights), queries

    def after_step(self) -> None:
        """Update as MoCo does, and count the step, from which the next draws follow."""
        super().after_step()
        self.steps += 1

    def _draw(self, count: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a permutation of the global batch (B,) and every sample's share (B,), at least a half."""
        draws = generator("imix", self.seed, int(self.steps))
        partners = torch.randperm(count, generator=draws)
        gammas = torch._standard_gamma(torch.full((2, count), self.alpha, dtype=torch.float64), generator=draws)
        theta = gammas[0] / gammas.sum(0)  # of Beta(alpha, alpha)
        return partners.to(like.device), torch.maximum(theta, 1 - theta).to(like)
