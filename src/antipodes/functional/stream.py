"""The streaming kernel: the sums of the dense one, tile by tile, in O(A + C) memory.

Forward. For each tile of about 512 x 512 pairs: its logits z = s / tau by one product, the masks of every rule, and the
sums of its rows, which are added to those of its anchors. Columns are summed as well when they are anchors: in the
second of two directions, or above the diagonal when the candidates are the anchors.

Where |s| / tau is small (`Plan.shift`), sums of e^z simply add up. Otherwise every anchor has a peak, the largest logit
that it has kept so far; exponentials are relative to it, and what was added up before is scaled when it rises.

Backward. A tile's gradient G (h, w), see `dense`, is added up over all rules and both directions before its two
products, with the candidates and with the anchors. The first tiles, as many as fit into `STORED_BYTES`, are stored by
the forward pass, which saves the backward pass their product; all others are computed again. Where the candidates (a
queue, a bank) take no gradient, sums of e^z candidate, (A, D), are collected in the forward pass, and no second pass is
needed.

The gradient of the temperature needs no pass: sum_k G_ik s_ik is the product of anchor i and its gradient.

Tiles are shared out among threads, each with sums of its own. torch would share out every operation of every tile, and
all threads would wait for each other after each; next to other programs some thread is always late. Here every thread
does its tiles alone, and is waited for once. Which tiles it has is fixed, so sums come out the same every time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from antipodes.functional.dense import FAINT, FAR, LOWEST, VANISHED, Gradients, largest, pair_slopes, pair_values
from antipodes.functional.masks import Block, Buffers, Mask, Tile, keep_mask, pull_mask
from antipodes.functional.plan import Direction, Plan

Result = TypeVar("Result")

STORED_BYTES = 3 * 2**24
"""So much memory may hold tiles between the forward and the backward pass: those of 3,500 x 3,500 pairs in float32."""

MOST = 8  # each has sums and gradients of its own: more of them would take memory, so they get more threads instead

_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}


def workers(device: torch.device) -> int:
    """How many share the tiles of a pass: as many as torch has threads here."""
    return min(torch.get_num_threads(), MOST) if device.type == "cpu" else 1


def share_out(tiles: Sequence[Tile], device: torch.device, part: Callable[[Sequence[Tile]], Result]) -> list[Result]:
    """Do the tiles in parts, one for every worker, and return what the parts came to, in a fixed order.

    Args:
        tiles: All of them.
        device: Where the numbers are.
        part: Does some of the tiles, without gradient; it must not change anything that another part looks at.
    """
    count = max(1, min(workers(device), len(tiles)))
    if count == 1:
        return [part(tiles)]
    threads, pool = torch.get_num_threads(), _pool(count - 1)
    each = max(1, threads // count)
    own, *rest = _even(tiles, count)
    others = [pool.submit(_alone, part, theirs, each) for theirs in rest]
    torch.set_num_threads(each)
    try:
        first = part(own)
    finally:
        wait(others)
        torch.set_num_threads(threads)  # also for threads that do not exist yet, which the workers have spoken for
    return [first, *(other.result() for other in others)]


def _even(tiles: Sequence[Tile], count: int) -> list[list[Tile]]:
    """Deal the tiles out so that everybody has about as many pairs: the largest first, to who has least."""
    shares: list[list[Tile]] = [[] for _ in range(count)]
    pairs = [0] * count
    for tile in sorted(tiles, key=lambda tile: tile.shape[0] * tile.shape[1], reverse=True):
        least = pairs.index(min(pairs))
        shares[least].append(tile)
        pairs[least] += tile.shape[0] * tile.shape[1]
    return shares


def _alone(part: Callable[[Sequence[Tile]], Result], tiles: Sequence[Tile], threads: int) -> Result:
    """Do a part in a worker: threads are counted, and gradients switched off, for each by itself."""
    torch.set_num_threads(threads)
    with torch.no_grad():
        return part(tiles)


def _pool(count: int) -> ThreadPoolExecutor:
    """So many workers; a forked process has none of its parent's."""
    key = os.getpid(), count
    if key not in _pools:
        _pools[key] = ThreadPoolExecutor(count, "antipodes")
    return _pools[key]


