"""SimCLR, SogCLR and SupCon: two views of every sample, the batch as candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from antipodes.encoders.heads import HeadKind
from antipodes.methods.method import Method, Network, Projection, embed_supports
from antipodes.negatives import Oracle, Policy
from antipodes.objectives import GlobalContrastive, InfoNCE, Objective, Treatment


class SimCLR(Method):
    """SimCLR (Chen et al. 2020): both views of a sample attract, all other views of the batch are candidates.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        temperature: Divides the similarities.
        head: Projection head between features and loss; it is thrown away after training.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        batch_norm: Batch normalisation in the head.
        centred: End the head in a batch normalisation without scale and shift.
        negatives: The policy that decides which candidates count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
    """

    network: Projection

    def __init__(
        self,
        encoder: nn.Module,
        temperature: float = 0.2,
        head: HeadKind = "mlp2",
        hidden: int = 512,
        dim: int = 128,
        batch_norm: bool = True,
        centred: bool = False,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__()
        self.network = Projection(encoder, head, hidden, dim, batch_norm, centred)
        self.objective: Objective = InfoNCE(temperature, negatives, treatment)

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Both views in one pass of the network, so that they share batch statistics."""
        first, second = network(torch.cat(tuple(views[:2]))).chunk(2)
        supports = embed_supports(self.network, views[2:])
        loss: Tensor = self.objective(first, second, ids, supports=supports, progress=progress)
        return loss

    def backbone(self) -> nn.Module:
        """The encoder without its head."""
        return self.network.encoder


class SogCLR(SimCLR):
    """SogCLR (Yuan et al. 2022): SimCLR's layout with the global contrastive objective, for small batches.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        gamma: Weight of a batch's estimate in the running denominator.
        gamma_until: Share of training over which gamma falls from 1 by a cosine; 0 keeps it constant.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        batch_norm: Batch normalisation in the head.
        negatives: The policy that decides which candidates count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
        folder: Keep the denominators in a memory-mapped file in this folder, for datasets too large for the memory.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_samples: int,
        temperature: float = 0.2,
        gamma: float = 0.9,
        gamma_until: float = 0.0,
        head: HeadKind = "mlp2",
        hidden: int = 512,
        dim: int = 128,
        batch_norm: bool = True,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
        folder: str | None = None,
    ) -> None:
        super().__init__(encoder, temperature, head, hidden, dim, batch_norm)
        self.objective = GlobalContrastive(
            num_samples, temperature, gamma, gamma_until, negatives, treatment, folder=folder
        )


class SupCon(SimCLR):
    """SupCon (Khosla et al. 2020): SimCLR that pulls all views of the same label. It reads the labels.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        labels: (n,) the true labels of the dataset.
        temperature: Divides the similarities.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        batch_norm: Batch normalisation in the head.
    """

    def __init__(
        self,
        encoder: nn.Module,
        labels: Tensor,
        temperature: float = 0.1,
        head: HeadKind = "mlp2",
        hidden: int = 512,
        dim: int = 128,
        batch_norm: bool = True,
    ) -> None:
        super().__init__(
            encoder, temperature, head, hidden, dim, batch_norm, negatives=Oracle(labels), treatment="attract"
        )
