"""The stream: one pass over the tiles for the sums, and one for the gradient.

Sums. Where exp(s/tau) fits its dtype without a shift (`Task.warm`), sums of a tile simply add up. Where it is colder,
one shift serves all pairs if the sums of all anchors are near each other: the first tile says which shift, or that they
are not, and the sums tell in the end whether it was right (`_shift`). Otherwise every anchor has a peak, the largest
logit that it kept so far; exponentials are taken relative to it, and what was added up before fades when it rises. A
tile gives its row sums to its rows. It gives its column sums to its columns when these are anchors too: in the other
direction of two, or above the diagonal when the candidates are the anchors.

Gradient. With g_i the gradient of log_sum_i, the similarities receive G_ik = M_ik exp(s_ik/tau - log_sum_i) g_i / tau,
the anchors G c and the candidates G^T a. A tile that is read in both directions adds both up before the products. Tiles
are computed again rather than stored, unless there are few. Where the candidates (a queue, a bank) take no gradient,
the weighted sum of candidates is collected in the forward pass and scaled in the backward.

The gradient of the temperature is free: d log_sum_i / d tau_i = - sum_k G_ik s_ik / tau_i, and sum_k G_ik s_ik is the
dot product of anchor i and its gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from antipodes.functional._compiling import first_order
from antipodes.functional._masks import Block, Mask, keep_mask, pull_mask
from antipodes.functional._shift import CEILING, FLOOR, LOWEST, find_shift, fits
from antipodes.functional._task import Direction, Task
from antipodes.functional._tiles import Buffers, Sliced, Tile
from antipodes.functional._workers import share_out

FAR = 1e30  # below all logits by so much that its exponential is zero, and still a number: zero times it is zero
FAINT = 1e-11  # gradients so much smaller than the largest count as zero: times exponentials they would underflow
VANISHED, TINY = -60.0, 1e-26  # no logit is further below a peak than this: exponentials that underflow are slow


class Walk:
    """One pass over the tiles: their logits, the guide's similarities, and the buffers.

    Attributes:
        shift: what is subtracted from every logit before its exponential is taken; None where anchors have peaks.
        ready: logits that are there already, by the numbers of their tiles.
    """

    def __init__(
        self, task: Task, anchors: Tensor, candidates: Tensor, temperature: Tensor, shift: float | None = None
    ) -> None:
        self.task, self.shift = task, shift
        self.anchors, self.candidates = Sliced(anchors), Sliced(candidates)
        # One operand carries 1/tau, so that the product is the logit.
        self.scaled = Sliced(anchors / (temperature if temperature.ndim == 0 else temperature[:, None]))
        self.buffers = Buffers(task.cells, anchors)
        self.looks = task.looks
        self.ready: dict[int, Tensor] = {}
        self.guided = any(mask.guided for direction in task.directions for mask in direction.masks)

    def beside(self) -> Self:
        """The same walk with buffers of its own, for another worker."""
        other = copy.copy(self)
        other.buffers = Buffers(self.task.cells, self.anchors.tensor)
        return other

    def logits(self, tile: Tile, out: Tensor | None = None) -> Tensor:
        """Return the tile's logits, far below all others where a pair never counts."""
        ready = self.ready.pop(tile.number, None)
        if ready is not None:
            return ready
        logits = self.lasting("logits", tile) if out is None else out
        torch.mm(self.scaled(tile.rows), self.candidates(tile.columns, down=True), out=logits)
        if tile.excluded is not None:
            logits.view(-1).index_fill_(0, tile.excluded, -FAR)
        return logits

    def exponentials(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """Return the tile's logits and their exponentials, in one buffer unless something is pulled."""
        out = self.lasting("exponentials", tile)
        logits = self.logits(tile, self.buffers("logits", tile.shape) if self.task.pulls else out)
        return logits, torch.exp(logits, out=out)

    def lasting(self, name: str, tile: Tile) -> Tensor:
        """Return a buffer that a tile shares with the others, or has for itself where tiles are kept."""
        return self.anchors.tensor.new_empty(tile.shape) if self.task.retained else self.buffers(name, tile.shape)

    def shifted(self, logits: Tensor, tile: Tile) -> Tensor:
        """Return the exponentials of the tile's logits less the shift, in their place unless these are still wanted."""
        out = self.buffers("exponentials", tile.shape) if self.looks else logits
        values = torch.sub(logits, self.shift, out=out)  # type: ignore[arg-type]
        return values.clamp_(FLOOR, CEILING).exp_()

    def block(self, tile: Tile, values: Tensor) -> Block:
        """Return what masks look at: logits or exponentials, and the guide's similarities."""
        guide = None
        if self.guided:
            assert self.task.guide is not None
            rows, columns = self.task.guide
            guide = torch.mm(rows[tile.rows], columns[tile.columns].T, out=self.buffers("guide", tile.shape))
        return Block(tile, values, guide)

    def reads(self, tile: Tile, both: bool) -> Iterator[tuple[int, int, Mask, tuple[bool, ...]]]:
        """Yield the readings of a tile: the number of a direction, that of a rule, its mask, and the sides it serves.

        A side says whether the tile's columns are the anchors; both sides share a reading where they share a mask.

        Args:
            tile: the tile.
            both: whether it is read as its own mirror image as well.
        """
        for place, direction in enumerate(self.task.directions):
            for number, mask in enumerate(direction.masks):
                if not both:
                    yield place, number, mask, (direction.mirror,)
                elif mask.mutual:
                    yield place, number, mask, (False, True)
                else:
                    yield place, number, mask, (False,)
                    yield place, number, mask, (True,)


class Totals:
    """The sums of one direction while they grow, (R, A) each."""

    def __init__(self, direction: Direction, like: Tensor, drawn: bool, pulled_drawn: bool) -> None:
        shape = (len(direction.masks), direction.count)
        self.total, self.kept, self.pulled_sum, self.pulled = (like.new_zeros(shape) for _ in range(4))
        self.peak = like.new_full(shape, LOWEST)
        # (R, A, D) weighted sums of candidates, when the gradient can be taken along
        self.drawn = like.new_zeros(*shape, like.shape[1]) if drawn else None
        self.pulled_drawn = like.new_zeros(*shape, like.shape[1]) if pulled_drawn else None

    def add_shifted(
        self, rule: int, tile: Tile, mirror: bool, logits: Tensor, keep: Tensor | None, walk: Walk, ones: Tensor
    ) -> None:
        """Add the exponentials of a tile's kept logits, relative to a peak that rises with them."""
        values = walk.buffers("values", tile.shape)
        if keep is not None:
            logits = torch.add(logits, torch.sub(keep, 1.0, out=values), alpha=FAR, out=values)
        if walk.task.offsets is not None:
            logits = torch.add(logits, walk.task.offsets[tile.columns], out=values)
        where = tile.columns if mirror else tile.rows
        before, total = self.peak[rule, where], self.total[rule, where]
        peak = torch.maximum(before, logits.amax(0 if mirror else 1))
        torch.sub(logits, peak if mirror else peak[:, None], out=values)
        values.clamp_(min=VANISHED).exp_()
        fade = before.sub_(peak).exp_()
        total.mul_(fade)
        if mirror:
            total.addmv_(values.T, ones[tile.rows])
        else:
            total.addmv_(values, ones[tile.columns])
        if self.drawn is not None:
            self.drawn[rule, where].mul_(fade[:, None]).addmm_(values, walk.candidates(tile.columns))
        before.copy_(peak)

    def join(self, other: Totals) -> None:
        """Add what another worker has summed up, its exponentials relative to its own peak."""
        peak = torch.maximum(self.peak, other.peak)
        for each in (self, other):
            fade = (each.peak - peak).exp_()
            each.total *= fade
            if each.drawn is not None:
                each.drawn *= fade[..., None]
        self.peak = peak
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine += theirs

    def _sums(self) -> list[Tensor]:
        every = (self.total, self.kept, self.pulled_sum, self.pulled, self.drawn, self.pulled_drawn)
        return [each for each in every if each is not None]


def add_sums(totals: Tensor, tile: Tile, sides: tuple[bool, ...], values: Tensor, weights: Tensor) -> None:
    """Add a tile's weighted row sums to its rows' totals and, for the mirror image, its column sums to its columns'."""
    for mirror in sides:
        if mirror:
            totals[tile.columns].addmv_(values.T, weights[tile.rows])
        else:
            totals[tile.rows].addmv_(values, weights[tile.columns])


class Stream(torch.autograd.Function):
    """Sums over kept and over pulled pairs, with first-order gradients to anchors, candidates and temperature."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, task: Task) -> tuple[Tensor, ...]:
        """Return for each direction log sums, numbers kept, sums of pulled similarities and numbers pulled, (R, A).

        Args:
            ctx: the context of autograd.
            anchors: (A, D) of float32 or float64.
            candidates: (C, D); detached where they are the anchors.
            temperature: () or (A,).
            task: the rest.
        """
        along = task.rows_need_grad and not task.columns_need_grad and len(task.directions) == 1 and not task.halved
        ones = anchors.new_ones(max(len(anchors), len(candidates)))
        weights = ones if task.offsets is None else task.offsets.exp()  # of the candidates, where there is no shift
        weighted = candidates if task.offsets is None or not along else candidates * weights[:, None]
        retained: dict[int, Tensor] = {}
        walk = Walk(task, anchors, candidates, temperature)
        count = len(anchors) + len(candidates)
        walk.shift = _shift(walk, count)

        def summed() -> list[Totals]:
            def part(tiles: Sequence[Tile]) -> list[Totals]:
                sums = [Totals(each, anchors, along, along and task.pulls) for each in task.directions]
                _add_sums(walk.beside(), tiles, sums, ones, weights, weighted, retained)
                return sums

            sums, *rest = share_out(task.tiles, anchors.device, part)
            for other in rest:
                for mine, theirs in zip(sums, other, strict=True):
                    mine.join(theirs)
            return sums

        sums = summed()
        if walk.shift and not all(fits(each.total, count) for each in sums):
            walk.shift = None
            sums = summed()
        shift = walk.shift
        ctx.retained, ctx.shift = retained, shift
        outputs: list[Tensor] = []
        saved: list[Tensor | None] = [anchors, candidates, temperature]
        for each, direction in zip(sums, task.directions, strict=True):
            for number, mask in enumerate(direction.masks):
                if mask.kept is not None:
                    each.kept[number] = mask.kept
            each.pulled_sum *= temperature
            if shift is None:  # what vanishes adds nothing to a sum that has its peak in it; by itself it is nothing
                each.total.masked_fill_(each.peak <= LOWEST, 0.0)
            log_sum = each.total.log().add_(each.peak if shift is None else shift)
            outputs += [log_sum, each.kept, each.pulled_sum, each.pulled]
            saved += [each.total, each.peak, each.pulled_sum, each.drawn, each.pulled_drawn]
            ctx.mark_non_differentiable(each.kept, each.pulled)
        ctx.task = task
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of anchors, candidates and temperature."""
        task: Task = ctx.task
        shift: float | None = ctx.shift
        anchors, candidates, temperature, *saved = ctx.saved_tensors
        pulled_part = torch.zeros_like(temperature)
        top = largest(grads)
        handed: list[tuple[Tensor, Tensor, Tensor]] = []  # per direction: to kept pairs, to pulled pairs, log sums
        for place in range(len(task.directions)):
            total, peak, pulled_sum, _, _ = saved[5 * place : 5 * place + 5]
            grad_log_sum, _, grad_pulled_sum, _ = grads[4 * place : 4 * place + 4]
            present = (total > 0) & (grad_log_sum.abs() > FAINT * top)  # nothing goes where nothing is kept
            grad_log_sum, grad_pulled_sum = grad_log_sum / top, grad_pulled_sum / top
            push = torch.where(present, grad_log_sum / temperature, 0.0)
            if shift is not None:
                push = torch.where(present, push / total, 0.0)
            handed.append((push, grad_pulled_sum, total.log() + peak))
            pulled_part = pulled_part + top * like_temperature(grad_pulled_sum * pulled_sum, temperature)
        grad_candidates: Tensor | None = None
        drawn, pulled_drawn = saved[3], saved[4]
        if drawn is not None:
            push = handed[0][0] if shift is not None else torch.where(saved[0] > 0, handed[0][0] / saved[0], 0.0)
            grad_anchors = torch.einsum("ra,rad->ad", push, drawn)
            if pulled_drawn is not None:
                grad_anchors += torch.einsum("ra,rad->ad", handed[0][1], pulled_drawn)
        else:
            walk = Walk(task, anchors, candidates, temperature, shift)

            def part(tiles: Sequence[Tile]) -> tuple[Tensor, Tensor]:
                to_anchors = torch.zeros_like(anchors)
                to_candidates = to_anchors if task.halved else torch.zeros_like(candidates)
                _add_gradients(walk.beside(), tiles, ctx.retained, handed, to_anchors, to_candidates)
                return to_anchors, to_candidates

            (grad_anchors, grad_candidates), *rest = share_out(task.tiles, anchors.device, part)
            for to_anchors, to_candidates in rest:
                grad_anchors += to_anchors
                if not task.halved:
                    grad_candidates += to_candidates
        grad_anchors *= top
        if grad_candidates is not None and not task.halved:
            grad_candidates *= top
        grad_temperature: Tensor | None = None
        if ctx.needs_input_grad[2]:
            # Where a tile stands for its mirror image, a pair's share appears at both of its ends.
            share = (anchors * grad_anchors).sum(1) * (0.5 if task.halved else 1.0)
            grad_temperature = (pulled_part - like_temperature(share, temperature)) / temperature
        return grad_anchors, None if task.halved else grad_candidates, grad_temperature, None


def _shift(walk: Walk, count: int) -> float | None:
    """One shift for all exponentials, none (0) where it is warm, or None where every anchor needs a peak of its own."""
    task = walk.task
    if task.warm or not (task.shifts and task.tiles):
        return 0.0 if task.warm else None
    first = task.tiles[0]
    logits = walk.anchors.tensor.new_empty(first.shape)
    walk.ready[first.number] = walk.logits(first, logits)
    sides = [(each.mirror, mask) for each in task.directions for mask in each.masks]
    return find_shift(logits, first, sides, task.reach, count)


def largest(grads: Sequence[Tensor | None]) -> Tensor:
    """Return the largest of these gradients, or 1 if all are zero.

    Pairs are weighed relative to it: times an exponential, the gradients of a loss near zero would underflow, and
    numbers that do are slow.
    """
    top = torch.stack([each.abs().max() for each in grads if each is not None and each.numel()]).max()
    return torch.where(top > 0, top, 1.0)


def like_temperature(shares: Tensor, temperature: Tensor) -> Tensor:
    """Add up shares (R, A) or (A,) to the shape of the temperature, () or (A,)."""
    return shares.sum() if temperature.ndim == 0 else shares.sum(0) if shares.ndim == 2 else shares


def _add_sums(
    walk: Walk,
    tiles: Sequence[Tile],
    sums: Sequence[Totals],
    ones: Tensor,
    weights: Tensor,
    weighted: Tensor,
    retained: dict[int, Tensor],
) -> None:
    """Walk some of the tiles and add up what the rules keep and pull.

    Args:
        walk: where to.
        tiles: which.
        sums: of each direction.
        ones: as many as there are rows or columns.
        weights: (C,) of the candidates.
        weighted: (C, D) the candidates, times their weights where their gradient is taken along.
        retained: takes the tiles that the backward pass will want again, by number.
    """
    task = walk.task
    for tile in tiles:
        if walk.shift == 0:
            logits, values = walk.exponentials(tile)
            seen = values
        else:
            logits = seen = walk.logits(tile)
            values = walk.shifted(logits, tile) if walk.shift else logits
        if task.retained:
            retained[tile.number] = seen
        block = walk.block(tile, seen)
        for place, number, mask, sides in walk.reads(tile, tile.mirrored):
            each, keep = sums[place], None
            if not mask.trivial:
                keep = keep_mask(mask, block, sides[0], "keep", walk.buffers)
                if mask.kept is None:
                    add_sums(each.kept[number], tile, sides, keep, ones)
            if keep is not None and mask.pulls:
                pull = pull_mask(mask, block, sides[0], keep, walk.buffers)
                add_sums(each.pulled[number], tile, sides, pull, ones)
                if each.pulled_drawn is not None:
                    each.pulled_drawn[number, tile.rows].addmm_(pull, walk.candidates(tile.columns))
                add_sums(each.pulled_sum[number], tile, sides, pull.mul_(logits), ones)
            if walk.shift is not None:
                kept = values if keep is None else keep.mul_(values)
                add_sums(each.total[number], tile, sides, kept, weights)
                if each.drawn is not None:
                    each.drawn[number, tile.rows].addmm_(kept, weighted[tile.columns])
            else:
                for mirror in sides:
                    each.add_shifted(number, tile, mirror, logits, keep, walk, ones)


def _add_gradients(
    walk: Walk,
    tiles: Sequence[Tile],
    retained: dict[int, Tensor],
    handed: list[tuple[Tensor, Tensor, Tensor]],
    grad_anchors: Tensor,
    grad_candidates: Tensor,
) -> None:
    """Walk some of the tiles once more and add up the gradients of anchors and candidates.

    Args:
        walk: as it was in the forward pass.
        tiles: which.
        retained: what the forward pass kept of them, by number.
        handed: of each direction, what anchors hand to kept pairs and to pulled ones, and their log sums.
        grad_anchors: takes the gradient of the anchors.
        grad_candidates: that of the candidates; the same where these are the anchors.
    """
    task, buffers = walk.task, walk.buffers
    weights = None if task.offsets is None else task.offsets.exp()
    to_rows, to_columns = Sliced(grad_anchors), Sliced(grad_candidates)
    shares = [[tuple(Sliced(each[number]) for each in parts) for number in range(len(parts[0]))] for parts in handed]
    for tile in tiles:
        seen = retained.get(tile.number)
        fresh = seen is None
        if seen is None:
            seen = walk.exponentials(tile)[1] if walk.shift == 0 else walk.logits(tile)
        values = walk.shifted(seen, tile) if walk.shift and (fresh or walk.looks) else seen
        block = walk.block(tile, seen)
        weight: Tensor | None = None  # of kept pairs, times their exponentials where there are peaks
        pulled: Tensor | None = None
        for place, number, mask, sides in walk.reads(tile, task.halved):  # also on the diagonal: one product
            push, pull_weight, log_sum = shares[place][number]
            keep = None
            if not mask.trivial:
                keep = keep_mask(mask, block, sides[0], "keep", buffers)
            if keep is not None and mask.pulls:
                pull = pull_mask(mask, block, sides[0], keep, buffers)
                pull.mul_(_spread(pull_weight, tile, sides, buffers("share", tile.shape)))
                pulled = buffers("pulled", tile.shape).copy_(pull) if pulled is None else pulled.add_(pull)
            if walk.shift is not None:
                spread = _spread(push, tile, sides, buffers("share", tile.shape))
                if weight is None:
                    out = buffers("weight", tile.shape)
                    weight = out.copy_(spread) if keep is None else torch.mul(keep, spread, out=out)
                else:
                    weight = weight.add_(spread) if keep is None else weight.addcmul_(keep, spread)
                continue
            for mirror in sides:
                out = buffers("share" if weight is not None else "weight", tile.shape)
                torch.sub(values, _of_anchors(log_sum, tile, mirror), out=out)
                if task.offsets is not None:
                    out.add_(task.offsets[tile.columns])
                out.clamp_(VANISHED, 0.0).exp_()  # no kept pair exceeds the sum of all
                out.mul_(_of_anchors(push, tile, mirror))
                if keep is not None:
                    out.mul_(keep)
                weight = out if weight is None else weight.add_(out)
        assert weight is not None  # there is at least one rule
        if walk.shift is not None:
            weight.mul_(values)
            if weights is not None:
                weight.mul_(weights[tile.columns])
        if pulled is not None:
            weight.add_(pulled)
        to_rows(tile.rows).addmm_(weight, walk.candidates(tile.columns))
        if tile.mirrored or not task.halved:
            to_columns(tile.columns).addmm_(weight.T, walk.anchors(tile.rows))


def _of_anchors(vector: Sliced, tile: Tile, mirror: bool) -> Tensor:
    """Return the numbers of a tile's anchors: along its columns where these are the anchors, or beside its rows."""
    return vector(tile.columns) if mirror else vector(tile.rows, down=True)


def _spread(vector: Sliced, tile: Tile, sides: tuple[bool, ...], out: Tensor) -> Tensor:
    """Return what anchors hand out: beside the rows, along the columns for the mirror image, or the sum of both."""
    if len(sides) == 2:
        return torch.add(vector(tile.rows, down=True), vector(tile.columns), out=out)
    return _of_anchors(vector, tile, sides[0])
