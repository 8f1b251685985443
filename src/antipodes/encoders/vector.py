"""Encoders of vectors, such as another model's embeddings: unchanged, or through a small network."""

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from antipodes.encoders.encoder import Encoder


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
