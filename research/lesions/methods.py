"""Lesions of methods."""

from __future__ import annotations

from torch import Tensor

from antipodes.methods.hnssl import HNSSL
from antipodes.methods.towers import Network, Tower, TowerPlan, Towers

TARGET = "target"


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
