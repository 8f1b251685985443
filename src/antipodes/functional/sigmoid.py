"""Sigmoid sums: SigLIP's loss of pairs, each a yes-or-no question of its own, streamed over the tiles of `contrast`.

With z_ik = s_ik / tau + bias, W the pairs that a rule keeps and Y those that it pulls,

    loss_sum_i = sum_k (W_ik - Y_ik) softplus(z_ik)        pulled_loss_i = sum_k Y_ik softplus(-z_ik)

A pair is either a negative or a positive here: other than in `contrast`, where pulled pairs stay in the denominator,
a pulled pair counts as a positive alone. The similarities receive (W - Y) sigmoid(z) / tau and -Y sigmoid(-z) / tau.

With labels q between 0 and 1 a pair has the loss q softplus(-z) + (1 - q) softplus(z) = softplus(z) - q z. For those,
`soft` leaves the pulled pairs among the negatives; what `refine` sums up, of q and of q s, makes the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent, Guide
from antipodes.functional._compiling import eager_full_precision, first_order
from antipodes.functional._masks import Block, keep_mask, pull_mask
from antipodes.functional._reading import on_host
from antipodes.functional._stream import Walk, add_sums
from antipodes.functional._task import Task, as_rules, prepare
from antipodes.functional._tiles import Sliced, Tile
from antipodes.functional._workers import share_out
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


@eager_full_precision
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


@eager_full_precision
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
    ways = [*as_rules(rules), *([] if mirror_rules is None else as_rules(mirror_rules))]
    quick = on_host(anchors) and not any(rule.pulls for rule in ways)  # where looking at the bias makes nobody wait
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
        exponentials=quick,
        direct=False,
    )
    shift = bias if isinstance(bias, Tensor) else torch.tensor(bias, dtype=dtype, device=anchors.device)
    columns = keys.detach() if task.halved else keys
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
        retained: dict[int, Tensor] = {}
        folds, factor = _folds(task, bias) if task.warm else (0, 0.0)

        def part(tiles: Sequence[Tile]) -> list[list[Tensor]]:
            sums = [[anchors.new_zeros(len(each.masks), each.count) for _ in range(4)] for each in task.directions]
            own = walk.beside()
            for tile in tiles:
                if folds:
                    _add_folded(own, tile, sums, ones, factor, folds, retained)
                else:
                    _add_losses(own, tile, sums, ones, bias, soft, retained)
            return sums

        sums, *rest = share_out(task.tiles, anchors.device, part)
        for other in rest:
            for mine, theirs in zip(sums, other, strict=True):
                for number, each in enumerate(theirs):
                    mine[number] += each
        ctx.retained, ctx.factor = retained, factor
        outputs: list[Tensor] = []
        for totals, direction in zip(sums, task.directions, strict=True):
            for number, mask in enumerate(direction.masks):
                if mask.kept is not None and not mask.pulls:
                    totals[1][number] = mask.kept
            ctx.mark_non_differentiable(totals[1], totals[3])
            outputs += totals
        ctx.task, ctx.soft = task, soft
        ctx.save_for_backward(anchors, candidates, temperature, bias)
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        task: Task = ctx.task
        anchors, candidates, temperature, bias = ctx.saved_tensors
        factor: float = ctx.factor
        plain = factor > 0 and all(mask.trivial for each in task.directions for mask in each.masks)
        quick = plain and not ctx.retained
        walk = Walk(task, anchors, candidates, -temperature if quick else temperature)
        given = [(grads[4 * place], grads[4 * place + 2]) for place in range(len(task.directions))]
        masked = factor > 0 and _read_once(task, task.halved)  # what the forward pass kept is zero where a pair is not

        def part(tiles: Sequence[Tile]) -> tuple[Tensor, Tensor, Tensor]:
            to_anchors, to_bias = torch.zeros_like(anchors), torch.zeros_like(bias)
            to_candidates = to_anchors if task.halved else torch.zeros_like(candidates)
            own, to_rows, to_columns = walk.beside(), Sliced(to_anchors), Sliced(to_candidates)
            for tile in tiles:
                if quick:
                    weight = _quick_weight(own, tile, factor, given)
                else:
                    known = ctx.retained.get(tile.number)
                    seen, slope = _slope(own, tile, bias, factor, known)
                    if masked and known is not None:
                        weight = slope.mul_(given[0][0][0][tile.rows, None])
                    else:
                        weight = _weight(own, own.block(tile, seen), slope, given, ctx.soft)
                if ctx.needs_input_grad[3]:  # on the diagonal a pair is there twice, and so is its share
                    to_bias += weight.sum() * (0.5 if task.halved and not tile.mirrored else 1.0)
                to_rows(tile.rows).addmm_(weight, walk.candidates(tile.columns))
                if tile.mirrored or not task.halved:
                    to_columns(tile.columns).addmm_(weight.T, walk.anchors(tile.rows))
            return to_anchors, to_candidates, to_bias

        (on_anchors, on_candidates, on_bias), *rest = share_out(task.tiles, anchors.device, part)
        for to_anchors, to_candidates, to_bias in rest:
            on_anchors += to_anchors
            on_bias += to_bias
            if not task.halved:
                on_candidates += to_candidates
        on_anchors /= temperature
        if not task.halved:
            on_candidates /= temperature
        on_temperature: Tensor | None = None
        if ctx.needs_input_grad[2]:
            # where a tile stands for its mirror image, a pair's share appears at both of its ends
            on_temperature = -(anchors * on_anchors).sum() * (0.5 if task.halved else 1.0) / temperature
        return on_anchors, None if task.halved else on_candidates, on_temperature, on_bias, None, None


Sums = list[list[Tensor]]  # of each direction: loss_sum, kept, pulled_loss and pulled


def _folds(task: Task, bias: Tensor) -> tuple[int, float]:
    """How many factors 1 + e^z can be multiplied without overflowing, 1 to 8, with e^bias; 0 and 0 if e^z alone may."""
    room = 80.0 if bias.dtype is torch.float32 else 700.0  # and what is left is more than a row of factors of 2
    shift = float(bias.detach().numpy())
    top = max(task.reach + shift, 1.0)
    if top > room or shift < -room:
        return 0, 0.0
    return next(folds for folds in (8, 4, 2, 1) if folds == 1 or folds * top - min(shift, 0.0) <= room), math.exp(shift)


def _add_losses(
    walk: Walk, tile: Tile, sums: Sums, ones: Tensor, bias: Tensor, soft: bool, retained: dict[int, Tensor]
) -> None:
    """Add a tile's losses at any temperature, and of pairs that are pulled as well."""
    logits = walk.logits(tile)
    if walk.task.retained:
        retained[tile.number] = logits
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


