"""Projection heads: what stands between an encoder's features and the embeddings that are contrasted."""

from typing import Literal

from torch import nn

HeadKind = Literal["linear", "mlp2", "mlp3"]

LAYERS: dict[HeadKind, int] = {"linear": 1, "mlp2": 2, "mlp3": 3}
"""Name of a head -> its number of linear layers."""


def head(
    kind: HeadKind,
    in_features: int,
    hidden_features: int,
    out_features: int,
    *,
    batch_norm: bool = False,
    centred: bool = False,
) -> nn.Sequential:
    """Build a head that maps features (B, in_features) to embeddings (B, out_features), not normalised.

    Args:
        kind: "linear" (MoCo v1, instance discrimination), "mlp2" (SimCLR, MoCo v2) or "mlp3" (SimCLR v2).
        in_features: length of the features.
        hidden_features: width of the hidden layers; a linear head has none.
        out_features: length of the embeddings.
        batch_norm: normalise every hidden layer before its ReLU (SimCLR does, MoCo v2 does not).
        centred: normalise the embeddings too, without scale or shift. ReLU features are all positive, so a linear layer
            starts with every embedding in one narrow cone, in which the order of similarities is noise; taking the mean
            away opens it. Policies that rank candidates need that.

    A linear layer followed by batch normalisation has no bias: the normalisation would remove it.

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
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
