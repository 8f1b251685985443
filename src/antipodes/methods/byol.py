"""BYOL: an online network predicts what a slowly moving copy makes of the other view; there are no negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.encoders.heads import head
from antipodes.losses import Regression
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import PREDICTION, Network, PredictingTowers, Tower, Towers, follow, frozen_copy
from antipodes.schedules import cosine


class BYOL(Method):
    """Bootstrap your own latent (Grill et al. 2020).

    1. p = predictor(online network(view)) for both views, targets t = target network(view) without gradient
    2. loss = |p(1) - t(2)|^2 + |p(2) - t(1)|^2, all of length 1, mean over samples (`Regression`)
    3. after the optimiser's step: target <- m target + (1 - m) online, where m rises to 1 by a cosine

    No other sample is in the loss, so it takes no policy. The predictor and the batch normalisation in the heads keep
    the embeddings from becoming all the same; `stats["target_similarity"]` of the loss shows whether they do.

    Args:
        network: One tower.
        loss_fn: The loss.
        dim: Dimension of the embeddings.
        momentum: Share of the target that stays at the first step: the paper's 0.996 for 1000 epochs, 0.99 for 300.
        hidden: Width of the predictor's hidden layer; the paper's 4096 is for ResNet-50.
        batch_norm: Batch normalisation in the predictor's hidden layer.
    """

    run = {
        "augmentation": "simclr",
        "head": {"kind": "mlp2", "batch_norm": True},
        "loss": {"name": "regression"},
    }
    trains = ("regression",)

    def __init__(
        self,
        network: Towers,
        loss_fn: Regression,
        dim: int = 128,
        momentum: float = 0.99,
        hidden: int = 512,
        batch_norm: bool = True,
    ) -> None:
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], got {momentum}: it is the share of the target that stays")
        (name,) = network.names()
        predictor = head("mlp2", dim, hidden, dim, batch_norm=batch_norm)
        super().__init__(PredictingTowers(network, predictor), {name: loss_fn})
        self.momentum = cosine(momentum, 1.0)
        self.target = frozen_copy(network[name])
        self._progress = 0.0  # of the current step

    def copies(self, tower: str) -> list[Tower]:
        """Return the online tower and the target tower."""
        assert isinstance(self.target, Tower)
        return [self.network[tower], self.target]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of both views' predictions against the targets of the other view.

        1. One pass of the online network gives predictions (2b, D), first views first.
        2. One pass of the target network gives targets (2b, D), second views first.
        3. The mean over 2b rows, times 2: the sum of both orders, as in the paper's Eq. 3.
        """
        (tower,) = self.network.names()
        first, second = batch[self.network.plans[tower].input].views
        predictions = network({tower: torch.cat((first, second))})[PREDICTION]
        with torch.no_grad(), self.precision():
            targets = self.target(torch.cat((second, first)))
        self._progress = progress
        loss: Tensor = 2 * self.directions[tower](predictions, targets)
        return loss

    def after_step(self) -> None:
        """Move the target tower towards the online tower."""
        (tower,) = self.network.names()
        follow(self.target, self.network[tower], self.momentum(self._progress))