def _add_folded(
    walk: Walk, tile: Tile, sums: Sums, ones: Tensor, factor: float, folds: int, retained: dict[int, Tensor]
) -> None:
    """Add a tile's losses where e^z cannot overflow: the sum of log(1 + e^z) is the log of a product.

    Logarithms cost most here, so factors are multiplied first. With e^z = f x, f = e^bias and x the exponential of a
    logit, (1 + f x)(1 + f y) = 1 + f (x + y + f x y), in which small x and y lose no digits.
    """
    values = walk.exponentials(tile)[1]  # of the logits, which bounds are compared with
    block = walk.block(tile, values)
    spare = _read_once(walk.task, tile.mirrored) and not walk.task.retained  # what is read may be overwritten
    for place, number, mask, sides in walk.reads(tile, tile.mirrored):
        loss_sum, kept = sums[place][0][number], sums[place][1][number]
        seen = values
        if not mask.trivial:
            seen = keep_mask(mask, block, sides[0], "keep", walk.buffers)
            if mask.kept is None:
                add_sums(kept, tile, sides, seen, ones)
            # nobody else looks at the exponentials: those of dropped pairs are gone, for the backward pass as well
            seen = values.mul_(seen) if _read_once(walk.task, walk.task.halved) else seen.mul_(values)
        for mirror in sides:
            odds, width, dim = seen, 1, 0 if mirror else 1
            while width < folds and odds.shape[dim] % 2 == 0:
                left, right = odds.chunk(2, dim)
                out = walk.buffers("loss", (left.shape[0], left.shape[1])) if width == 1 and not spare else left
                odds, width = torch.addcmul(left, left, right, value=factor, out=out).add_(right), 2 * width
            losses = torch.mul(odds, factor, out=walk.buffers("rest", (odds.shape[0], odds.shape[1]))).log1p_()
            if mirror:
                loss_sum[tile.columns].addmv_(losses.T, ones[: losses.shape[0]])
            else:
                loss_sum[tile.rows].addmv_(losses, ones[: losses.shape[1]])
    if walk.task.retained:
        retained[tile.number] = values