class Reading(NamedTuple):
    """One look at a tile: by one rule, for the rows, for the columns, or for both if they share a mask.

    Attributes:
        direction: the number of the direction.
        rule: the number of the rule.
        mask: its mask.
        sides: for each side that is served, whether the columns of the tile are the anchors.
        keep: (h, w) W, or None if every pair is kept and none pulled.
        pull: (h, w) Y, or None.
    """

    direction: int
    rule: int
    mask: Mask
    sides: tuple[bool, ...]
    keep: Tensor | None
    pull: Tensor | None


class Pass:
    """One pass over the tiles: their logits and masks, in buffers that are used tile after tile.

    Args:
        plan: of the call.
        anchors: (A, D).
        candidates: (C, D).
        temperature: () or (A,).
        stored: tiles that the forward pass stores for the backward pass, by number: their exponentials where nothing
            else is needed (`stores_values`), else their logits.
    """

    def __init__(
        self, plan: Plan, anchors: Tensor, candidates: Tensor, temperature: Tensor, stored: Mapping[int, Tensor]
    ) -> None:
        self.plan, self.anchors, self.candidates, self.stored = plan, anchors, candidates, stored
        # one operand carries 1 / tau, so that the product is the logit
        self.scaled = anchors / (temperature if temperature.ndim == 0 else temperature[:, None])
        cells = max((tile.shape[0] * tile.shape[1] for tile in plan.tiles), default=0)
        self.buffers = Buffers(cells, anchors)
        self.compared = plan.pulls or any(mask.compares for direction in plan.directions for mask in direction.masks)
        self.guided = any(mask.guided for direction in plan.directions for mask in direction.masks)
        self.stores_values = plan.function == "softmax" and plan.shift == "none" and not self.compared

    def own(self) -> Self:
        """Return the same pass with buffers of its own, for another worker."""
        other = copy.copy(self)
        other.buffers = Buffers(self.buffers.cells, self.anchors)
        return other

    def logits(self, tile: Tile) -> Tensor:
        """Compute the tile's logits (h, w), far below all others where a pair never counts."""
        logits = self.stored.get(tile.number)
        logits = self.buffers("logits", tile.shape) if logits is None else logits
        torch.mm(self.scaled[tile.rows], self.candidates[tile.columns].T, out=logits)
        if tile.excluded is not None:
            logits.view(-1).index_fill_(0, tile.excluded, -FAR)
        return logits

    def exponentials(self, tile: Tile, logits: Tensor) -> Tensor:
        """Return the buffer for what is made of the logits (h, w): theirs, unless these are needed as well."""
        needed = self.compared or (tile.number in self.stored and not self.stores_values)
        return self.buffers("values", tile.shape) if needed else logits

    def readings(self, tile: Tile, logits: Tensor, both: bool) -> Iterator[Reading]:
        """Yield every look at a tile; its masks are overwritten by the next.

        Args:
            tile: the tile.
            logits: (h, w).
            both: whether the tile is read as its own mirror image as well.
        """
        block = Block(tile, logits, self._guide(tile))
        for place, direction in enumerate(self.plan.directions):
            for number, mask in enumerate(direction.masks):
                if not both:
                    ways: tuple[tuple[bool, ...], ...] = ((direction.mirror,),)
                else:
                    ways = ((False, True),) if mask.mutual else ((False,), (True,))
                for sides in ways:
                    keep = pull = None
                    if mask.pulls or not mask.keeps_all:
                        keep = keep_mask(mask, block, sides[0], self.buffers)
                    if keep is not None and mask.pulls:
                        pull = pull_mask(mask, block, sides[0], keep, self.buffers)
                        if self.plan.teacher is not None:
                            out = self.buffers("scratch", tile.shape)
                            pull.mul_(self.plan.teacher.weights(number, tile.rows, tile.columns, out))
                    yield Reading(place, number, mask, sides, keep, pull)

    def _guide(self, tile: Tile) -> Tensor | None:
        if not self.guided or self.plan.guide is None:
            return None
        rows, columns = self.plan.guide
        return torch.mm(rows[tile.rows], columns[tile.columns].T, out=self.buffers("guide", tile.shape))


