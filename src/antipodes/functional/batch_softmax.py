"""`batch_softmax`: the softmax loss of a small batch with itself, from one product and with a gradient of its own.

It is what `contrast` and a softplus give, for the case that most people train: a batch of two views that fits into one
tile, one temperature, at most a ceiling per anchor. There a step pays by the operation, not by the pair. The positives
are entries of the product that is made anyway, so both ends of every pair get their gradient from one second product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from antipodes.functional._compiling import full_precision
from antipodes.functional._task import WARM_REACH, few_pairs
from antipodes.functional.rule import Rule

_NOTHING = {torch.float32: 1e-26, torch.float64: 1e-270}  # below every sum of something, and far from overflowing


class BatchLosses(NamedTuple):
    """The loss of every view, (2b,), and what it was made of, without gradient.

    Attributes:
        losses: softplus(log_sum - positive / temperature).
        log_sums: as in `Sums`, (2b,).
        kept: the number of kept pairs, (2b,) in the dtype of the losses.
    """

    losses: Tensor
    log_sums: Tensor
    kept: Tensor


def fits_batch_softmax(views: Tensor, temperature: float | Tensor, rules: tuple[Rule, ...]) -> bool:
    """Whether `batch_softmax` can do it: few pairs, one warm temperature, no more than a ceiling that drops."""
    if isinstance(temperature, Tensor) or views.dtype not in _NOTHING or len(rules) != 1:
        return False
    (rule,) = rules
    warm = 1.0 / temperature <= WARM_REACH[views.dtype]
    return warm and few_pairs(views.shape[0], views.shape[0]) and rule.ceiling_alone


def batch_softmax(
    views: Tensor, product: Tensor | None, different: Tensor, temperature: float, rule: Rule
) -> BatchLosses:
    """Return the softmax loss of every view against the other views of the batch.

    Args:
        views: (2b, D) L2-normalised: one view of every sample, then the other.
        product: (2b, 2b) their similarities without gradient, if somebody has them.
        different: (2b, 2b) of the dtype of the views: 1 where two views are of different samples, else 0.
        temperature: such that `fits_batch_softmax` holds.
        rule: no more than a ceiling above which pairs are dropped.

    Example:
        >>> views, different = torch.eye(2).repeat(2, 1), 1 - torch.eye(2).repeat(2, 2)
        >>> batch_softmax(views, None, different, 1.0, Rule()).losses
        tensor([0.5514, 0.5514, 0.5514, 0.5514])
    """
    ceiling = None
    if rule.ceiling is not None:  # from 1 on nothing exceeds it, whatever the rounding
        bound = rule.ceiling.detach().to(views.dtype)
        ceiling = torch.where(bound < 1, bound, torch.inf)
    with full_precision(views.device):
        found = _BatchSoftmax.apply(views, product, different, temperature, ceiling)  # type: ignore[no-untyped-call]
    return BatchLosses(*found)


class _BatchSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        views: Tensor,
        product: Tensor | None,
        different: Tensor,
        temperature: float,
        ceiling: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        similarities = torch.mm(views, views.T) if product is None else product
        keep = different
        if ceiling is not None:
            keep = torch.le(similarities, ceiling[:, None], out=torch.empty_like(different)).mul_(different)
        weights = torch.mul(similarities, 1.0 / temperature).exp_().mul_(keep)
        total, kept = weights.sum(1), keep.sum(1)
        half = views.shape[0] // 2
        positive = similarities.diagonal(half)
        positives = torch.cat((positive, positive))
        log_sums = total.log()
        margins = torch.sub(log_sums, positives, alpha=1.0 / temperature)
        ctx.symmetric, ctx.temperature = ceiling is None, temperature
        ctx.save_for_backward(views, weights, total, margins)
        ctx.mark_non_differentiable(log_sums, kept)
        ctx.set_materialize_grads(False)
        return torch.nn.functional.softplus(margins), log_sums, kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, on_losses: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None, None]:
        if on_losses is None:
            return None, None, None, None, None
        views, weights, total, margins = ctx.saved_tensors
        pushed = margins.sigmoid().mul_(on_losses).div_(ctx.temperature)  # of each loss by its log sum and positive
        share = pushed / total.clamp(min=_NOTHING[total.dtype])  # where nothing is kept all weights are zero
        # pair (i, k) moves both of its views: what its two entries hand over is added up before the product
        if ctx.symmetric:
            gradient = torch.mul(weights, share[:, None] + share)
        else:
            gradient = weights * share[:, None]
            gradient = gradient + gradient.T
        half = views.shape[0] // 2
        both = pushed[:half] + pushed[half:]
        gradient.diagonal(half).sub_(both)
        gradient.diagonal(-half).sub_(both)
        return torch.mm(gradient, views), None, None, None, None