def _slope(walk: Walk, tile: Tile, bias: Tensor, factor: float, retained: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return what masks look at, and sigmoid(z): from logits or, where there is a factor, from their exponentials."""
    out = walk.buffers("loss", tile.shape)
    if not factor:
        logits = walk.logits(tile) if retained is None else retained
        return logits, torch.add(logits, bias, out=out).sigmoid_()
    values = walk.exponentials(tile)[1] if retained is None else retained
    return values, torch.div(values, torch.add(values, 1 / factor, out=out), out=out)


def _quick_weight(walk: Walk, tile: Tile, factor: float, given: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return what the logits of a tile receive where all pairs count: what is given / (1 + e^-z).

    The walk is one whose temperature has the other sign.
    """
    opposite = walk.exponentials(tile)[1]
    if tile.excluded is not None:
        opposite.view(-1).index_fill_(0, tile.excluded, torch.inf)
    shares: Tensor | None = None
    for place, number, _, sides in walk.reads(tile, walk.task.halved):
        for mirror in sides:
            share = given[place][0][number][tile.columns if mirror else (tile.rows, None)]
            shares = share if shares is None else shares + share
    assert shares is not None  # there is at least one rule
    return torch.div(shares * factor, opposite.add_(factor), out=opposite)


def _read_once(task: Task, both: bool) -> bool:
    """Whether every buffer of a tile is read for one side of one rule, so that it may be overwritten."""
    return not both and len(task.directions) == 1 and len(task.directions[0].masks) == 1


def _weight(walk: Walk, block: Block, slope: Tensor, given: Sequence[tuple[Tensor, Tensor]], soft: bool) -> Tensor:
    """Return what the logits of a tile receive, from what the sums have been given."""
    tile = block.tile
    weight = walk.buffers("weight", tile.shape)
    fresh = True
    once = _read_once(walk.task, walk.task.halved)
    for place, number, mask, sides in walk.reads(tile, walk.task.halved):  # also on the diagonal: one product
        on_loss, on_pulled = (each[number] for each in given[place])
        keep = pull = None
        if not mask.trivial:
            keep = keep_mask(mask, block, sides[0], "keep", walk.buffers)
        if keep is not None and mask.pulls and not soft:
            pull = pull_mask(mask, block, sides[0], keep, walk.buffers)
            keep.sub_(pull)
            pull.mul_(torch.sub(slope, 1.0, out=walk.buffers("opposite", tile.shape)))
        values = slope if keep is None else keep.mul_(slope)
        for mirror in sides:
            where = tile.columns if mirror else (tile.rows, None)
            if once and pull is None:
                return values.mul_(on_loss[where])
            if fresh:
                torch.mul(values, on_loss[where], out=weight)
                fresh = False
            else:
                weight.addcmul_(values, on_loss[where])
            if pull is not None:
                weight.addcmul_(pull, on_pulled[where])
    return weight