class Totals:
    """The sums of one direction while they grow.

    Attributes:
        value: (R, A) sums over kept pairs; of a softmax relative to the peaks.
        kept: (R, A) numbers of kept pairs.
        pulled_value: (R, A) sums over pulled pairs.
        pulled: (R, A) numbers of pulled pairs, or sums of their weights.
        peak: (R, A) the largest kept logit so far; 0 where exponentials are not shifted.
        drawn: (R, A, D) sums of e^z candidate over kept pairs, where candidates take no gradient; else None.
        pulled_drawn: (R, A, D) sums of the candidates of pulled pairs, likewise.
    """

    def __init__(self, direction: Direction, like: Tensor, peaked: bool, drawn: bool, pulled_drawn: bool) -> None:
        shape = (len(direction.masks), direction.anchors)
        self.value, self.kept, self.pulled_value, self.pulled = (like.new_zeros(shape) for _ in range(4))
        self.peak = like.new_full(shape, LOWEST) if peaked else like.new_zeros(shape)
        self.drawn = like.new_zeros(*shape, like.shape[1]) if drawn else None
        self.pulled_drawn = like.new_zeros(*shape, like.shape[1]) if pulled_drawn else None

    def add_relative(self, read: Reading, tile: Tile, logits: Tensor, work: Pass, ones: Tensor) -> None:
        """Add the exponentials of a tile's kept logits (h, w), relative to a peak that rises with them."""
        values = work.buffers("values", tile.shape)
        if read.keep is not None:
            logits = torch.add(logits, torch.sub(read.keep, 1.0, out=values), alpha=FAR, out=values)
        for mirror in read.sides:
            where = tile.columns if mirror else tile.rows
            before, total = self.peak[read.rule, where], self.value[read.rule, where]
            peak = torch.maximum(before, logits.amax(0 if mirror else 1))
            relative = work.buffers("relative", tile.shape)
            torch.sub(logits, peak if mirror else peak[:, None], out=relative).clamp_(min=VANISHED).exp_()
            fade = before.sub_(peak).exp_()
            total.mul_(fade)
            if mirror:
                total.addmv_(relative.T, ones[tile.rows])
            else:
                total.addmv_(relative, ones[tile.columns])
            if self.drawn is not None:
                self.drawn[read.rule, where].mul_(fade[:, None]).addmm_(relative, work.candidates[tile.columns])
            before.copy_(peak)

    def join(self, other: Totals) -> None:
        """Add what another worker has summed up, relative to its own peaks."""
        peak = torch.maximum(self.peak, other.peak)
        for each in (self, other):
            fade = (each.peak - peak).exp_()
            each.value *= fade
            if each.drawn is not None:
                each.drawn *= fade[..., None]
        self.peak = peak
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine += theirs

    def _sums(self) -> list[Tensor]:
        every = (self.value, self.kept, self.pulled_value, self.pulled, self.drawn, self.pulled_drawn)
        return [each for each in every if each is not None]


class Saved(NamedTuple):
    """What the forward pass leaves for the backward pass.

    Attributes:
        directions: the sums of each direction.
        tiles: the first tiles, (h, w) each, see `Pass`.
    """

    directions: list[Totals]
    tiles: list[Tensor]


def forward(
    plan: Plan, anchors: Tensor, candidates: Tensor, temperature: Tensor, added: Tensor | None
) -> tuple[list[Tensor], Saved]:
    """Return what the dense kernel returns; the arguments are the same."""
    peaked = plan.function == "softmax" and plan.shift == "peak"
    along = plan.rows_need_grad and not (plan.columns_need_grad or plan.halved) and "sigmoid" not in plan.function
    drawn = along and len(plan.directions) == 1
    again = (plan.rows_need_grad or plan.columns_need_grad) and not drawn
    stored = _stored(plan.tiles, anchors) if again else []
    whole = Pass(plan, anchors, candidates, temperature, dict(enumerate(stored)))
    ones = anchors.new_ones(max(len(anchors), len(candidates)))

    def part(tiles: Sequence[Tile]) -> list[Totals]:
        sums = [
            Totals(each, anchors, peaked, drawn and plan.function == "softmax", drawn and each.pulls)
            for each in plan.directions
        ]
        _add_sums(whole.own(), tiles, sums, peaked, ones, added)
        return sums

    sums, *rest = share_out(plan.tiles, anchors.device, part)
    for other in rest:
        for mine, theirs in zip(sums, other, strict=True):
            mine.join(theirs)
    outputs: list[Tensor] = []
    for each, direction in zip(sums, plan.directions, strict=True):
        for number, mask in enumerate(direction.masks):
            if mask.kept is not None:
                each.kept[number] = mask.kept
        value = each.value
        if plan.function == "softmax":
            if peaked:  # what vanishes adds nothing to a sum that has its peak in it; by itself it is nothing
                value.masked_fill_(each.peak <= LOWEST, 0.0)
            value = value.log().add_(each.peak)
        if "sigmoid" not in plan.function:
            each.pulled_value *= temperature  # logits were summed
        outputs += [value, each.kept, each.pulled_value, each.pulled]
    return outputs, Saved(sums, stored)


