"""HNSSL's geometry: features scaled by their largest entry, squared distances, and the closest candidates."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from antipodes.functional.tensors import full_precision


def scale_by_largest(features: Tensor) -> Tensor:
    """Divide rows (B, D) by their largest absolute entry, in float32 or better; a zero row stays zero.

    The gradient goes through the largest entry too, as in HNSSL's Eq. 2. A zero row gets none.

    Example:
        >>> scale_by_largest(torch.tensor([[1.0, -4.0], [0.0, 0.0]]))
        tensor([[ 0.2500, -1.0000],
                [ 0.0000,  0.0000]])
    """
    features = features if features.dtype == torch.float64 else features.float()
    largest = features.abs().amax(dim=1, keepdim=True)
    absent = largest.detach() < math.sqrt(torch.finfo(features.dtype).tiny)
    return (features / largest.masked_fill(absent, 1.0)).masked_fill(absent, 0.0)


def squared_distances(anchors: Tensor, candidates: Tensor) -> Tensor:
    """The squared Euclidean distances of every anchor (A, D) and every candidate (C, D), as (A, C).

    One matrix product, |a|^2 + |c|^2 - 2 a.c, of vectors from which the candidates' mean was taken: the distances stay
    the same, and those of features that have almost collapsed do not drown in the rounding of their lengths.

    Example:
        >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        tensor([[2., 4.]])
    """
    centre = candidates.detach().mean(dim=0)
    anchors, candidates = anchors - centre, candidates - centre
    lengths = anchors.square().sum(1)[:, None] + candidates.square().sum(1)
    product: Tensor = _Product.apply(anchors, candidates)  # type: ignore[no-untyped-call]
    return (lengths - 2 * product).clamp(min=0)


def closest(distances: Tensor, eligible: Tensor, counts: Tensor) -> Tensor:
    """Mark the `counts` (A,) eligible candidates of smallest distance of every anchor, or all, as (A, C) bool.

    Example:
        >>> distances = torch.tensor([[0.1, 0.2, 0.3]])
        >>> closest(distances, torch.tensor([[False, True, True]]), torch.tensor([1]))
        tensor([[False,  True, False]])
    """
    counts = torch.minimum(counts, eligible.sum(1))
    most = int(counts.max()) if counts.numel() else 0
    order = distances.masked_fill(~eligible, torch.inf).topk(most, dim=1, largest=False).indices
    chosen = torch.arange(most, device=counts.device) < counts[:, None]
    return torch.zeros_like(eligible).scatter_(1, order, chosen)


class _Product(torch.autograd.Function):
    """The product a b^T of (A, D) and (C, D), whose gradients of any order are in full precision under autocast."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, second)
        return first @ second.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        first, second = ctx.saved_tensors
        with full_precision():
            return _Product.apply(gradient, second.T), _Product.apply(gradient.T, first.T)  # type: ignore[no-untyped-call]
