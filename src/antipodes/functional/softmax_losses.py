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

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from antipodes.functional import dense, stream
from antipodes.functional.masks import compile_rule, whole
from antipodes.functional.normalise import Measured, link, unlinked
from antipodes.functional.plan import UNSHIFTED_REACH, Direction, Inputs, Plan, make_plan
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
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
    """The losses of one direction and how many pairs they were made of, (R, A) each."""

    losses: Tensor
    kept: Tensor


def softmax_losses(views: Views, inputs: Inputs) -> list[SoftmaxLosses]:
    """Return the softmax losses of one direction, or of two.

    Args:
        views: The embeddings.
        inputs: What is compared: rows of length 1, without gradient. Without candidates both views are anchors and
            candidates; otherwise the first are the anchors and the second the candidates. One temperature for all
            anchors, rules that pull nothing, and no offsets.

    Example:
        >>> from antipodes.functional.normalise import measure
        >>> first, ids = torch.eye(2), torch.arange(2).repeat(2)
        >>> views = Views(first, first, measure(first.repeat(2, 1)))
        >>> softmax_losses(views, Inputs(views.measured.unit, None, ids, None, 1.0, Rule()))[0].losses
        tensor([[0.5514, 0.5514, 0.5514, 0.5514]])
    """
    unit, _, divisor, _ = views.measured
    temperature = inputs.temperature
    tau = temperature.to(unit) if isinstance(temperature, Tensor) else unit.new_tensor(temperature)
    plan = _plan(views, inputs)
    found = _SoftmaxLosses.apply(views.first, views.second, tau, unit, divisor, plan)  # type: ignore[no-untyped-call]
    return [SoftmaxLosses(*found[place : place + 2]) for place in range(0, len(found), 2)]


def _plan(views: Views, inputs: Inputs) -> Plan:
    """Plan the sums: in few steps where there are few pairs and rules are ceilings at most."""
    product, same, tau = inputs.product, inputs.same_sample, inputs.temperature
    coldest = float(tau.detach()) if isinstance(tau, Tensor) else tau
    rules = [(each,) if isinstance(each, Rule) else each for each in (inputs.rules, inputs.mirror_rules) if each]
    if product is not None and same is not None and all(rule.ceiling_alone for each in rules for rule in each):
        usual = 1e-3 * coldest >= torch.finfo(product.dtype).eps  # other temperatures are refused below
        if usual:
            return _plan_few(product, same, coldest, rules, inputs.candidates is None)
    by_temperature = isinstance(tau, Tensor) and tau.requires_grad
    first, second = views.first.requires_grad, views.second.requires_grad
    if inputs.candidates is None:
        first = second = first or second
    return make_plan(inputs)[-1]._replace(rows_need_grad=first or by_temperature, columns_need_grad=second)


def _plan_few(
    product: Tensor, same_sample: SameSample, temperature: float, rules: Sequence[Sequence[Rule]], shared: bool
) -> Plan:
    """Plan the sums over few pairs of embeddings of length 1, whose other arguments were checked before.

    Args:
        product: (A, C) the similarities.
        same_sample: which pairs are of one sample, in both directions if there are two.
        temperature: a positive number.
        rules: of each direction, ceilings at most.
        shared: whether the candidates are the anchors.
    """
    count, others = product.shape
    tiles = (whole(count, others),)
    directions = []
    for place, each in enumerate(rules):
        masks = tuple([compile_rule(rule, lambda bound: bound, tiles, product.dtype) for rule in each])
        directions.append(Direction(masks, place == 1, (count, others)[place], same_sample))
    return Plan(
        function="softmax",
        dense=True,
        shift="none" if 1.0 / temperature <= UNSHIFTED_REACH[product.dtype] else "peak",
        tiles=tiles,
        directions=tuple(directions),
        shared=shared,
        halved=False,
        guide=None,
        offsets=None,
        teacher=None,
        rows_need_grad=True,
        columns_need_grad=not shared,
        product=product,
    )


class _SoftmaxLosses(torch.autograd.Function):
    """The losses (R, A) and numbers kept (R, A) of every direction."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, second: Tensor, temperature: Tensor, unit: Tensor, divisor: Tensor, plan: Plan
    ) -> tuple[Tensor, ...]:
        path, half = dense if plan.dense else stream, first.shape[0]
        anchors, candidates = (unit, unit) if plan.shared else (unit[:half], unit[half:])
        outputs, saved = path.forward(plan, anchors, candidates, temperature, None)
        if plan.product is None:
            positive = torch.linalg.vecdot(unit[:half], unit[half:])
        else:
            positive = plan.product.diagonal(half if plan.shared else 0)
        logits = positive / temperature
        logits = torch.cat((logits, logits)) if plan.shared else logits
        margins = [log_sum - logits for log_sum in outputs[::4]]
        found: list[Tensor] = []
        for margin, kept in zip(margins, outputs[1::4], strict=True):
            found += [softplus(margin), kept]
        ctx.plan, ctx.saved = plan, saved._replace(tiles=[])
        ctx.save_for_backward(unit, divisor, temperature, positive, *margins, *saved.tiles)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*found[1::2])
        return tuple(found)

    @staticmethod
    @first_order
    def backward(ctx: Any, *on_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        on_losses = on_outputs[::2]
        if all(each is None for each in on_losses):
            return (None,) * 6
        plan, count = ctx.plan, len(on_losses)
        path = dense if plan.dense else stream
        unit, divisor, temperature, positive, *rest = ctx.saved_tensors
        half = unit.shape[0] // 2
        # of each loss by its log sum, and the opposite by its positive
        pushed = [
            None if on is None else torch.sigmoid(margin).mul_(on)
            for margin, on in zip(rest[:count], on_losses, strict=True)
        ]
        grads = tuple(part for each in pushed for part in (each, None, None, None))
        wanted = (True, ctx.needs_input_grad[1] and not plan.shared, ctx.needs_input_grad[2], False)
        anchors, candidates = (unit, unit) if plan.shared else (unit[:half], unit[half:])
        saved = ctx.saved._replace(tiles=rest[count:])
        on_first, on_second, on_temperature, _ = path.backward(
            plan, saved, anchors, candidates, temperature, None, grads, wanted
        )
        assert on_first is not None  # it is wanted
        of_directions = [each[0] if each.shape[0] == 1 else each.sum(0) for each in pushed if each is not None]
        by_positive = of_directions[0] if len(of_directions) == 1 else of_directions[0] + of_directions[1]
        if plan.shared:
            by_positive = by_positive[:half] + by_positive[half:]
            on_both = on_first if on_second is None else on_first.add_(on_second)
            on_first, on_second = on_both[:half], on_both[half:]
        pull = by_positive / temperature  # each is the other's positive
        for gradient, other in ((on_first, unit[half:]), (on_second, unit[:half])):
            if gradient is not None:
                gradient.addcmul_(pull[:, None], other, value=-1)
        if plan.shared:
            raw = unlinked(on_both, unit, divisor)
            on_first, on_second = raw[:half], raw[half:]
        else:
            on_first = unlinked(on_first, unit[:half], divisor[:half])
            on_second = None if on_second is None else unlinked(on_second, unit[half:], divisor[half:])
        if on_temperature is not None:
            on_temperature = on_temperature + (pull * positive).sum() / temperature
        return on_first, on_second, on_temperature, None, None, None
