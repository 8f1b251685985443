"""SimSiam: each view predicts the other view's embedding, whose gradient is stopped; there is no second network."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.encoders.heads import head
from antipodes.losses import Regression
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import PREDICTION, Network, PredictingTowers, Towers


class SimSiam(Method):
    """Exploring simple siamese representation learning (Chen and He 2021).

    1. z = network(view) and p = predictor(z) for both views
    2. loss = - cos(p(1), stop_grad z(2)) / 2 - cos(p(2), stop_grad z(1)) / 2, mean over samples (`Regression`)

    No other sample is in the loss, so it takes no policy. It ranges from 1 down to -1.

    Args:
        network: One tower. Its head ends in a batch normalisation without scale and shift.
        loss_fn: The loss.
        dim: Dimension of the embeddings.
        hidden: Width of the predictor's hidden layer, a bottleneck: the paper's is a quarter of the dimension.
        batch_norm: Batch normalisation in the predictor's hidden layer.
    """

    run = {
        "augmentation": "simclr",
        "head": {"kind": "mlp3", "batch_norm": True, "centred": True},
        "loss": {"name": "regression"},
    }
    trains = ("regression",)

    def __init__(
        self, network: Towers, loss_fn: Regression, dim: int = 128, hidden: int = 32, batch_norm: bool = True
    ) -> None:
        (name,) = network.names()
        predictor = head("mlp2", dim, hidden, dim, batch_norm=batch_norm)
        super().__init__(PredictingTowers(network, predictor), {name: loss_fn})

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the negative cosine of both views' predictions and the other view's embeddings.

        1. One pass of the network gives embeddings (2b, D) and predictions (2b, D), first views first.
        2. The embeddings are swapped, so that row i of the first b is the second view of sample i.
        3. `Regression` is 2 - 2 cos, so half of it minus 1 is the mean of - cos.
        """
        (tower,) = self.network.names()
        out = network({tower: torch.cat(tuple(batch[self.network.plans[tower].input].views))})
        first, second = out[tower].chunk(2)
        loss: Tensor = self.directions[tower](out[PREDICTION], torch.cat((second, first))) / 2 - 1
        return loss
