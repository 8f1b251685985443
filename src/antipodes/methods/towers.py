"""Towers: each an encoder with its head, by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)
Network = Callable[[Mapping[str, "Tensor | Sequence[Tensor]"]], dict[str, Tensor]]
"""What a method's network is: inputs by tower to embeddings by tower."""


@dataclass(frozen=True)
class TowerPlan:
    """What a method needs a tower for, before there is one.

    Attributes:
        input: Name of the dataset's input that it sees.
        modality: Of that input: image, text or vector.
        channels: Channels of the images that its encoder takes, where the input is an image.
        prepare: What stands between the input as evaluation sees it and the encoder; None for nothing.
    """

    input: str
    modality: str = "image"
    channels: int = 3
    prepare: nn.Module | None = None


class Tower(nn.Module):
    """An encoder and its head: inputs of one kind to embeddings (B, dim).

    Attributes:
        frozen: Whether the encoder is out of training.
        cached: Whether what comes in are the encoder's features already: a locked tower's, computed once.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.frozen = False
        self.cached = False

    def freeze(self) -> None:
        """Take the encoder out of training: it gets no gradient and stays in evaluation mode."""
        self.frozen = True
        self.encoder.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Tower:
        """Switch to training, but for a frozen encoder."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        """Embed a batch, or several of any sizes one after the other, joined: data-parallel training wants one call."""
        if not isinstance(inputs, Tensor):
            return torch.cat([self(batch) for batch in inputs])
        features = inputs if self.cached else self.encoder(inputs)
        out: Tensor = self.head(features)
        return out


class Towers(nn.Module):
    """The towers of a method side by side: what gradients train, and what data-parallel training wraps.

    Example:
        >>> towers = Towers({"image": Tower(nn.Flatten(), nn.Linear(4, 2))})
        >>> towers({"image": torch.zeros(3, 2, 2)})["image"].shape
        torch.Size([3, 2])
    """

    def __init__(self, towers: Mapping[str, Tower], plans: Mapping[str, TowerPlan] | None = None) -> None:
        super().__init__()
        self.towers = nn.ModuleDict(dict(towers))
        self.plans = dict(plans) if plans is not None else {name: TowerPlan(name) for name in towers}

    def forward(self, inputs: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
        """Inputs by tower to embeddings by tower."""
        return {name: self.towers[name](batch) for name, batch in inputs.items()}

    def __getitem__(self, name: str) -> Tower:
        """The tower of that name."""
        tower = self.towers[name]
        assert isinstance(tower, Tower)
        return tower

    def names(self) -> list[str]:
        """The names of the towers, in order."""
        return list(self.towers)

    def seeing(self, input_name: str) -> list[str]:
        """The names of the towers that see an input."""
        return [name for name, plan in self.plans.items() if plan.input == input_name]


class JoinedEncoders(nn.Module):
    """Several encoders on the same input, their features side by side."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, ...) to (B, the sum of their features)."""
        return torch.cat([encoder(inputs) for encoder in self.encoders], dim=1)


@torch.no_grad()
def embed_supports(network: Network, tower: str, views: Sequence[Tensor]) -> Tensor | None:
    """Embeddings (S, B, D) of support views, without gradient; None where there are none."""
    return torch.stack([network({tower: view})[tower] for view in views]) if views else None


def frozen_copy(network: Module) -> Module:
    """A copy of a network that takes no gradient: the start of a momentum encoder."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(follower: nn.Module, network: nn.Module, momentum: float) -> None:
    """Follower <- momentum * follower + (1 - momentum) * network; parameters only, batch statistics are its own."""
    torch._foreach_lerp_(list(follower.parameters()), list(network.parameters()), 1 - momentum)
