"""`Method`: how a batch of views runs through encoders and becomes a loss."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn

from antipodes.encoders.heads import HeadKind, head
from antipodes.negatives.policy import Policy
from antipodes.objectives.objective import Objective

Network = Callable[[Tensor | Sequence[Tensor]], Tensor]


class Projection(nn.Module):
    """An encoder and its projection head: images (B, C, H, W) to embeddings (B, dim)."""

    def __init__(
        self,
        encoder: nn.Module,
        kind: HeadKind,
        hidden: int,
        dim: int,
        batch_norm: bool = False,
        centred: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        features: int = encoder.num_features  # type: ignore[assignment]
        self.head = head(kind, features, hidden, dim, batch_norm=batch_norm, centred=centred)

    def forward(self, images: Tensor | Sequence[Tensor]) -> Tensor:
        """Embed a batch, or several of any sizes one after the other, joined: data-parallel training wants one call."""
        if not isinstance(images, Tensor):
            return torch.cat([self(batch) for batch in images])
        out: Tensor = self.head(self.encoder(images))
        return out


class Method(nn.Module, ABC):
    """What the training loop needs to know of a method.

    `network` is what gradients train and what data-parallel training wraps; queues, banks, momentum encoders and the
    policy's tables are outside of it. `state_dict()` holds all of them.
    """

    channels: ClassVar[tuple[int, ...]] = (3,)  # one encoder per entry is built, with that many input channels
    views: ClassVar[int] = 2
    plain: ClassVar[bool] = False  # True: after the random views comes the image as evaluation sees it
    recipe: ClassVar[str] = "simclr"  # the augmentation a run uses unless told otherwise
    settings: ClassVar[Mapping[str, float]] = {}  # options of the training loop, likewise
    crops: tuple[int, ...] = ()  # sizes of smaller views, which come after the others
    crop_recipe: str = "moco-v2"  # their augmentation
    normalised: ClassVar[bool] = True  # False: the method wants RGB in [0, 1]
    accumulates: ClassVar[bool] = False  # True: negatives do not come from the batch, so gradients may be accumulated

    network: nn.Module
    objective: Objective
    precision: Callable[[], AbstractContextManager[None]] = nullcontext  # autocast, for networks outside `network`

    @property
    def supports(self) -> int:
        """How many views a step needs on top: the support views that the policy asks for."""
        policy = self.objective.negatives
        return 0 if policy is None else policy.supports

    @abstractmethod
    def loss(self, network: Network, ids: Tensor, views: Sequence[Tensor], progress: float) -> Tensor:
        """The loss of one batch.

        Args:
            network: `self.network`, or what a data-parallel wrapper made of it.
            ids: (b,) dataset indices of this rank's samples.
            views: `self.views` batches (b, 3, H, W), then `self.supports` more, one of each size in `self.crops`, and
                one of plain images with `self.plain`.
            progress: Share of training done, in [0, 1].
        """

    @abstractmethod
    def backbone(self) -> nn.Module:
        """The encoder whose features are evaluated: images (B, 3, H, W) to (B, F)."""

    def exports(self) -> dict[str, nn.Module]:
        """Encoders to write as files when the run ends, by file name without ending."""
        return {"encoder": self.backbone()}

    def after_step(self) -> None:
        """Take in what is new, once the optimiser has stepped: momentum encoders, queues, banks."""

    def statistics(self) -> dict[str, float]:
        """Numbers of the last step for the log."""
        return dict(self.objective.stats)


@torch.no_grad()
def embed_supports(network: Network, views: Sequence[Tensor]) -> Tensor | None:
    """Embeddings (S, B, D) of support views, without gradient; None where there are none."""
    return torch.stack([network(view) for view in views]) if views else None


def opens_cone(centred: bool | None, negatives: Policy | None) -> bool:
    """Whether a head in front of a bank or queue ends centred: as asked, or where a policy ranks what is there."""
    return (negatives is not None and negatives.ranks) if centred is None else centred


def frozen_copy(network: nn.Module) -> nn.Module:
    """A copy of a network that takes no gradient: the start of a momentum encoder."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(follower: nn.Module, network: nn.Module, momentum: float) -> None:
    """Follower <- momentum * follower + (1 - momentum) * network; parameters only, batch statistics are its own."""
    torch._foreach_lerp_(list(follower.parameters()), list(network.parameters()), 1 - momentum)
