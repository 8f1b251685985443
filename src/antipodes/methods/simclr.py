"""SimCLR: two views of every sample, with the batch as candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.losses import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, Towers, embed_supports


class SimCLR(Method):
    """SimCLR (Chen et al. 2020): the views of a sample are positives, all other views of the batch are candidates.

    With the loss `global-contrastive` this is SogCLR (Yuan et al. 2022), for small batches; with the oracle's
    attraction it is SupCon (Khosla et al. 2020).

    Args:
        network: One tower.
        loss_fn: The loss, with its policy.
    """

    run = {"augmentation": "simclr", "head": {"kind": "mlp2", "batch_norm": True}, "loss": {"temperature": 0.2}}

    def __init__(self, network: Towers, loss_fn: Loss) -> None:
        super().__init__(network, {network.names()[0]: loss_fn})

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of both views (b, D) each; one pass of the network, so that they share batch statistics."""
        (tower,) = self.network.names()
        inputs = batch[self.network.plans[tower].input]
        first, second = network({tower: torch.cat(tuple(inputs.views))})[tower].chunk(2)
        supports = embed_supports(self.network, tower, inputs.supports)
        (loss_fn,) = self.directions.values()
        loss: Tensor = loss_fn(first, second, batch.ids, rows=batch.rows, supports=supports, progress=progress)
        return loss
