"""HNSSL: online features of a view against target features of the plain image, with mined hard negatives."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.losses.hard_pairs import HardPairs
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, Tower, Towers, follow, frozen_copy


class HNSSL(Method):
    """Hard negative-based self-supervised learning (Zhu et al. 2023).

    1. U = online encoder(augmented view), U' = target encoder(plain image), the encoders' own features, without a head
    2. `HardPairs`: U_i is pulled to U'_i, and the hard negatives U_k of the batch are pushed away from U'_i
    3. after the optimiser's step: target <- momentum * target + (1 - momentum) * online

    Gradients train the online encoder alone, which is also the one that is evaluated. The paper calls the online
    network the teacher and the target the student, and its tau is the momentum here: 1 never moves the target (the
    paper's 24.0 % on ImageNet), 0.999 moves it slowly (73.4 %), 0.5 is the default (77.1 %), 0 copies the online
    encoder (49.1 %).

    What it reaches in short runs is in research/pages/hnssl.md. The paper trains with Adam and batches of 160:
    `hnssl-paper` has its settings.

    Args:
        network: One tower, without a head.
        loss_fn: The loss.
        momentum: Share of the target encoder that stays at each step.
    """

    run = {
        "augmentation": "hnssl",
        "head": {"kind": "none"},
        "loss": {"name": "hard-pairs"},
        "clip_gradient": 1.0,
    }
    trains = ("hard-pairs",)
    views = 1
    plain = True

    def __init__(self, network: Towers, loss_fn: HardPairs, momentum: float = 0.5) -> None:
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], got {momentum}: it is the share of the target that stays")
        name = network.names()[0]
        target = frozen_copy(network[name])
        assert isinstance(target, Tower)
        super().__init__(self._with_target(network, target), {name: loss_fn})
        self.momentum = momentum
        self._keep_target(target)

    @property
    def target(self) -> Tower:
        """Return the target encoder."""
        return self._target

    def _with_target(self, network: Towers, target: Tower) -> Towers:
        """Return the towers that are trained: the online encoder only. A subclass may train the target, too."""
        return network

    def _keep_target(self, target: Tower) -> None:
        """Register the target encoder as a module of the method."""
        self._target = target

    def copies(self, tower: str) -> list[Tower]:
        """Return the online tower and the target."""
        return [self.network[tower], self.target]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the loss of the views' online features (b, F) against the plain images' target features (b, F)."""
        name = self.network.names()[0]
        inputs = batch[self.network.plans[name].input]
        assert inputs.plain is not None
        online, target = self._features(network, inputs.views[0], inputs.plain)
        (loss_fn,) = self.directions.values()
        loss: Tensor = loss_fn(online, target, batch.ids, batch.rows)
        return loss

    def _features(self, network: Network, view: Tensor, plain: Tensor) -> tuple[Tensor, Tensor]:
        """Return online features of the views, and target features of the plain images, without gradient."""
        name = self.network.names()[0]
        online = network({name: view})[name]
        with torch.no_grad(), self.precision():
            target: Tensor = self.target(plain)
        return online, target

    def after_step(self) -> None:
        """Move the target encoder towards the online encoder."""
        follow(self.target, self.network[self.network.names()[0]], self.momentum)
