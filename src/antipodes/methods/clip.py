"""CLIP: two modalities of every sample, each against the other's samples in the batch."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from antipodes.candidates.cross import cross_pairs
from antipodes.methods.batch import Batch
from antipodes.methods.method import Method
from antipodes.methods.towers import Network, TowerPlan, Towers, embed_supports
from antipodes.objectives import Objective
from antipodes.pairs import normalise


class CLIP(Method):
    """Contrastive image-text training (Radford et al. 2021), and any other two inputs that show the same sample.

    Each image is an anchor among the batch's texts and each text among its images; the loss is the mean of both
    directions. With the objective `global-contrastive` this is SogCLR's bimodal loss (FastCLIP with a learnable
    temperature), with `sigmoid` SigLIP's.

    Args:
        network: Two towers.
        objective: The loss of the first direction; the second gets a copy with policies of its own, because thresholds
            of images mean nothing to texts.
    """

    run = {
        "augmentation": "crop-flip",
        "head": {"kind": "mlp2", "dim": 256, "activation": "gelu"},
        "objective": {"temperature": 0.07},
    }
    views = 1

    def __init__(self, network: Towers, objective: Objective) -> None:
        first, second = network.names()
        directions = {f"{first}_to_{second}": objective, f"{second}_to_{first}": copy.deepcopy(objective)}
        super().__init__(network, directions)

    @classmethod
    def plan(cls, modalities: Mapping[str, str]) -> dict[str, TowerPlan]:
        """One tower for each of the two inputs."""
        if len(modalities) != 2:
            raise ValueError(f"CLIP compares two inputs of every sample and the data has {', '.join(modalities)}")
        return {name: TowerPlan(name, modality) for name, modality in modalities.items()}

    def anchor_tower(self, direction: str) -> str:
        """`image` of `image_to_text`."""
        return direction.partition("_to_")[0]

    def candidate_tower(self, direction: str) -> str:
        """`text` of `image_to_text`."""
        return direction.partition("_to_")[2]

    def loss(self, network: Network, batch: Batch, progress: float) -> Tensor:
        """Both directions, each against the other modality's embeddings on all ranks."""
        inputs = {name: batch[plan.input].views[0] for name, plan in self.network.plans.items()}
        embeddings = {name: normalise(part) for name, part in network(inputs).items()}
        losses = []
        for direction, objective in self.objectives().items():
            tower = self.anchor_tower(direction)
            pairs = cross_pairs(embeddings[tower], embeddings[self.candidate_tower(direction)], batch.ids, batch.rows)
            supports = embed_supports(self.network, tower, batch[self.network.plans[tower].input].supports)
            losses.append(objective.evaluate(pairs.with_supports(supports), progress))
        return torch.stack(losses).mean()
