"""The plain softmax loss from embeddings as they were given, as one operation of autograd.

`softmax_losses` joins what `normalise`, `contrast`, the similarity of the positives and a softplus would do as four:

1. Both views of a batch, or queries and documents, come with their rows at length 1 (`Views`).
2. A kernel, dense or streaming, sums e^{s / temperature} over what the rules keep.
3. The loss of an anchor is softplus(log_sum - positive / temperature).
4. In the backward pass the gradient of the rows at length 1 is turned into that of the rows as they were given.

Small batches pay by the operation, and large ones by the passes over embeddings and gradients, of which this saves
five. docs/performance.md has the share of a training step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from antipodes.functional import dense, stream
from antipodes.functional.dense import positive_diagonal
from antipodes.functional.normalise import Measured, link, unlinked
from antipodes.functional.plan import Inputs, Plan, make_plan
from antipodes.functional.tensors import first_order


class Views(NamedTuple):
    """Two embeddings of every sample, as they were given and at length 1.

    Attributes:
        first: (b, D) with gradient, of any length.
        second: (b, D) likewise.
        measured: Both at length 1, the first before the second ones, with their lengths.
    """

    first: Tensor
    second: Tensor
    measured: Measured

    def units(self) -> tuple[Tensor, Tensor]:
        """The first and the second at length 1, without gradient, (b, D) each."""
        half = self.first.shape[0]
        return self.measured.unit[:half], self.measured.unit[half:]

    def joined(self) -> Tensor:
        """Both at length 1 with their gradient, (2b, D)."""
        return link(torch.cat((self.first, self.second)), self.measured)

    def linked(self) -> tuple[Tensor, Tensor]:
        """The first and the second at length 1 with their gradient, (b, D) each."""
        half, (unit, length, divisor, span) = self.first.shape[0], self.measured
        one = Measured(unit[:half], length[:half], divisor[:half], span)
        other = Measured(unit[half:], length[half:], divisor[half:], span)
        return link(self.first, one), link(self.second, other)


class SoftmaxLosses(NamedTuple):
    """The losses of one direction.

    Attributes:
        losses: (R, A).
        kept: (R, A) how many pairs they were made of; None for all pairs of different samples.
    """

    losses: Tensor
    kept: Tensor | None


def softmax_losses(views: Views, inputs: Inputs) -> list[SoftmaxLosses]:
    """Return the softmax losses of one direction, or of two.

    Args:
        views: The embeddings.
        inputs: What is compared: rows of length 1, without gradient. Without candidates both views are anchors and
            candidates; otherwise the first are the anchors and the second the candidates. One temperature for all
            anchors, rules that pull nothing, and no offsets.

    Example:
        >>> from antipodes.functional.normalise import measure
        >>> from antipodes.functional.rule import Rule
        >>> first, ids = torch.eye(2), torch.arange(2).repeat(2)
        >>> views = Views(first, first, measure(first.repeat(2, 1)))
        >>> softmax_losses(views, Inputs(views.measured.unit, None, ids, None, 1.0, Rule()))[0].losses
        tensor([[0.5514, 0.5514, 0.5514, 0.5514]])
    """
    _, _, tau, plan = make_plan(inputs)
    if not plan.dense:  # which asks for what it need not do
        first, second = views.first.requires_grad, views.second.requires_grad
        if plan.shared:
            first = second = first or second
        plan = plan._replace(rows_need_grad=first or tau.requires_grad, columns_need_grad=second)
    found = _SoftmaxLosses.apply(views.first, views.second, tau, views.measured, plan)  # type: ignore[no-untyped-call]
    count = len(plan.directions)
    return [SoftmaxLosses(found[place], found[count + place]) for place in range(count)]


class _SoftmaxLosses(torch.autograd.Function):
    """The losses (R, A) of every direction, and then its numbers of kept pairs, (R, A) or None."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, temperature: Tensor, measured: Measured, plan: Plan
    ) -> tuple[Tensor | None, ...]:
        unit, half = measured.unit, first.shape[0]
        anchors, candidates = (unit, unit) if plan.shared else (unit[:half], unit[half:])
        outputs, saved = (dense if plan.dense else stream).forward(plan, anchors, candidates, temperature, None)
        if plan.product is None:
            positive = torch.linalg.vecdot(unit[:half], unit[half:])
        else:
            positive = positive_diagonal(plan, plan.product)[:half]
        logits = positive / temperature
        logits = torch.cat((logits, logits)) if plan.shared else logits
        margins = [log_sum - logits for log_sum in outputs[::4]]
        counts = outputs[1::4]
        ctx.plan, ctx.saved = plan, saved.directions
        ctx.save_for_backward(unit, measured.divisor, temperature, *margins, *saved.tiles)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[each for each in counts if each is not None])
        return *[softplus(margin) for margin in margins], *counts

    @staticmethod
    @first_order
    def backward(ctx: Any, *on_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        plan, count = ctx.plan, len(ctx.plan.directions)
        on_losses = on_outputs[:count]
        if all(each is None for each in on_losses):
            return (None,) * 5
        unit, divisor, temperature, *rest = ctx.saved_tensors
        half = unit.shape[0] // 2
        # of each loss by its log sum, and the opposite by its positive
        grads: list[Tensor | None] = []
        on_positives: Tensor | None = None
        for margin, on in zip(rest[:count], on_losses, strict=True):
            pushed = None if on is None else torch.sigmoid(margin).mul_(on)
            grads += [pushed, None, None, None]
            if pushed is not None:
                by_positive = pushed[0] if pushed.shape[0] == 1 else pushed.sum(0)
                on_positives = -by_positive if on_positives is None else on_positives - by_positive
        assert on_positives is not None  # of the losses at least one has a gradient
        if plan.shared:  # each view is the other's positive
            on_positives = on_positives[:half] + on_positives[half:]
        wanted = (True, ctx.needs_input_grad[1] and not plan.shared, ctx.needs_input_grad[2], False)
        anchors, candidates = (unit, unit) if plan.shared else (unit[:half], unit[half:])
        path, saved = (dense, dense.Saved) if plan.dense else (stream, stream.Saved)
        on_first, on_second, on_temperature, _ = path.backward(
            plan, saved(ctx.saved, rest[count:]), anchors, candidates, temperature, None, tuple(grads), wanted,
            on_positives,
        )  # fmt: skip
        assert on_first is not None  # it is wanted
        if plan.shared:
            raw = unlinked(on_first if on_second is None else on_first.add_(on_second), unit, divisor)
            return raw[:half], raw[half:], on_temperature, None, None
        on_first = unlinked(on_first, anchors, divisor[:half])
        on_second = None if on_second is None else unlinked(on_second, candidates, divisor[half:])
        return on_first, on_second, on_temperature, None, None
