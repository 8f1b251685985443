"""`NetworkGuide` and `MomentumGuide`: networks without gradient that embed the same inputs as the trained encoder."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.arguments import checked
from antipodes.guides.guide import GuideSource
from antipodes.pairs import normalise


class NetworkGuide(GuideSource):
    """A frozen network that embeds the inputs of each batch, always in evaluation mode.

    Args:
        network: A module that maps inputs to vectors (B, G), such as a pretrained encoder. It is frozen, not copied.

    Example:
        >>> guide = NetworkGuide(nn.Identity())
        >>> guide(torch.tensor([0]), torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    @checked
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> NetworkGuide:
        """Set the mode of this module; the network stays in evaluation mode."""
        super().train(mode)
        self.network.eval()
        return self

    @torch.no_grad()
    def forward(self, rows: Tensor, inputs: Any = None) -> Tensor:
        """Return the vectors (B, G) of these inputs, with length 1."""
        if inputs is None:
            raise ValueError(f"{type(self).__name__} embeds inputs and got none: call guide(rows, inputs)")
        return normalise(self.network(inputs))


class MomentumGuide(NetworkGuide):
    """An exponential moving average of the trained network, as MoCo's key network is.

    Args:
        network: The network that is trained; the guide keeps a copy of it.
        momentum: Share of the copy's weights that each update keeps, in [0, 1).

    Example:
        >>> network = nn.Linear(4, 2)
        >>> guide = MomentumGuide(network, momentum=0.99)
        >>> guide.update(network)  # after every step of the optimiser
        >>> guide(torch.tensor([0]), torch.ones(1, 4)).shape
        torch.Size([1, 2])
    """

    changes = True

    @checked
    def __init__(self, network: nn.Module, momentum: float = 0.999) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}: with 1 the copy would never change")
        super().__init__(copy.deepcopy(network))
        self.momentum = momentum

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Move the copy towards the trained network: copy <- momentum * copy + (1 - momentum) * network.

        Buffers, such as batch statistics, are copied. In `eval()` nothing changes.
        """
        if not self.training:
            return
        for copied, trained in zip(self.network.parameters(), network.parameters(), strict=True):
            copied.lerp_(trained.to(copied), 1 - self.momentum)
        for copied_buffer, buffer in zip(self.network.buffers(), network.buffers(), strict=True):
            copied_buffer.copy_(buffer)
