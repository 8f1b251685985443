"""`run`: apply the planned kernel, dense or streaming, with first-order gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from antipodes.functional import _dense, _stream
from antipodes.functional._compiling import first_order
from antipodes.functional._pair_functions import PairFunction
from antipodes.functional._plan import Inputs, Kernel, Plan, as_dtype, make_plan
from antipodes.functional.sums import Sums


def run(
    inputs: Inputs,
    function: PairFunction = "softmax",
    kernel: Kernel = "auto",
    block: int | None = None,
    bias: Tensor | None = None,
) -> list[Sums]:
    """Return the sums of each direction.

    Args:
        inputs: what is compared.
        function: what is summed over pairs.
        kernel: the path.
        block: the edge of the streaming kernel's tiles.
        bias: () added to all logits, with gradient.
    """
    anchors, candidates, tau, plan = make_plan(inputs, function, kernel, block)
    added = plan.offsets if bias is None else bias.to(anchors)
    if plan.halved or (plan.dense and plan.shared):  # the kernel adds the candidates' gradient to the anchors'
        candidates = candidates.detach()
    outputs = _Kernel.apply(anchors, candidates, tau, added, plan)  # type: ignore[no-untyped-call]
    every = []
    for place in range(0, len(outputs), 4):
        value, kept, pulled_value, pulled = outputs[place : place + 4]
        pulled = pulled if plan.weighted else as_dtype(pulled, torch.int64)
        every.append(Sums(value, as_dtype(kept, torch.int64), pulled_value, pulled))
    return every


class _Kernel(torch.autograd.Function):
    """The sums of `_dense` or `_stream`; the second derivative is refused."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, added: Tensor | None, plan: Plan
    ) -> tuple[Tensor, ...]:
        path = _dense if plan.dense else _stream
        outputs, ctx.saved = path.forward(plan, anchors, candidates, temperature, added)
        ctx.plan = plan
        ctx.mark_non_differentiable(*outputs[1::4], *outputs[3::4])
        ctx.save_for_backward(anchors, candidates, temperature, added)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        path = _dense if ctx.plan.dense else _stream
        found = path.backward(ctx.plan, ctx.saved, *ctx.saved_tensors, grads, ctx.needs_input_grad)
        return *found, None