def backward(
    plan: Plan,
    saved: Saved,
    anchors: Tensor,
    candidates: Tensor,
    temperature: Tensor,
    added: Tensor | None,
    grads: tuple[Tensor | None, ...],
    wanted: tuple[bool, ...],
    on_positives: Tensor | None = None,
) -> Gradients:
    """Return what the dense kernel returns; the arguments are the same."""
    if all(each is None for each in grads):
        return None, None, None, None
    top = largest(grads)
    shares, pulled_part = [], torch.zeros_like(temperature)
    for place, each in enumerate(saved.directions):
        on_value, _, on_pulled, _ = grads[4 * place : 4 * place + 4]
        shares.append(_shares(plan, each, on_value, on_pulled, temperature, top))
        if on_pulled is not None and "sigmoid" not in plan.function:  # a sum of s does not depend on the temperature
            pulled_part = pulled_part + _like_temperature(on_pulled * each.pulled_value, temperature)
    sums = saved.directions[0]
    on_candidates: Tensor | None = None
    on_bias: Tensor | None = None
    if sums.drawn is not None or sums.pulled_drawn is not None:
        on_anchors = torch.zeros_like(anchors)
        for share, drawn in ((shares[0].push, sums.drawn), (shares[0].pull, sums.pulled_drawn)):
            if drawn is not None:
                on_anchors += torch.einsum("ra,rad->ad", share, drawn)
    else:
        whole = Pass(plan, anchors, candidates, temperature, dict(enumerate(saved.tiles)))
        on_anchors, on_candidates, on_bias = _second_pass(whole, added, shares, wanted)
    on_anchors *= top
    if on_candidates is not None:
        on_candidates *= top
    if on_positives is not None:
        _add_positives(plan, on_positives / temperature, anchors, candidates, on_anchors, on_candidates)
    on_temperature: Tensor | None = None
    if wanted[2]:  # where a tile stands for its mirror image, a pair's share appears at both of its ends
        share = (anchors * on_anchors).sum(1) * (0.5 if plan.halved else 1.0)
        on_temperature = (pulled_part - _like_temperature(share, temperature)) / temperature
    return on_anchors, on_candidates, on_temperature, None if on_bias is None else on_bias * temperature * top


def _add_positives(
    plan: Plan, pull: Tensor, anchors: Tensor, candidates: Tensor, on_anchors: Tensor, on_candidates: Tensor | None
) -> None:
    """Add the gradients of the positive pairs, (i, i) or of two views of b samples (i, b + i), by their similarity."""
    count, pull = pull.shape[0], pull[:, None]
    others, on_others = candidates, on_anchors if plan.halved else on_candidates
    if plan.shared:
        others, on_others = others[count:], None if on_others is None else on_others[count:]
    on_anchors[:count].addcmul_(pull, others)
    if on_others is not None:
        on_others.addcmul_(pull, anchors[:count])


class Shares(NamedTuple):
    """What the anchors of a direction hand to their pairs, (R, A) each.

    Attributes:
        push: what a kept pair receives, times the slope of its value.
        pull: what a pulled pair receives, likewise.
        log_sum: of the exponentials, where these are relative to it.
    """

    push: Tensor
    pull: Tensor
    log_sum: Tensor


def _shares(
    plan: Plan, sums: Totals, on_value: Tensor | None, on_pulled: Tensor | None, temperature: Tensor, top: Tensor
) -> Shares:
    """Return what anchors hand to their pairs, relative to the largest gradient."""
    push = torch.zeros_like(sums.value) if on_value is None else on_value / top / temperature
    pull = torch.zeros_like(sums.value) if on_pulled is None else on_pulled / top
    if "sigmoid" in plan.function:
        return Shares(push, pull / temperature, sums.peak)
    if plan.function == "none":
        return Shares(torch.zeros_like(push), pull, sums.peak)
    present = sums.value > 0  # nothing is handed on where nothing is kept
    if on_value is not None:
        present &= on_value.abs() > FAINT * top
    relative = sums.drawn is not None or plan.shift == "none"
    push = torch.where(present, push / sums.value if relative else push, 0.0)
    return Shares(push, pull, sums.value.log() + sums.peak)


