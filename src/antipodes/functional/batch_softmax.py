"""`batch_softmax`: the softmax loss of a small batch with itself, from one product and with a gradient of its own.

It is what `contrast` and a softplus give, for the case that most people train: a batch of two views that fits into one
tile, one temperature, at most a ceiling per anchor. There a step pays by the operation, not by the pair. The positives
are entries of the product that is made anyway, so both ends of every pair get their gradient from one second product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipodes.functional._compiling import first_order
from antipodes.functional._plan import UNSHIFTED_REACH as WARM_REACH
from antipodes.functional._plan import few_pairs
from antipodes.functional.normalise import Measured, link, unlinked
from antipodes.functional.rule import Rule, binding
from antipodes.functional.same_sample import SameSample

_NOTHING = {torch.float32: 1e-26, torch.float64: 1e-270}  # below every sum of something, and far from overflowing


class Views(NamedTuple):
    """Both views of a small batch, as they were given and at length 1.

    Attributes:
        first: (b, D) with gradient, of any length.
        second: (b, D) likewise.
        measured: What both have become, first views before second ones.
    """

    first: Tensor
    second: Tensor
    measured: Measured

    def linked(self) -> Tensor:
        """The views at length 1 with their gradient, (2b, D)."""
        return link(torch.cat((self.first, self.second)), self.measured)


class BatchLosses(NamedTuple):
    """The loss of every view, and how many pairs it was made of.

    Attributes:
        losses: (2b,) softplus(log_sum - positive / temperature).
        kept: (2b,) in the dtype of the losses; None where it is plain that all of other samples are.
    """

    losses: Tensor
    kept: Tensor | None


def fits_batch_softmax(views: Tensor, temperature: float) -> bool:
    """Whether `batch_softmax` can do it: few pairs, and a warm temperature."""
    count = views.shape[0]
    return few_pairs(count, count) and 1.0 / temperature <= WARM_REACH.get(views.dtype, 0.0)


def batch_softmax(
    views: Views, product: Tensor, same_sample: SameSample, temperature: float, rule: Rule
) -> BatchLosses:
    """Return the softmax loss of every view against the other views of the batch.

    Args:
        views: Those of a batch for which `fits_batch_softmax` holds.
        product: (2b, 2b) their similarities without gradient.
        same_sample: Which of them are of one sample.
        temperature: likewise.
        rule: no more than a ceiling above which pairs are dropped.

    Example:
        >>> from antipodes.functional.normalise import measure
        >>> first, ids = torch.eye(2), torch.arange(2).repeat(2)
        >>> views = Views(first, first, measure(first.repeat(2, 1)))
        >>> batch_softmax(views, torch.eye(2).repeat(2, 2), SameSample(ids), 1.0, Rule()).losses
        tensor([0.5514, 0.5514, 0.5514, 0.5514])
    """
    weights = torch.mul(product, 1.0 / temperature).exp_()
    if rule.ceiling is not None:
        ceiling = binding(rule.ceiling.detach().to(product.dtype))
        keep = same_sample.blank(torch.le(product, ceiling[:, None], out=torch.empty_like(product)))
        weights.mul_(keep)
        kept: Tensor | None = keep.sum(1)
    else:
        same_sample.blank(weights)
        kept = None if same_sample.halves else same_sample.available.to(product.dtype)
    unit, _, divisor, _ = views.measured
    known = (unit, divisor, product, weights, temperature, rule.ceiling is None)
    losses = _BatchSoftmax.apply(views.first, views.second, *known)  # type: ignore[no-untyped-call]
    return BatchLosses(losses, kept)


class _BatchSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        unit: Tensor,
        divisor: Tensor,
        similarities: Tensor,
        weights: Tensor,
        temperature: float,
        symmetric: bool,
    ) -> Tensor:
        total = weights.sum(1)
        positive = similarities.diagonal(first.shape[0])
        margins = torch.sub(total.log(), torch.cat((positive, positive)), alpha=1.0 / temperature)
        ctx.symmetric, ctx.temperature = symmetric, temperature
        ctx.save_for_backward(unit, divisor, weights, total, margins)
        ctx.set_materialize_grads(False)
        return torch.nn.functional.softplus(margins)

    @staticmethod
    @first_order
    def backward(ctx: Any, on_losses: Tensor | None) -> tuple[Tensor | None, ...]:
        if on_losses is None:
            return (None,) * 8
        unit, divisor, weights, total, margins = ctx.saved_tensors
        pushed = margins.sigmoid().mul_(on_losses).div_(ctx.temperature)  # of each loss by its log sum and positive
        share = pushed / total.clamp(min=_NOTHING[total.dtype])  # where nothing is kept all weights are zero
        # pair (i, k) moves both of its views: what its two entries hand over is added up before the product
        if ctx.symmetric:
            gradient = torch.mul(weights, share[:, None] + share)
        else:
            gradient = weights * share[:, None]
            gradient = gradient + gradient.T
        half = unit.shape[0] // 2
        both = pushed[:half] + pushed[half:]
        gradient.diagonal(half).sub_(both)
        gradient.diagonal(-half).sub_(both)
        raw = unlinked(torch.mm(gradient, unit), unit, divisor)
        return raw[:half], raw[half:], *(None,) * 6
