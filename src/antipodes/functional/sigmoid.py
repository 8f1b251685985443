"""Sigmoid sums: SigLIP's loss of pairs, each a yes-or-no question of its own, streamed over the tiles of `contrast`.

With z_ik = s_ik / tau + bias, W the pairs that a rule keeps and Y those that it pulls,

    loss_sum_i = sum_k (W_ik - Y_ik) softplus(z_ik)        pulled_loss_i = sum_k Y_ik softplus(-z_ik)

A pair is either a negative or a positive here: other than in `contrast`, where pulled pairs stay in the denominator,
a pulled pair counts as a positive alone. The similarities receive (W - Y) sigmoid(z) / tau and -Y sigmoid(-z) / tau.

With labels q between 0 and 1 a pair has the loss q softplus(-z) + (1 - q) softplus(z) = softplus(z) - q z. For those,
`soft` leaves the pulled pairs among the negatives; what `refine` sums up, of q and of q s, makes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from antipodes.functional._arguments import Extent, Guide
from antipodes.functional._compiling import full_precision, outside_graphs
from antipodes.functional._masks import keep_mask, pull_mask
from antipodes.functional._stream import Walk, add_sums
from antipodes.functional._task import Task, prepare
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample

_EVERY_PAIR = (Rule(),)


class SigmoidSums(NamedTuple):
    """The sums over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        loss_sum: the sum of softplus(s / temperature + bias) over negatives: kept pairs that are not pulled, or with
            `soft` all kept ones.
        kept: their number, int64.
        pulled_loss: the sum of softplus(-(s / temperature + bias)) over pulled pairs.
        pulled: their number, int64.
    """

    loss_sum: Tensor
    kept: Tensor
    pulled_loss: Tensor
    pulled: Tensor


@outside_graphs
def sigmoid_sums(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    bias: float | Tensor = 0.0,
    rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    soft: bool = False,
    block: int | None = None,
) -> SigmoidSums:
    """Sum SigLIP's loss over the pairs of anchors and candidates that each rule keeps.

    The anchor's own positive is not among the pairs: its loss is softplus(-(s+ / temperature + bias)). A pulled pair
    counts as a positive only, where `contrast` has it in the denominator as well. Gradients of `loss_sum` and
    `pulled_loss` reach anchors, candidates, temperature and bias.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves, at half the cost.
        anchor_ids: (A,) dataset ids; pairs of the same id never count, nor do candidates of a negative id.
        candidate_ids: (C,) dataset ids; only with candidates.
        temperature: a number or a scalar tensor.
        bias: a number or a scalar tensor, added to every logit.
        rules: one rule or several, as in `contrast`; bounds compare the similarity itself.
        guide: vectors in a guide's space, as in `contrast`.
        same_sample: as in `contrast`.
        extent: as in `contrast`.
        soft: count pulled pairs among the negatives, and not as positives: their labels are somewhere between.
        block: as in `contrast`.

    Raises:
        ValueError: as `contrast`, or if there is more than one temperature or bias.

    Example:
        >>> sums = sigmoid_sums(torch.eye(3), anchor_ids=torch.arange(3), temperature=1.0, bias=0.0)
        >>> sums.loss_sum  # two negatives of similarity 0: 2 log 2
        tensor([[1.3863, 1.3863, 1.3863]])
    """
    ids = (anchor_ids, candidate_ids)
    return _sums(anchors, candidates, *ids, temperature, bias, rules, None, guide, same_sample, extent, soft, block)[0]


@outside_graphs
def sigmoid_both(
    first: Tensor,
    second: Tensor,
    *,
    first_ids: Tensor,
    second_ids: Tensor,
    temperature: float | Tensor,
    bias: float | Tensor = 0.0,
    first_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    guide: tuple[Tensor, Tensor] | None = None,
    soft: bool = False,
    block: int | None = None,
) -> tuple[SigmoidSums, SigmoidSums]:
    """Sum SigLIP's loss over pairs of two modalities in both directions, from one product of similarities.

    The arguments are those of `contrast_both` and `sigmoid_sums`. Without rules both directions have the same pairs:
    SigLIP's own loss needs one of them.

    Example:
        >>> ids = torch.arange(3)
        >>> one, other = sigmoid_both(torch.eye(3), torch.eye(3), first_ids=ids, second_ids=ids, temperature=1.0)
        >>> torch.equal(one.loss_sum, other.loss_sum)
        True
    """
    one, other = _sums(
        first,
        second,
        first_ids,
        second_ids,
        temperature,
        bias,
        first_rules,
        second_rules,
        guide,
        None,
        None,
        soft,
        block,
    )
    return one, other


def _sums(
    anchors: Tensor,
    candidates: Tensor | None,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None,
    temperature: float | Tensor,
    bias: float | Tensor,
    rules: Rule | Sequence[Rule],
    mirror_rules: Rule | Sequence[Rule] | None,
    guide: Guide | None,
    same_sample: SameSample | None,
    extent: Extent | None,
    soft: bool,
    block: int | None,
) -> list[SigmoidSums]:
    for name, number in (("temperature", temperature), ("bias", bias)):
        if isinstance(number, Tensor) and number.ndim:
            raise ValueError(f"the sigmoid has one {name} for all pairs, got shape {tuple(number.shape)}")
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    anchors, keys, tau, task = prepare(
        anchors,
        candidates,
        anchor_ids,
        candidate_ids,
        temperature,
        rules,
        block,
        mirror_rules=mirror_rules,
        guide=guide,
        same_sample=same_sample,
        extent=extent,
        exponentials=False,
        direct=False,
    )
    shift = bias if isinstance(bias, Tensor) else torch.tensor(bias, dtype=dtype, device=anchors.device)
    columns = keys.detach() if task.halved else keys
    with full_precision(anchors.device):
        outputs = _Function.apply(anchors, columns, tau, shift.to(anchors), task, soft)  # type: ignore[no-untyped-call]
    every = []
    for place in range(0, len(outputs), 4):
        loss_sum, kept, pulled_loss, pulled = outputs[place : place + 4]
        pulled = pulled if task.weighted else pulled.long()
        every.append(SigmoidSums(loss_sum.to(dtype), kept.long(), pulled_loss.to(dtype), pulled))
    return every


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, bias: Tensor, task: Task, soft: bool
    ) -> tuple[Tensor, ...]:
        walk = Walk(task, anchors, candidates, temperature)
        ones = anchors.new_ones(max(len(anchors), len(candidates)))
        sums = [[anchors.new_zeros(len(each.masks), each.count) for _ in range(4)] for each in task.directions]
        ctx.retained = []
        for tile in task.tiles:
            logits = walk.logits(tile)
            if task.retained:
                ctx.retained.append(logits.clone())
            block = walk.block(tile, logits)
            loss, rest = (walk.buffers(name, tile.shape) for name in ("loss", "rest"))
            # softplus(z) = max(z, 0) + log(1 + e^-|z|), and softplus(-z) has the same rest: nothing overflows
            torch.abs(torch.add(logits, bias, out=loss), out=rest).neg_().exp_().log1p_()
            loss.clamp_(min=0.0).add_(rest)
            for place, number, mask, sides in walk.reads(tile, tile.mirrored):
                loss_sum, kept, pulled_loss, pulled = (each[number] for each in sums[place])
                if mask.trivial:
                    add_sums(loss_sum, tile, sides, loss, ones)
                    continue
                keep = keep_mask(mask, block, sides[0], "keep", walk.buffers)
                if mask.pulls:
                    pull = pull_mask(mask, block, sides[0], keep, walk.buffers)
                    add_sums(pulled, tile, sides, pull, ones)
                    if not soft:
                        keep.sub_(pull)
                        opposite = torch.add(logits, bias, out=walk.buffers("opposite", tile.shape)).neg_()
                        opposite.clamp_(min=0.0).add_(rest)
                        add_sums(pulled_loss, tile, sides, pull.mul_(opposite), ones)
                if mask.kept is None or mask.pulls:
                    add_sums(kept, tile, sides, keep, ones)
                add_sums(loss_sum, tile, sides, keep.mul_(loss), ones)
        outputs: list[Tensor] = []
        for each, direction in zip(sums, task.directions, strict=True):
            for number, mask in enumerate(direction.masks):
                if mask.kept is not None and not mask.pulls:
                    each[1][number] = mask.kept
            ctx.mark_non_differentiable(each[1], each[3])
            outputs += each
        ctx.task, ctx.soft = task, soft
        ctx.save_for_backward(anchors, candidates, temperature, bias)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        task: Task = ctx.task
        anchors, candidates, temperature, bias = ctx.saved_tensors
        on_anchors = torch.zeros_like(anchors)
        on_candidates = on_anchors if task.halved else torch.zeros_like(candidates)
        on_bias = torch.zeros_like(bias)
        walk = Walk(task, anchors, candidates, temperature)
        for tile in task.tiles:
            logits = ctx.retained[tile.number] if ctx.retained else walk.logits(tile)
            block = walk.block(tile, logits)
            slope = torch.add(logits, bias, out=walk.buffers("loss", tile.shape)).sigmoid_()
            weight = walk.buffers("weight", tile.shape).zero_()
            for place, number, mask, sides in walk.reads(tile, task.halved):  # also on the diagonal: one product
                on_loss, on_pulled = grads[4 * place][number], grads[4 * place + 2][number]
                keep = pull = None
                if not mask.trivial:
                    keep = keep_mask(mask, block, sides[0], "keep", walk.buffers)
                if keep is not None and mask.pulls and not ctx.soft:
                    pull = pull_mask(mask, block, sides[0], keep, walk.buffers)
                    keep.sub_(pull)
                    pull.mul_(torch.sub(slope, 1.0, out=walk.buffers("opposite", tile.shape)))
                values = slope if keep is None else keep.mul_(slope)
                for mirror in sides:
                    where = tile.columns if mirror else (tile.rows, None)
                    weight.addcmul_(values, on_loss[where])
                    if pull is not None:
                        weight.addcmul_(pull, on_pulled[where])
            # on the diagonal a pair is there twice, and so is its share
            on_bias += weight.sum() * (0.5 if task.halved and not tile.mirrored else 1.0)
            on_anchors[tile.rows].addmm_(weight, candidates[tile.columns])
            if tile.mirrored or not task.halved:
                on_candidates[tile.columns].addmm_(weight.T, anchors[tile.rows])
        on_anchors /= temperature
        if not task.halved:
            on_candidates /= temperature
        # where a tile stands for its mirror image, a pair's share appears at both of its ends
        on_temperature = -(anchors * on_anchors).sum() * (0.5 if task.halved else 1.0) / temperature
        return on_anchors, None if task.halved else on_candidates, on_temperature, on_bias, None, None
