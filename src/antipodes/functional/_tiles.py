"""Tiles: how the pairs of anchors and candidates are cut into blocks that stay in cache, and masked there.

A pair passes a mask when it passes every factor of it; a factor is one comparison, of the exponential with a bound or
of two group numbers. Masks are tiles of zeros and ones in the dtype of the similarities: on a CPU a comparison or a
product of those costs a tenth of a nanosecond per pair, boolean tiles cost five to thirty times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.own import Own
from antipodes.functional.rule import Group, Rule


class Tile(NamedTuple):
    """A block of pairs: anchors of block `row` with candidates of block `column`.

    Attributes:
        row: the number of its block of anchors.
        column: the number of its block of candidates.
        shape: how many of both.
        mirrored: whether the tile stands for its mirror image below the diagonal as well.
        excluded: flat positions in the tile of pairs that never count, or None.
    """

    row: int
    column: int
    shape: tuple[int, int]
    mirrored: bool
    excluded: Tensor | None


class Vector(NamedTuple):
    """A vector cut into blocks, once to stand beside a tile's rows (b, 1) and once along its columns (b,)."""

    down: tuple[Tensor, ...]
    along: tuple[Tensor, ...]

    @classmethod
    def cut(cls, vector: Tensor, block: int) -> Vector:
        """Cut a vector."""
        return cls(vector.unsqueeze(1).split(block), vector.split(block))


class Factor(NamedTuple):
    """One comparison that a pair has to pass.

    Attributes:
        compare: the elementwise comparison of left and right.
        left: group numbers of the candidates, or None for the exponentials of the tile.
        right: group numbers or bounds of the anchors.
    """

    compare: Callable[..., Tensor]
    left: Vector | None
    right: Vector


Positions = dict[tuple[int, int], Tensor]


class Mask(NamedTuple):
    """A rule made ready for tiles: W is the product of `keep`, and W times one minus the product of `free` is Y.

    Attributes:
        keep: what a pair must pass to stay in the denominator.
        free: what a pair must pass not to be pulled.
        dropped: flat positions of listed pairs that leave the denominator, by block of anchors and of candidates.
        pulled: those of listed pairs that are pulled.
        mutual: whether pair (i, k) and pair (k, i) get the same answer, so that one mask serves both.
        kept: (A,) the number of pairs that pass `keep`, where it is known without looking at similarities.
    """

    keep: tuple[Factor, ...]
    free: tuple[Factor, ...]
    dropped: Positions
    pulled: Positions
    mutual: bool
    kept: Tensor | None

    @property
    def pulls(self) -> bool:
        """Whether any pair may be pulled."""
        return bool(self.free or self.pulled)

    @property
    def trivial(self) -> bool:
        """Whether every pair is kept and none pulled."""
        return not (self.keep or self.dropped or self.pulls)


_Comparison = tuple[Callable[..., Tensor], Tensor | None, Tensor]  # a factor before it is cut


def same_id_pairs(anchor_ids: Tensor, candidate_ids: Tensor, limit: int) -> tuple[Tensor, Tensor] | None:
    """List the pairs (rows, columns) of the same id; None if there are more than the limit."""
    own = Own(anchor_ids, candidate_ids)
    return None if int(own.count.sum()) > limit else own.pairs()