def _stored(tiles: Sequence[Tile], like: Tensor) -> list[Tensor]:
    """Return memory for the first tiles, as many as fit into `STORED_BYTES`."""
    left, stored = STORED_BYTES, []
    for tile in tiles:
        left -= tile.shape[0] * tile.shape[1] * like.element_size()
        if left < 0:
            break
        stored.append(like.new_empty(tile.shape))
    return stored


def _second_pass(
    whole: Pass, added: Tensor | None, shares: Sequence[Shares], wanted: tuple[bool, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of anchors (A, D) and candidates (C, D), and the sum of that of all pairs, by one pass."""
    plan, anchors, candidates = whole.plan, whole.anchors, whole.candidates

    def part(tiles: Sequence[Tile]) -> tuple[Tensor, Tensor, Tensor]:
        on_anchors, total = torch.zeros_like(anchors), torch.zeros_like(anchors[:1, 0])
        on_candidates = on_anchors if plan.halved else torch.zeros_like(candidates)
        work = whole.own()
        for tile in tiles:
            weight = _weigh(work, tile, shares, added)
            if wanted[3]:  # on the diagonal a pair is there twice, and so is its share
                total += weight.sum() * (0.5 if plan.halved and not tile.mirrored else 1.0)
            on_anchors[tile.rows].addmm_(weight, candidates[tile.columns])
            if tile.mirrored or not plan.halved:
                on_candidates[tile.columns].addmm_(weight.T, anchors[tile.rows])
        return on_anchors, on_candidates, total

    (on_anchors, on_candidates, total), *rest = share_out(plan.tiles, anchors.device, part)
    for to_anchors, to_candidates, to_total in rest:
        on_anchors += to_anchors
        total += to_total
        if not plan.halved:
            on_candidates += to_candidates
    return on_anchors, None if plan.halved else on_candidates, total[0] if wanted[3] else None


def _add_sums(
    work: Pass, tiles: Sequence[Tile], sums: Sequence[Totals], peaked: bool, ones: Tensor, added: Tensor | None
) -> None:
    """Visit some of the tiles and add up what the rules keep and pull.

    Args:
        work: the worker's pass.
        tiles: the tiles to visit.
        sums: of each direction, which receive the results.
        peaked: whether exponentials are relative to each anchor's peak.
        ones: as many as there are rows or columns.
        added: what is added to logits: the offsets (C,), the bias () or nothing.
    """
    function = work.plan.function
    for tile in tiles:
        logits = work.logits(tile)
        offset = added if added is None or added.ndim == 0 else added[tile.columns]
        values: Tensor | None = None
        of_pulled = logits
        if not peaked:
            values, of_pulled = pair_values(
                function, logits, offset, work.plan.pulls, work.exponentials(tile, logits), work.buffers
            )
        shifted = logits
        if peaked and offset is not None:
            shifted = torch.add(logits, offset, out=work.buffers("shifted", tile.shape))
        for read in work.readings(tile, logits, tile.mirrored):
            each, keep, pull = sums[read.direction], read.keep, read.pull
            if keep is not None and read.mask.kept is None:
                _add(each.kept[read.rule], tile, read.sides, keep, ones)
            if peaked:
                each.add_relative(read, tile, shifted, work, ones)
            if pull is not None:
                _add(each.pulled[read.rule], tile, read.sides, pull, ones)
                if each.pulled_drawn is not None:
                    each.pulled_drawn[read.rule, tile.rows].addmm_(pull, work.candidates[tile.columns])
                if keep is not None and function == "sigmoid":
                    keep.sub_(pull)
                if function != "soft sigmoid":
                    _add(each.pulled_value[read.rule], tile, read.sides, pull.mul_(of_pulled), ones)
            if values is not None:
                kept = values if keep is None else keep.mul_(values)
                _add(each.value[read.rule], tile, read.sides, kept, ones)
                if each.drawn is not None:
                    each.drawn[read.rule, tile.rows].addmm_(kept, work.candidates[tile.columns])


def _weigh(work: Pass, tile: Tile, shares: Sequence[Shares], added: Tensor | None) -> Tensor:
    """Return the gradient of a tile's similarities, (h, w).

    Args:
        work: the worker's pass.
        tile: the tile.
        shares: what the anchors of each direction hand to their pairs.
        added: what is added to logits.
    """
    plan, buffers = work.plan, work.buffers
    peaked = plan.function == "softmax" and plan.shift == "peak"
    stored = work.stored.get(tile.number)
    logits = work.logits(tile) if stored is None else stored
    offset = added if added is None or added.ndim == 0 else added[tile.columns]
    weight: Tensor | None = None  # of kept pairs
    pulled: Tensor | None = None
    for read in work.readings(tile, logits, plan.halved):  # also on the diagonal: one product
        share, keep, pull = shares[read.direction], read.keep, read.pull
        if pull is not None and plan.function != "soft sigmoid":
            if keep is not None and plan.function == "sigmoid":
                keep.sub_(pull)
            pull.mul_(_spread(share.pull[read.rule], tile, read.sides, buffers("share", tile.shape)))
            pulled = buffers("pulled", tile.shape).copy_(pull) if pulled is None else pulled.add_(pull)
        if peaked:
            weight = _add_relative(weight, read, share, tile, logits, offset, buffers)
            continue
        spread = _spread(share.push[read.rule], tile, read.sides, buffers("share", tile.shape))
        if weight is None:
            out = buffers("weight", tile.shape)
            weight = out.copy_(spread) if keep is None else torch.mul(keep, spread, out=out)
        else:
            weight = weight.add_(spread) if keep is None else weight.addcmul_(keep, spread)
    assert weight is not None  # there is at least one rule
    if not peaked:
        slope, opposite = stored, None
        if stored is None or not work.stores_values:
            out = work.exponentials(tile, logits)
            slope, opposite = pair_slopes(plan.function, logits, offset, plan.pulls, out, buffers)
        weight = weight if slope is None else weight.mul_(slope)
        pulled = pulled if opposite is None or pulled is None else pulled.mul_(opposite)
    return weight if pulled is None else weight.add_(pulled)


def _add_relative(
    weight: Tensor | None,
    read: Reading,
    share: Shares,
    tile: Tile,
    logits: Tensor,
    offset: Tensor | None,
    buffers: Buffers,
) -> Tensor:
    """Add e^{z - log_sum} share of the kept pairs, (h, w), to the weight of a tile, for each side by itself."""
    for mirror in read.sides:
        out = buffers("share" if weight is not None else "weight", tile.shape)
        torch.sub(logits, _of_anchors(share.log_sum[read.rule], tile, mirror), out=out)
        if offset is not None:
            out.add_(offset)
        out.clamp_(VANISHED, 0.0).exp_()  # no kept pair exceeds the sum of all
        out.mul_(_of_anchors(share.push[read.rule], tile, mirror))
        if read.keep is not None:
            out.mul_(read.keep)
        weight = out if weight is None else weight.add_(out)
    assert weight is not None  # a reading has a side
    return weight


def _add(totals: Tensor, tile: Tile, sides: tuple[bool, ...], values: Tensor, ones: Tensor) -> None:
    """Add a tile's row sums to its rows' totals (A,) and, for the mirror image, its column sums to its columns'."""
    for mirror in sides:
        if mirror:
            totals[tile.columns].addmv_(values.T, ones[tile.rows])
        else:
            totals[tile.rows].addmv_(values, ones[tile.columns])


def _of_anchors(vector: Tensor, tile: Tile, mirror: bool) -> Tensor:
    """Return the numbers of a tile's anchors: along its columns where these are the anchors, else along its rows."""
    return vector[tile.columns] if mirror else vector[tile.rows, None]


def _spread(vector: Tensor, tile: Tile, sides: tuple[bool, ...], out: Tensor) -> Tensor:
    """Return what anchors hand to the pairs of a tile, for one side, or added up for both."""
    if len(sides) == 2:
        return torch.add(vector[tile.rows, None], vector[tile.columns], out=out)
    return _of_anchors(vector, tile, sides[0])


def _like_temperature(shares: Tensor, temperature: Tensor) -> Tensor:
    """Add up shares (R, A) or (A,) to the shape of the temperature, () or (A,)."""
    return shares.sum() if temperature.ndim == 0 else shares.sum(0) if shares.ndim == 2 else shares
