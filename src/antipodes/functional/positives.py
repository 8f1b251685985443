"""`paired_similarity`: how similar the two views of every sample are, for both views as anchors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antipodes.functional._compiling import first_order


def paired_similarity(views: Tensor) -> Tensor:
    """Return the product of every view with the other one of its sample, in few operations.

    Args:
        views: (2b, D) one view of every sample, then the other.

    Returns:
        (2b,), the second half equal to the first.

    Example:
        >>> paired_similarity(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.6, 0.8]]))
        tensor([0.6000, 0.8000, 0.6000, 0.8000])
    """
    similarity: Tensor = _Paired.apply(views)  # type: ignore[no-untyped-call]
    return similarity


class _Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, views: Tensor) -> Tensor:
        ctx.save_for_backward(views)
        first, second = views.chunk(2)
        similarity = torch.linalg.vecdot(first, second)
        return torch.cat((similarity, similarity))

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (views,) = ctx.saved_tensors
        half = len(views) // 2
        both = (gradient[:half] + gradient[half:]).unsqueeze(1)
        result = torch.empty_like(views)
        torch.mul(views[half:], both, out=result[:half])
        torch.mul(views[:half], both, out=result[half:])
        return result