def cut(anchors: int, candidates: int, block: int, symmetric: bool, pairs: tuple[Tensor, Tensor] | None) -> list[Tile]:
    """Cut all pairs into tiles; when the anchors are the candidates, only those on and above the diagonal.

    Args:
        anchors: the number of anchors.
        candidates: the number of candidates.
        block: the edge of a tile.
        symmetric: whether the candidates are the anchors themselves.
        pairs: rows and columns of pairs that never count.
    """
    excluded = {} if pairs is None else positions(*pairs, candidates, block)
    return [
        Tile(
            row,
            column,
            (min(block, anchors - row * block), min(block, candidates - column * block)),
            symmetric and row != column,
            excluded.get((row, column)),
        )
        for row in range(-(-anchors // block))
        for column in range(row if symmetric else 0, -(-candidates // block))
    ]


def positions(rows: Tensor, columns: Tensor, candidates: int, block: int) -> Positions:
    """Sort pairs (rows, columns) by the tile they are in: its numbers to their flat positions in it."""
    across = -(-candidates // block)
    number, by_tile = torch.sort(rows // block * across + columns // block)
    width = (candidates - columns // block * block).clamp(max=block)
    position = (rows % block * width + columns % block)[by_tile]
    numbers, sizes = torch.unique_consecutive(number, return_counts=True)
    tiles = [divmod(each, across) for each in numbers.tolist()]
    return dict(zip(tiles, position.split(sizes.tolist()), strict=True))


def compile_rule(
    rule: Rule, temperature: Tensor, candidates: int, block: int, symmetric: bool, pairs: tuple[Tensor, Tensor] | None
) -> Mask:
    """Turn a rule into factors, leaving out bounds that cannot bind, and count what it keeps where that is easy.

    Args:
        rule: the rule.
        temperature: (A,), in the dtype of the sums.
        candidates: the number of candidates.
        block: the edge of a tile.
        symmetric: whether the candidates are the anchors themselves.
        pairs: rows and columns of pairs that never count, or None if these are among the rule's groups.
    """
    keep: list[_Comparison] = []
    free: list[_Comparison] = []
    false_negatives = {"drop": keep, "pull": free}
    for bound, compare, comparisons in (
        (rule.low, torch.ge, keep),
        (rule.high, torch.le, keep),
        (rule.ceiling, torch.le, false_negatives[rule.above]),
    ):
        if bound is not None:
            binds = bound > -1 if compare is torch.ge else bound < 1
            if bool(binds.any()):
                limit = torch.where(binds, bound, -torch.inf if compare is torch.ge else torch.inf)
                comparisons.append((compare, None, torch.exp(limit.to(temperature) / temperature)))
    mutual = symmetric and not keep and not free
    for group in rule.groups:
        mutual = mutual and (group.anchors is group.candidates or torch.equal(group.anchors, group.candidates))
        if group.same == "only":
            keep.append((torch.eq, *_group_numbers(group)))
        else:
            false_negatives[group.same].append((torch.ne, *_group_numbers(group)))

    def factor(compare: Callable[..., Tensor], left: Tensor | None, right: Tensor) -> Factor:
        numbers = None if left is None else Vector.cut(left.to(temperature), block)
        return Factor(compare, numbers, Vector.cut(right.to(temperature), block))

    dropped, pulled = (_listed(rule, act, candidates, block) for act in ("drop", "pull"))
    kept = None if pairs is None or dropped else _count(keep, pairs, len(temperature), candidates)
    kept_factors, free_factors = (tuple(factor(*each) for each in comparisons) for comparisons in (keep, free))
    return Mask(kept_factors, free_factors, dropped, pulled, mutual, kept)


def _listed(rule: Rule, act: str, candidates: int, block: int) -> Positions:
    lists = [listed for listed in rule.lists if listed.act == act and len(listed.anchors)]
    if not lists:
        return {}
    rows, columns = (torch.cat(part) for part in zip(*((each.anchors, each.candidates) for each in lists), strict=True))
    return positions(rows, columns, candidates, block)


def _group_numbers(group: Group) -> tuple[Tensor, Tensor]:
    """Return the groups of candidates and of anchors as small integers, equal exactly when the groups match."""
    anchors, candidates = group.anchors, group.candidates
    both = torch.cat((anchors, candidates))
    if len(both) and int(both.max()) >= len(both):  # small enough for float32 and for a table
        anchors, candidates = both.unique(return_inverse=True)[1].split((len(anchors), len(candidates)))
    return torch.where(group.candidates < 0, -2, candidates), torch.where(group.anchors < 0, -1, anchors)


def _count(keep: list[_Comparison], pairs: tuple[Tensor, Tensor], anchors: int, candidates: int) -> Tensor | None:
    """Count what passes nothing or one comparison of groups, without the given pairs; anything else takes tiles."""
    rows, columns = pairs
    if not keep:
        return candidates - torch.bincount(rows, minlength=anchors)
    compare, left, right = keep[0]
    if len(keep) > 1 or left is None:
        return None
    same = torch.bincount(left + 2, minlength=anchors + candidates + 2)[right + 2]  # no candidate has an anchor's -1
    passing = same if compare is torch.eq else candidates - same
    return passing - torch.bincount(rows[compare(left[columns], right[rows])], minlength=anchors)


class Buffers:
    """Tile-sized buffers by name, allocated once per pass: fresh memory for each tile costs more than the sums."""

    def __init__(self, block: int, like: Tensor) -> None:
        self.block = block
        self.like = like
        self.pool: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, int]], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Return the buffer of that name in that shape."""
        view = self.views.get((name, shape))
        if view is None:
            if name not in self.pool:
                self.pool[name] = self.like.new_empty(self.block * self.block)
            view = self.views[name, shape] = self.pool[name][: shape[0] * shape[1]].view(shape)
        return view


def keep_mask(mask: Mask, tile: Tile, mirror: bool, exponentials: Tensor, name: str, buffers: Buffers) -> Tensor:
    """Return ones where a pair of the tile stays in the denominator and zeros elsewhere, in the named buffer.

    With `mirror` the tile's columns are judged as anchors and its rows as candidates.
    """
    keep = _passes(mask.keep, tile, mirror, exponentials, name, buffers)
    for listed in (tile.excluded, mask.dropped.get((tile.row, tile.column))):
        if listed is not None:
            keep.view(-1).index_fill_(0, listed, 0.0)
    return keep


def pull_mask(mask: Mask, tile: Tile, mirror: bool, exponentials: Tensor, keep: Tensor, buffers: Buffers) -> Tensor:
    """Return ones where a pair of the tile is pulled, among those of the mask `keep`."""
    free = _passes(mask.free, tile, mirror, exponentials, "pull", buffers)
    if (tile.row, tile.column) in mask.pulled:
        free.view(-1).index_fill_(0, mask.pulled[tile.row, tile.column], 0.0)
    return torch.addcmul(keep, keep, free, value=-1, out=free)


def _passes(
    factors: tuple[Factor, ...], tile: Tile, mirror: bool, exponentials: Tensor, name: str, buffers: Buffers
) -> Tensor:
    out = buffers(name, tile.shape)
    if not factors:
        return out.fill_(1.0)
    for number, (compare, left, right) in enumerate(factors):
        target = buffers("scratch", tile.shape) if number else out
        of_anchors = right.along[tile.column] if mirror else right.down[tile.row]
        if left is None:
            compare(exponentials, of_anchors, out=target)
        else:
            compare(left.down[tile.row] if mirror else left.along[tile.column], of_anchors, out=target)
        if number:
            out.mul_(target)
    return out
