"""MoCo: queries against a queue of keys from a slowly moving copy of the encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from antipodes.candidates.queue import Queue
from antipodes.encoders.heads import HeadKind
from antipodes.methods.method import Method, Network, Projection, embed_supports, follow, frozen_copy, opens_cone
from antipodes.negatives.policy import Policy
from antipodes.objectives import InfoNCE, Treatment
from antipodes.pairs import Pairs, normalise


class MoCo(Method):
    """MoCo (He et al. 2020; v2 Chen et al. 2020): the defaults are v2's, `MoCoV1` has v1's.

    1. queries q = network(view 1), keys k = momentum network(view 2), no gradient to the keys
    2. InfoNCE of q against its k and the queue
    3. after the optimiser's step: the momentum network follows, the queue takes the keys

    The queue knows the samples its keys came from, so an anchor's own stale keys are never its negatives: this matters
    when the queue is large for the data.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        temperature: Divides the similarities.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys; the paper's 65,536 is for ImageNet, 4,096 is usual for tens of thousands of images.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        batch_norm: Batch normalisation in the head.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
        negatives: The policy that decides which keys count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
    """

    recipe = "moco-v2"
    accumulates = True
    network: Projection

    def __init__(
        self,
        encoder: nn.Module,
        temperature: float = 0.2,
        momentum: float = 0.999,
        queue_size: int = 65536,
        head: HeadKind = "mlp2",
        hidden: int = 2048,
        dim: int = 128,
        batch_norm: bool = False,
        centred: bool | None = None,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum must be in [0, 1], got {momentum}: it is the share of the key network that stays"
            )
        self.momentum = momentum
        self.network = Projection(encoder, head, hidden, dim, batch_norm, opens_cone(centred, negatives))
        self.key_network = frozen_copy(self.network)
        self.queue = Queue(queue_size, dim)
        self.objective = InfoNCE(temperature, negatives, treatment)
        self._fresh: list[tuple[Tensor, Tensor]] = []

    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """Queries of the first views against keys of the second and the queue."""
        queries = normalise(network(views[0]))
        with torch.no_grad(), self.precision():
            keys = normalise(self.key_network(views[1]))
            supports = embed_supports(self.key_network, views[2:])
        self._fresh.append((keys, ids))
        pairs = Pairs(queries, ids, (queries * keys).sum(1), self.queue.keys, self.queue.ids, keys)
        return self.objective.evaluate(pairs.with_supports(supports), progress)

    def after_step(self) -> None:
        """The key network follows, the queue takes the keys of this step (of all its accumulated parts)."""
        follow(self.key_network, self.network, self.momentum)
        for keys, ids in self._fresh:
            self.queue.push(keys, ids)
        self._fresh.clear()

    def backbone(self) -> nn.Module:
        """The query encoder without its head."""
        return self.network.encoder


class MoCoV1(MoCo):
    """MoCo v1: a linear head, temperature 0.07 and the older augmentation.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        temperature: Divides the similarities.
        momentum: Share of the key network that stays at each step.
        queue_size: Number of keys.
        dim: Dimension of the embeddings that the loss compares.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
        negatives: The policy that decides which keys count; None keeps all.
        treatment: What happens to false negatives: eliminate, attract or refine.
    """

    recipe = "moco-v1"

    def __init__(
        self,
        encoder: nn.Module,
        temperature: float = 0.07,
        momentum: float = 0.999,
        queue_size: int = 65536,
        dim: int = 128,
        centred: bool | None = None,
        negatives: Policy | None = None,
        treatment: Treatment = "eliminate",
    ) -> None:
        super().__init__(
            encoder,
            temperature,
            momentum,
            queue_size,
            "linear",
            dim,
            dim,
            centred=centred,
            negatives=negatives,
            treatment=treatment,
        )
