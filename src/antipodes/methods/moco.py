"""MoCo: queries against a queue of keys from a slowly moving copy of the encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from antipodes.candidates.queue import Queue
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, Tower, Towers, embed_supports, follow, frozen_copy
from antipodes.pairs import Pairs, normalise


class MoCo(Method):
    """MoCo (He et al. 2020; v2 Chen et al. 2020): the defaults are v2's, `moco-v1` has v1's.

    1. queries q = network(view 1), keys k = momentum network(view 2), no gradient to the keys
    2. the loss of q against its k and the queue
    3. after the optimiser's step: the momentum network follows, the queue takes the keys

    The queue stores the samples of its keys, so an anchor's own stale keys are never its negatives. This matters if the
    queue is large compared with the data.

    Args:
        network: One tower.
        loss_fn: The loss, with the policy that decides which keys count.
        dim: Dimension of the embeddings.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys; the paper's 65,536 is for ImageNet, 4,096 is usual for tens of thousands of images.
    """

    run = {
        "augmentation": "moco-v2",
        "head": {"kind": "mlp2", "hidden": 2048, "centred": None},
        "loss": {"temperature": 0.2},
    }
    accumulates = True

    def __init__(
        self,
        network: Towers,
        loss_fn: nn.Module,
        dim: int = 128,
        momentum: float = 0.999,
        queue_size: int = 65536,
    ) -> None:
        super().__init__(network, {network.names()[0]: loss_fn})
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum must be in [0, 1], got {momentum}: it is the share of the key network that stays"
            )
        self.momentum = momentum
        self.key_network = frozen_copy(network)
        self.queue = Queue(queue_size, dim)
        self._fresh: list[tuple[Tensor, Tensor, Tensor]] = []

    def copies(self, tower: str) -> list[Tower]:
        """Return the query tower and the key tower."""
        return [self.network[tower], self.key_network[tower]]

    @torch.no_grad()
    def keys(self, images: Tensor) -> Tensor:
        """Return the momentum network's embeddings of images (b, ...): keys (b, dim) with length 1."""
        (tower,) = self.network.names()
        with self.precision():
            return normalise(self.key_network({tower: images})[tower])

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of the first views' queries (b, dim) against the second views' keys and the queue."""
        return self.compare(network, batch, progress)[0]

    def compare(self, network: Network, batch: Batch, progress: float) -> tuple[Tensor, Tensor]:
        """Return the loss of queries against keys, and the queries (b, dim) with length 1.

        1. Queries are the network's embeddings of the first views, keys the momentum network's of the second views.
        2. The positive of query i is key i; the candidates are the queue.
        """
        (tower,) = self.network.names()
        inputs = batch[self.network.plans[tower].input]
        queries = normalise(network({tower: inputs.views[0]})[tower])
        keys = self.keys(inputs.views[1])
        with self.precision():
            supports = embed_supports(self.key_network, tower, inputs.supports)
        self._fresh.append((keys, batch.ids, batch.rows))
        queue = self.queue
        pairs = Pairs(
            queries,
            batch.ids,
            (queries * keys).sum(1),
            queue.keys,
            queue.ids,
            keys,
            anchor_rows=batch.rows,
            candidate_rows=queue.rows,
        )
        (loss_fn,) = self.pair_losses().values()
        return loss_fn.evaluate(pairs.with_supports(supports), progress), queries

    def compared(self, direction: str) -> tuple[nn.Module, nn.Module | Tensor]:
        """Return the query tower and the momentum network's key tower."""
        tower = self.anchor_tower(direction)
        assert isinstance(self.key_network, Towers)
        return self.evaluated(tower, head=True), self.key_network[tower]

    def after_step(self) -> None:
        """Move the key network towards the query network, and push this step's keys into the queue."""
        follow(self.key_network, self.network, self.momentum)
        for keys, ids, rows in self._fresh:
            self.queue.push(keys, ids, rows)
        self._fresh.clear()
