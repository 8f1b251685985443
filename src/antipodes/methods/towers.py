"""Towers: an encoder with its projection head, by name; the network of every method."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from antipodes.encoders.chunks import embed_pieces
from antipodes.encoders.text import TextEncoder, encode_by_length

Module = TypeVar("Module", bound=nn.Module)
Network = Callable[[Mapping[str, "Tensor | Sequence[Tensor]"]], dict[str, Tensor]]
"""A method's network: a function from inputs by tower to embeddings by tower."""


@dataclass(frozen=True)
class TowerPlan:
    """What a method needs from a tower, before the tower is built.

    Attributes:
        input: Name of the dataset's input that the tower embeds.
        modality: The input's modality: image, text or vector.
        channels: Channels of the images that its encoder takes.
        prepare: A module that converts the plain input for the encoder; None for no conversion.
        further: Names of further inputs of the same kind that the tower embeds, such as given negatives.
        shares: The tower whose encoder and head are this tower's, too, unless a run names an encoder for one of them.
    """

    input: str
    modality: str = "image"
    channels: int = 3
    prepare: nn.Module | None = None
    further: tuple[str, ...] = ()
    shares: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs that the tower embeds; none for a tower that no input of the data reaches."""
        return (self.input, *self.further) if self.input else ()


class Tower(nn.Module):
    """An encoder and its head: inputs of one kind to embeddings (B, dim).

    Attributes:
        frozen: True if the encoder is not trained.
        cached: True if the inputs are already the encoder's features, which were computed once and are looked up.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.frozen = False
        self.cached = False

    def freeze(self) -> None:
        """Exclude the encoder from training: it gets no gradient and stays in evaluation mode."""
        self.frozen = True
        self.encoder.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Tower:
        """Set the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        """Embed a batch, or several batches in one call, as data-parallel training needs; results are concatenated."""
        if not isinstance(inputs, Tensor):
            return torch.cat([self(batch) for batch in inputs])
        if self.cached:
            features = inputs
        elif isinstance(self.encoder, TextEncoder):
            features = encode_by_length(self.encoder, inputs)
        else:
            features = self.encoder(inputs)
        out: Tensor = self.head(features)
        return out


class Towers(nn.Module):
    """The towers of a method by name: the module that gradients train and data-parallel training wraps.

    Two names may stand for one tower, as where one encoder embeds queries and documents.

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
        """Map inputs by tower to embeddings by tower."""
        return {name: self.towers[name](batch) for name, batch in inputs.items()}

    def __getitem__(self, name: str) -> Tower:
        """Return the tower of that name."""
        tower = self.towers[name]
        assert isinstance(tower, Tower)
        return tower

    def names(self) -> list[str]:
        """Return the names of the towers, in order."""
        return list(self.towers)

    def seeing(self, input_name: str) -> list[str]:
        """Return the names of the towers that embed an input."""
        return [name for name, plan in self.plans.items() if input_name in plan.inputs]


PREDICTION = "prediction"
"""The name of the predictor's output, next to the embeddings by tower."""


class PredictingTowers(Towers):
    """Towers with one more trained module, the predictor, on the embeddings of the only tower.

    The predictor is inside the network, so that one data-parallel pass runs both and gradients train both. It is not a
    tower: it is neither evaluated nor exported.

    Args:
        network: One tower.
        predictor: A module on the tower's embeddings (B, D): BYOL's and SimSiam's predictor, SwAV's prototypes.

    Example:
        >>> towers = PredictingTowers(Towers({"image": Tower(nn.Flatten(), nn.Linear(4, 2))}), nn.Linear(2, 5))
        >>> {name: tuple(output.shape) for name, output in towers({"image": torch.zeros(3, 2, 2)}).items()}
        {'image': (3, 2), 'prediction': (3, 5)}
    """

    def __init__(self, network: Towers, predictor: nn.Module) -> None:
        super().__init__({name: network[name] for name in network.names()}, network.plans)
        self.predictor = predictor

    def forward(self, inputs: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
        """Map inputs by tower to embeddings (B, D) by tower, and the predictor's output for them."""
        embeddings = super().forward(inputs)
        (only,) = embeddings.values()
        return {**embeddings, PREDICTION: self.predictor(only)}


class JoinedEncoders(nn.Module):
    """Several encoders on the same input, whose features are concatenated."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (B, ...) to the concatenated features (B, F)."""
        return torch.cat([encoder(inputs) for encoder in self.encoders], dim=1)


class InPieces:
    """A method's network that embeds batches in pieces, as `antipodes.chunked` does.

    Inputs of equal length go through their towers in one pass, so that data-parallel training sees one pass.

    Args:
        network: The towers, or what a data-parallel wrapper made of them.
        micro_batch: Inputs of each tower in a piece.
    """

    def __init__(self, network: Network, micro_batch: int) -> None:
        self.network, self.micro_batch = network, micro_batch

    def __call__(self, inputs: Mapping[str, Tensor | Sequence[Tensor]]) -> dict[str, Tensor]:
        """Embed inputs by tower; return embeddings by tower."""
        whole = {name: [each] if isinstance(each, Tensor) else each for name, each in inputs.items()}
        parts = {
            name: [part for each in batches for part in each.split(self.micro_batch)] for name, batches in whole.items()
        }
        pieces: list[dict[str, Tensor]]
        if len({tuple(map(len, each)) for each in parts.values()}) == 1:
            pieces = [dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True)]
        else:
            pieces = [{name: part} for name, several in parts.items() for part in several]
        outputs = embed_pieces(self.network, pieces)
        names = dict.fromkeys(name for output in outputs for name in output)
        return {name: torch.cat([output[name] for output in outputs if name in output]) for name in names}


@torch.no_grad()
def embed_supports(network: Network, tower: str, views: Sequence[Tensor]) -> Tensor | None:
    """Embed support views without gradient: (S, B, D); None if there are none."""
    return torch.stack([network({tower: view})[tower] for view in views]) if views else None


def frozen_copy(network: Module) -> Module:
    """Return a copy of a network without gradient: the initial momentum encoder."""
    return copy.deepcopy(network).requires_grad_(False)


@torch.no_grad()
def follow(follower: nn.Module, network: nn.Module, momentum: float) -> None:
    """Set follower <- momentum * follower + (1 - momentum) * network, for parameters; buffers are unchanged."""
    torch._foreach_lerp_(list(follower.parameters()), list(network.parameters()), 1 - momentum)
