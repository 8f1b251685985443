"""Small networks of linear layers: projection heads, which map features to embeddings, and encoders of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, cast

from torch import Tensor, nn

from antipodes.encoders.encoder import Encoder

HeadKind = Literal["linear", "mlp2", "mlp3"]
Activation = Literal["relu", "gelu"]

LAYERS: dict[HeadKind, int] = {"linear": 1, "mlp2": 2, "mlp3": 3}
"""Name of a head -> its number of linear layers."""


@dataclass(frozen=True)
class Head:
    """The settings of the projection head of every tower, which maps features to the embeddings that the loss compares.

    Args:
        kind: Number of linear layers: linear 1, mlp2 2, mlp3 3; with none the loss compares the encoder's features.
        hidden: Width of the hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        batch_norm: Batch normalisation in the hidden layers.
        centred: End in a batch normalisation without scale and shift; null does so if a policy ranks the candidates
            of a bank or queue.
        activation: Between the layers.
    """

    kind: Literal["none", "linear", "mlp2", "mlp3"] = "mlp2"
    hidden: int = 512
    dim: int = 128
    batch_norm: bool = False
    centred: bool | None = False
    activation: Activation = "relu"

    def build(self, features: int, ranked: bool = False) -> nn.Module:
        """Build the head for features of this length; `ranked` is True if a policy ranks the candidates."""
        if self.kind == "none":
            return nn.Identity()
        centred = ranked if self.centred is None else self.centred
        return head(
            self.kind,
            features,
            self.hidden,
            self.dim,
            batch_norm=self.batch_norm,
            centred=centred,
            activation=self.activation,
        )


def head(
    kind: HeadKind,
    in_features: int,
    hidden_features: int,
    out_features: int,
    *,
    batch_norm: bool = False,
    centred: bool = False,
    activation: Activation = "relu",
) -> nn.Sequential:
    """Build a head that maps features (B, in_features) to embeddings (B, out_features), not normalised.

    Args:
        kind: "linear" (MoCo v1, instance discrimination), "mlp2" (SimCLR, MoCo v2) or "mlp3" (SimCLR v2).
        in_features: length of the features.
        hidden_features: width of the hidden layers; a linear head has none.
        out_features: length of the embeddings.
        batch_norm: normalise every hidden layer before its ReLU (SimCLR does, MoCo v2 does not).
        centred: normalise the embeddings too, without scale or shift. ReLU features are all positive, so the embeddings
            of an untrained linear layer all point in nearly the same direction, and the order of their similarities is
            noise. Subtracting the mean spreads them. Policies that rank candidates need that.
        activation: between the layers.

    A linear layer before a batch normalisation has no bias, because the normalisation would subtract it.

    Raises:
        ValueError: the kind is unknown, or a size is below 1.

    Example:
        >>> len(head("mlp2", 512, 512, 128, batch_norm=True))  # Linear, BatchNorm1d, ReLU, Linear
        4
    """
    if kind not in LAYERS:
        raise ValueError(f"unknown head {kind!r}: choose one of {', '.join(LAYERS)}")
    if min(in_features, hidden_features, out_features) < 1:
        raise ValueError(f"a head's sizes must be at least 1, got {in_features}, {hidden_features}, {out_features}")
    sizes = [in_features] + [hidden_features] * (LAYERS[kind] - 1) + [out_features]
    layers: list[nn.Module] = []
    for number in range(1, len(sizes)):
        last = number == len(sizes) - 1
        normalise = centred if last else batch_norm
        layers.append(nn.Linear(sizes[number - 1], sizes[number], bias=not normalise))
        if normalise:
            layers.append(nn.BatchNorm1d(sizes[number], affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True) if activation == "relu" else nn.GELU())
    return nn.Sequential(*layers)


def embedding_length(module: nn.Module, features: int) -> int:
    """Return the length of a head's embeddings, for features of this length."""
    lengths = [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)]
    return lengths[-1] if lengths else features


def describe_head(module: nn.Module) -> list[list[object]]:
    """Describe a head as a list of its layers, from which `build_head` builds it again.

    Raises:
        ValueError: it has other layers than `head` makes.

    Example:
        >>> describe_head(head("mlp2", 4, 3, 2))
        [['linear', 4, 3, True], ['relu'], ['linear', 3, 2, True]]
    """
    layers: list[list[object]] = []
    for layer in [] if isinstance(module, nn.Identity) else module.children():
        if isinstance(layer, nn.Linear):
            layers.append(["linear", layer.in_features, layer.out_features, layer.bias is not None])
        elif isinstance(layer, nn.BatchNorm1d):
            layers.append(["batch_norm", layer.num_features, layer.affine])
        elif isinstance(layer, nn.ReLU | nn.GELU):
            layers.append(["relu" if isinstance(layer, nn.ReLU) else "gelu"])
        else:
            raise ValueError(f"a head with a {type(layer).__name__} cannot be described as a list of layers")
    return layers


def build_head(layers: Sequence[Sequence[Any]]) -> nn.Sequential:
    """Build a head from the list that `describe_head` returned.

    Raises:
        ValueError: a layer is of an unknown kind.
    """
    made: list[nn.Module] = []
    for kind, *sizes in layers:
        if kind == "linear":
            made.append(nn.Linear(sizes[0], sizes[1], bias=sizes[2]))
        elif kind == "batch_norm":
            made.append(nn.BatchNorm1d(sizes[0], affine=sizes[1]))
        elif kind in ("relu", "gelu"):
            made.append(nn.ReLU(inplace=True) if kind == "relu" else nn.GELU())
        else:
            raise ValueError(f"unknown layer {kind!r} of a head")
    return nn.Sequential(*made)


class IdentityVector(Encoder):
    """Return vectors (B, in_features) unchanged, so that training fits only a head on them.

    Raises:
        ValueError: in_features is below 1; `forward` raises it for vectors of another shape.
    """

    modality = "vector"

    def __init__(self, in_features: int) -> None:
        super().__init__()
        if in_features < 1:
            raise ValueError(f"in_features must be at least 1, got {in_features}: it is the length of the vectors")
        self.num_features = in_features

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors."""
        return _checked(vectors, self.num_features)


class VectorMLP(Encoder):
    """A network of linear layers with GELU between them: (B, in_features) -> (B, out_features).

    Args:
        in_features: length of the vectors.
        hidden: width of the inner layers.
        out_features: length of the features.
        layers: number of linear layers.

    Raises:
        ValueError: a size is below 1; `forward` raises it for vectors of another shape.
    """

    modality = "vector"

    def __init__(self, in_features: int, hidden: int = 512, out_features: int = 256, layers: int = 2) -> None:
        super().__init__()
        if min(in_features, hidden, out_features, layers) < 1:
            raise ValueError(f"sizes must be at least 1, got {in_features}, {hidden}, {out_features} and {layers}")
        sizes = [in_features, *[hidden] * (layers - 1), out_features]
        parts: list[nn.Module] = []
        for before, after in pairwise(sizes):
            parts += [nn.Linear(before, after), nn.GELU()]
        self.layers = nn.Sequential(*parts[:-1])
        self.in_features, self.num_features = in_features, out_features

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the features (B, out_features) of vectors (B, in_features)."""
        return cast(Tensor, self.layers(_checked(vectors, self.in_features)))


def _checked(vectors: Tensor, length: int) -> Tensor:
    if vectors.ndim != 2 or vectors.shape[1] != length:
        raise ValueError(f"vectors must be (B, {length}) for this encoder, got {tuple(vectors.shape)}")
    return vectors
