"""CLIP: images against the texts of the batch, and texts against the images."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from antipodes.candidates.cross import cross_pairs
from antipodes.identity import NEGATIVE_INPUT
from antipodes.losses import Loss, TwoWay
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, TowerPlan, Towers, embed_supports
from antipodes.pairs import normalise


class CLIP(Method):
    """Contrastive image-text training (Radford et al. 2021), and any other two inputs that show the same sample.

    Each image is an anchor among the batch's texts and each text among its images; the loss is the mean of both
    directions. With the loss `global-contrastive` this is SogCLR's bimodal loss (FastCLIP with a learnable
    temperature), with `sigmoid` SigLIP's.

    Args:
        network: Two towers.
        loss_fn: The loss of the first direction. The second gets a copy with policies of its own, because thresholds
            for images do not apply to texts.
    """

    run = {
        "augmentation": "crop-flip",
        "head": {"kind": "mlp2", "dim": 256, "activation": "gelu"},
        "loss": {"temperature": 0.07},
        "temperature": {"learnable": True, "floor": 0.01},
    }
    views = 1

    def __init__(self, network: Towers, loss_fn: Loss) -> None:
        first, second = network.names()
        both = TwoWay(loss_fn, (f"{first}_to_{second}", f"{second}_to_{first}"))
        super().__init__(network, dict(both.directions.items()))
        self._both = (both,)  # in a tuple, so that its directions are registered once, as the method's

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """One tower for each of the two inputs; given negatives are not used."""
        modalities = {name: kind for name, kind in modalities.items() if not name.startswith(NEGATIVE_INPUT)}
        if len(modalities) != 2:
            raise ValueError(f"CLIP compares two inputs of every sample and the data has {', '.join(modalities)}")
        return {name: TowerPlan(name, modality) for name, modality in modalities.items()}

    def anchor_tower(self, direction: str) -> str:
        """Return the anchors' tower, such as `image` of `image_to_text`."""
        return direction.partition("_to_")[0]

    def candidate_tower(self, direction: str) -> str:
        """Return the candidates' tower, such as `text` of `image_to_text`."""
        return direction.partition("_to_")[2]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Return the mean loss of both directions, each against the other input's embeddings from all ranks.

        1. Each tower embeds its input: (b, D) for images and (b, D) for texts.
        2. In `image_to_text` images are anchors and texts candidates; in `text_to_image` the reverse.
        """
        plans = self.network.plans
        inputs = {name: batch[plan.input].views[0] for name, plan in plans.items()}
        embeddings = network(inputs)
        if not self.supports:
            loss: Tensor = self._both[0](*embeddings.values(), batch.ids, rows=batch.rows, progress=progress)
            return loss
        losses = []
        for direction, loss_fn in self.pair_losses().items():
            anchors, others = (normalise(embeddings[tower]) for tower in direction.split("_to_"))
            tower = self.anchor_tower(direction)
            supports = embed_supports(self.network, tower, batch[plans[tower].input].supports)
            pairs = cross_pairs(anchors, others, batch.ids, batch.rows).with_supports(supports)
            losses.append(loss_fn.evaluate(pairs, progress))
        return torch.stack(losses).mean()
