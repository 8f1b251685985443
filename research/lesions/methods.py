"""Variants of methods: HNSSL with gradients through its target, and training by the labels alone."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from antipodes.losses import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.hnssl import HNSSL
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, Tower, TowerPlan, Towers

TARGET = "target"


class CrossEntropy(Method):
    """Supervised training, the ceiling of what labels are worth: the head's outputs are the logits of the classes.

    The loss is the mean cross-entropy of one random view of every image and its label. The run's own loss is not used.

    Args:
        network: One tower, with a linear head.
        loss_fn: Not used; every run has one.
        labels: (n,) the class of every row.
        dim: Number of outputs, at least the number of classes.
    """

    run = {"augmentation": "simclr", "head": {"kind": "linear"}}
    views = 1

    def __init__(self, network: Towers, loss_fn: Loss, labels: Tensor, dim: int = 128) -> None:
        super().__init__(network, {})
        if labels.min() < 0 or labels.max() >= dim:
            raise ValueError(f"labels must be from 0 to {dim - 1}, got {int(labels.min())} to {int(labels.max())}")
        self.labels: Tensor
        self.register_buffer("labels", labels.long(), persistent=False)

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the cross-entropy of the views (b, ...) and the labels of their rows."""
        (tower,) = self.network.names()
        (view,) = batch[self.network.plans[tower].input].views
        return cross_entropy(network({tower: view})[tower], self.labels[batch.rows])


class TargetGradientHNSSL(HNSSL):
    """HNSSL whose gradients train the target encoder, too, before it follows (Figures 2 and 3 of its paper)."""

    @property
    def target(self) -> Tower:
        """The target encoder: one of the towers that are trained."""
        return self.network[TARGET]

    def _with_target(self, network: Towers, target: Tower) -> Towers:
        target.requires_grad_(True)
        target.frozen = False
        (name,) = network.names()
        # the target sees no input of its own
        return Towers({name: network[name], TARGET: target}, {**network.plans, TARGET: TowerPlan("")})

    def _keep_target(self, target: Tower) -> None:
        """The network holds it already."""

    def _features(self, network: Network, view: Tensor, plain: Tensor) -> tuple[Tensor, Tensor]:
        name = self.network.names()[0]
        features = network({name: view, TARGET: plain})
        return features[name], features[TARGET]
