"""`NetworkGuide` and `MomentumGuide`: networks that embed the same inputs, and take no gradient."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.guides.guide import GuideSource
from antipodes.pairs import normalise


class NetworkGuide(GuideSource):
    """A frozen network that looks at the same inputs as the encoder, always in evaluation mode.

    Args:
        network: Inputs to vectors (B, G); a pretrained encoder, for example. It is not copied.

    Example:
        >>> guide = NetworkGuide(nn.Identity())
        >>> guide(torch.tensor([0]), torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    needs_inputs = True

    @checked
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> NetworkGuide:
        """Change the mode of this module; the network stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    @torch.no_grad()
    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """The vectors (B, G) of these inputs."""
        if inputs is None:
            raise ValueError(f"{type(self).__name__} embeds inputs and was given rows alone: give it inputs, too")
        return normalise(self.network(inputs))


class MomentumGuide(NetworkGuide):
    """A network that follows the trained one slowly, as MoCo's key network does.

    Args:
        network: The network that is trained; a copy of it is kept.
        momentum: Share of the copy that stays at each update.
    """

    @checked
    def __init__(self, network: nn.Module, momentum: float = 0.999) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}: 1 would never follow")
        super().__init__(copy.deepcopy(network))
        self.momentum = momentum

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Follow the trained network by a step; its batch statistics are taken as they are."""
        if not self.training:
            return
        for ours, theirs in zip(self.network.parameters(), network.parameters(), strict=True):
            ours.lerp_(theirs.to(ours), 1 - self.momentum)
        for kept, fresh in zip(self.network.buffers(), network.buffers(), strict=True):
            kept.copy_(fresh)
