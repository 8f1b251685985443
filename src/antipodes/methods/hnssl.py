"""HNSSL: online features of a view against slowly moving features of the plain image, with mined negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from antipodes.methods.method import Method, Network, follow, frozen_copy
from antipodes.objectives.hard_pairs import HardPairs, Scale


class Twins(nn.Module):
    """The online and the target encoder side by side: views, then plain images, to their features."""

    def __init__(self, online: nn.Module, target: nn.Module) -> None:
        super().__init__()
        self.online = online
        self.target = target

    def forward(self, images: Tensor) -> Tensor:
        """(2B, 3, H, W) to (2B, F): the first half by the online, the second by the target encoder."""
        views, plain = images.chunk(2)
        return torch.cat((self.online(views), self.target(plain)))


class HNSSL(Method):
    """Hard negative-based self-supervised learning (Zhu et al. 2023).

    1. U = online encoder(augmented view), U' = target encoder(plain image), the encoders' own features, without a head
    2. `HardPairs`: U_i is pulled to U'_i, and the hard negatives U_k of the batch are pushed away from U'_i
    3. after the optimiser's step: target <- momentum * target + (1 - momentum) * online

    Gradients train the online encoder alone, which is also the one that is evaluated. The paper calls the online
    network the teacher and the target the student, and its tau is the momentum here: 1 never moves the target (the
    paper's 24.0 % on ImageNet), 0.999 moves it slowly (73.4 %), 0.5 is the default (77.1 %), 0 copies the online
    encoder (49.1 %). Its lesions: `quantile` 1 takes all negatives, `target_gradient` trains the target too.

    What it reaches in short runs, its lesions included, is in docs/evidence/hard-negatives.md. The paper trains with
    Adam and batches of 160: `hnssl-paper` has its settings.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        momentum: Share of the target encoder that stays at each step.
        top_k: So many of the closest negatives are hard; 1 where neither quantile nor threshold is given.
        quantile: This share of the negatives is hard, the closest, at least one; 1 takes all negatives.
        threshold: Negatives of at most this distance are hard.
        positive_weight: Weight of the distance to the positive.
        negative_weight: Weight of the log distance to the hard negatives.
        epsilon: Keeps the logarithm of coinciding pairs finite.
        scale: What features are divided by: their largest absolute entry, or their length.
        target_gradient: Let gradients train the target encoder too, before it moves.
    """

    views = 1
    plain = True
    recipe = "hnssl"
    settings = {"clip_gradient": 1.0}
    objective: HardPairs  # type: ignore[assignment]

    def __init__(
        self,
        encoder: nn.Module,
        momentum: float = 0.5,
        top_k: int | None = None,
        quantile: float | None = None,
        threshold: float | None = None,
        positive_weight: float = 0.8,
        negative_weight: float = 0.1,
        epsilon: float = 1e-6,
        scale: Scale = "largest",
        target_gradient: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must be in [0, 1], got {momentum}: it is the share of the target that stays")
        self.momentum = momentum
        self.target_gradient = target_gradient
        target = frozen_copy(encoder)
        if target_gradient:
            self.network: nn.Module = Twins(encoder, target.requires_grad_(True))
        else:
            self.network, self._target = encoder, target
        self.objective = HardPairs(top_k, quantile, threshold, positive_weight, negative_weight, epsilon, scale)

    @property
    def target(self) -> nn.Module:
        """The target encoder."""
        return self.network.target if isinstance(self.network, Twins) else self._target

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Online features of the view against target features of the plain image."""
        if self.target_gradient:
            online, target = network(torch.cat(tuple(views))).chunk(2)
        else:
            online = network(views[0])
            with torch.no_grad(), self.precision():
                target = self.target(views[1])
        loss: Tensor = self.objective(online, target, ids)
        return loss

    def after_step(self) -> None:
        """The target follows."""
        follow(self.target, self.backbone(), self.momentum)

    def backbone(self) -> nn.Module:
        """The online encoder."""
        return self.network.online if isinstance(self.network, Twins) else self.network
