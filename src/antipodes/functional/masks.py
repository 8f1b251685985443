"""Masks: what a rule says about a tile of pairs. This is the one place where a rule gets its meaning.

1. The (A, C) matrix of pairs is cut into tiles, small enough that a few of them fit into a processor's cache.
2. `compile_rule` turns a rule into factors: comparisons of a similarity with a bound, or of two group numbers.
3. A pair passes a mask when it passes every factor of it and is not listed. `keep_mask` writes 1 where a pair stays in
   the denominator (W of the rule) and 0 elsewhere; `pull_mask` writes how much a kept pair is pulled (Y of the rule).
4. `judge_block` answers the same for a block of similarities, for those who look at pairs one by one.

Masks are floating-point blocks in the dtype of the similarities: on a CPU a comparison or a product of those costs a
tenth of a nanosecond per pair, boolean blocks cost five to thirty times as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.rule import Bounds, Group, Rule, binding
from antipodes.functional.tensors import on_host

CPU_EDGE, DEVICE_EDGE = 512, 4096
"""The largest edge of a tile on a CPU, where a few tiles then fit into a core's cache, and on other devices."""


class Tile(NamedTuple):
    """A block of pairs: some anchors with some candidates.

    Attributes:
        number: its number among the tiles.
        rows: the anchors.
        columns: the candidates.
        shape: (h, w), how many of both.
        mirrored: whether the tile also stands for its mirror image below the diagonal.
        excluded: flat positions in the tile of pairs that never count, or None.
    """

    number: int
    rows: slice
    columns: slice
    shape: tuple[int, int]
    mirrored: bool
    excluded: Tensor | None


class Listing:
    """A list of single pairs, sorted by row, from which every tile takes its own.

    Args:
        rows: (L,) the anchors of the pairs.
        columns: (L,) their candidates.
    """

    def __init__(self, rows: Tensor, columns: Tensor) -> None:
        self.order = np.argsort(rows.cpu().numpy(), kind="stable")
        self.rows, self.columns = rows.cpu().numpy()[self.order], columns.cpu().numpy()[self.order]
        self.device = rows.device

    def places(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor] | None:
        """Return the flat positions in a tile of the pairs that lie in it, and their places in the list; or None."""
        start, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        column = self.columns[start:stop]
        inside = (column >= columns.start) & (column < columns.stop)
        if not inside.any():
            return None
        row = self.rows[start:stop][inside] - rows.start
        flat = row * (columns.stop - columns.start) + column[inside] - columns.start
        return torch.from_numpy(flat).to(self.device), torch.from_numpy(self.order[start:stop][inside]).to(self.device)


def whole(anchors: int, candidates: int) -> Tile:
    """Return one tile of all pairs."""
    return Tile(0, slice(0, anchors), slice(0, candidates), (anchors, candidates), False, None)


def cut(
    anchors: int, candidates: int, height: int, width: int, halved: bool, excluded: Listing | None
) -> tuple[Tile, ...]:
    """Cut all pairs into tiles.

    Args:
        anchors: the number of anchors.
        candidates: the number of candidates.
        height: how many anchors are in a tile.
        width: how many candidates are in a tile.
        halved: whether the anchors are the candidates and tiles below the diagonal are left out.
        excluded: pairs that never count.
    """
    tiles: list[Tile] = []
    for start in range(0, anchors, height):
        rows = slice(start, min(start + height, anchors))
        first, edges = 0, []
        if halved:
            edges, first = [(start, rows.stop)], rows.stop
        edges += [(left, min(left + width, candidates)) for left in range(first, candidates, width)]
        for left, right in edges:
            columns = slice(left, right)
            inside = None if excluded is None else excluded.places(rows, columns)
            positions = None if inside is None else inside[0]
            shape = (rows.stop - start, right - left)
            tiles.append(Tile(len(tiles), rows, columns, shape, halved and left != start, positions))
    return tuple(tiles)


def edges(anchors: int, candidates: int, most: int) -> tuple[int, int]:
    """Return the height and width of tiles of at most that edge, such that none of them is a narrow rest."""
    height, width = (
        8 * math.ceil(count / math.ceil(count / most) / 8) if count else 1 for count in (anchors, candidates)
    )
    return height, width


class Buffers:
    """Matrices by name that tiles use one after the other: fresh memory for each tile costs more than its sums."""

    def __init__(self, cells: int, like: Tensor) -> None:
        self.cells = cells
        self.like = like
        self.pool: dict[str, Tensor] = {}
        self.views: dict[tuple[str, tuple[int, int]], Tensor] = {}

    def __call__(self, name: str, shape: tuple[int, int]) -> Tensor:
        """Return the buffer of that name in that shape; what it holds is left over from the tile before."""
        view = self.views.get((name, shape))
        if view is None:
            if name not in self.pool:
                self.pool[name] = self.like.new_empty(self.cells)
            view = self.views[name, shape] = self.pool[name][: shape[0] * shape[1]].view(shape)
        return view


Matrices = Callable[[str, tuple[int, int]], Tensor]
"""What gives a matrix for a name and a shape: `Buffers`, or new memory each time."""


class Factor(NamedTuple):
    """One comparison that a pair has to pass.

    Attributes:
        compare: the elementwise comparison, of what `source` says with `anchors`.
        source: the block of similarities, that of the guide's similarities, or the group numbers of the candidates.
        candidates: (C,) group numbers, where the source is groups.
        anchors: (A,) group numbers or bounds.
    """

    compare: Callable[..., Tensor]
    source: Literal["own", "guide", "group"]
    candidates: Tensor | None
    anchors: Tensor


Positions = dict[int, Tensor]  # the number of a tile to flat positions in it
Shares = dict[int, Tensor]  # the number of a tile to the share that is left of the pairs at these positions


class Mask(NamedTuple):
    """A rule made ready for blocks: W is the product of `keep`, and W times one minus the product of `free` is Y.

    Attributes:
        keep: what a pair must pass to stay in the denominator.
        free: what a pair must pass not to be pulled.
        dropped: positions of listed pairs that leave the denominator, by tile.
        pulled: positions of listed pairs that are pulled, by tile.
        left: how much of each of these is not pulled, where they have weights.
        mutual: whether pair (i, k) and pair (k, i) get the same answer, so that one mask serves both.
        kept: (A,) the number of pairs that pass `keep`, where it is known without looking at similarities.
        only_pulled: whether W is what Y would be, and Y nothing: the sum over the pulled pairs alone.
    """

    keep: tuple[Factor, ...]
    free: tuple[Factor, ...]
    dropped: Positions
    pulled: Positions
    mutual: bool
    kept: Tensor | None
    left: Shares = {}
    only_pulled: bool = False

    @property
    def pulls(self) -> bool:
        """Whether any pair may be pulled."""
        return bool(self.free or self.pulled) and not self.only_pulled

    @property
    def keeps_all(self) -> bool:
        """Whether every pair of different samples is kept."""
        return not (self.keep or self.dropped or self.only_pulled)

    @property
    def compares(self) -> bool:
        """Whether it compares the similarities themselves."""
        return any(factor.source == "own" for factor in self.keep + self.free)

    @property
    def guided(self) -> bool:
        """Whether it looks at the guide's similarities."""
        return any(factor.source == "guide" for factor in self.keep + self.free)


class Block(NamedTuple):
    """What a mask looks at in a tile.

    Attributes:
        tile: where the block is.
        values: (h, w) the similarities or the logits, in the units of the bounds.
        guide: (h, w) the guide's similarities, if any mask asks for them.
    """

    tile: Tile
    values: Tensor
    guide: Tensor | None


def compile_rule(
    rule: Rule,
    scale: Callable[[Tensor], Tensor],
    tiles: Sequence[Tile],
    dtype: torch.dtype,
    symmetric: bool = False,
    mirror: bool = False,
) -> Mask:
    """Turn a rule without ranks into factors.

    Args:
        rule: the rule, its bounds on the device of the similarities.
        scale: what is done to a similarity before it is compared, and hence to a bound.
        tiles: the tiles of the pairs, which listed pairs are sorted into.
        dtype: of the similarities.
        symmetric: whether the weight of pair (i, k) equals that of pair (k, i) if the rule treats them alike.
        mirror: whether the rule's anchors are the columns of the tiles.
    """
    keep: list[Factor] = []
    free: list[Factor] = []
    _compare_bounds(rule.bounds, "own", scale, dtype, keep, free)
    if rule.guide is not None:
        _compare_bounds(rule.guide, "guide", lambda bound: bound, dtype, keep, free)
    mutual = symmetric and not keep and not free
    for group in rule.groups:
        mutual = mutual and (group.anchors is group.candidates or torch.equal(group.anchors, group.candidates))
        candidates, anchors = (numbers.to(dtype) for numbers in group_numbers(group))
        compare = torch.eq if group.same == "only" else torch.ne
        (free if group.same == "pull" else keep).append(Factor(compare, "group", candidates, anchors))
    dropped, _ = _listed(rule, "drop", tiles, mirror, dtype)
    pulled, left = _listed(rule, "pull", tiles, mirror, dtype)
    return Mask(tuple(keep), tuple(free), dropped, pulled, mutual, None, left, rule.only_pulled)


def keep_mask(mask: Mask, block: Block, mirror: bool, buffers: Matrices) -> Tensor:
    """Return ones where a pair of the block stays in the denominator and zeros elsewhere, in the buffer "keep".

    With `mirror` the tile's columns are judged as anchors and its rows as candidates.
    """
    keep = _passes(mask.keep, block, mirror, "keep", buffers)
    for listed in (block.tile.excluded, mask.dropped.get(block.tile.number)):
        if listed is not None:
            keep.view(-1).index_fill_(0, listed, 0.0)
    return keep.copy_(pull_mask(mask, block, mirror, keep, buffers)) if mask.only_pulled else keep


def pull_mask(mask: Mask, block: Block, mirror: bool, keep: Tensor, buffers: Matrices) -> Tensor:
    """Return how much each pair of the block is pulled, among those of the mask `keep`, in the buffer "pull"."""
    free = _passes(mask.free, block, mirror, "pull", buffers)
    listed, left = mask.pulled.get(block.tile.number), mask.left.get(block.tile.number)
    if left is not None:
        flat = free.view(-1)
        flat[listed] = flat[listed] * left
    elif listed is not None:
        free.view(-1).index_fill_(0, listed, 0.0)
    return torch.addcmul(keep, keep, free, value=-1, out=free)


def group_numbers(group: Group) -> tuple[Tensor, Tensor]:
    """Return the groups of candidates and of anchors as small integers, equal exactly when the groups match."""
    anchors, candidates = group.anchors, group.candidates
    both = torch.cat((anchors, candidates))
    # small enough for float32; only on a CPU can the largest number be read without a synchronisation
    if not on_host(both) or (len(both) and both.numpy().max() >= 2**24):
        anchors, candidates = both.unique(return_inverse=True)[1].split((len(anchors), len(candidates)))
    return torch.where(group.candidates < 0, -2, candidates), torch.where(group.anchors < 0, -1, anchors)


def _compare_bounds(
    bounds: Bounds,
    source: Literal["own", "guide"],
    scale: Callable[[Tensor], Tensor],
    dtype: torch.dtype,
    keep: list[Factor],
    free: list[Factor],
) -> None:
    """Add the factors of a band and a ceiling; bounds beyond the range of cosines never bind, whatever the rounding."""
    for name, bound in bounds.named:
        bound = bound.detach().to(dtype)
        limit = torch.where(bound > -1, bound, -torch.inf) if name == "low" else binding(bound)
        factors = free if name == "ceiling" and bounds.above == "pull" else keep
        factors.append(Factor(torch.ge if name == "low" else torch.le, source, None, scale(limit)))


def _listed(rule: Rule, act: str, tiles: Sequence[Tile], mirror: bool, dtype: torch.dtype) -> tuple[Positions, Shares]:
    """Sort listed pairs into tiles; with what is left of each, if any has a weight."""
    lists = [listed for listed in rule.lists if listed.act == act and len(listed.anchors)]
    if not lists:
        return {}, {}
    rows, columns = (torch.cat(part) for part in zip(*((each.anchors, each.candidates) for each in lists), strict=True))
    listing = Listing(columns, rows) if mirror else Listing(rows, columns)
    found = {tile.number: places for tile in tiles if (places := listing.places(tile.rows, tile.columns)) is not None}
    positions = {number: places[0] for number, places in found.items()}
    if all(each.weights is None for each in lists):
        return positions, {}
    weights = [torch.ones_like(each.anchors) if each.weights is None else each.weights.detach() for each in lists]
    left = 1 - torch.cat([each.to(dtype) for each in weights])
    return positions, {number: left[places[1]] for number, places in found.items()}


def _passes(factors: tuple[Factor, ...], block: Block, mirror: bool, name: str, buffers: Matrices) -> Tensor:
    """Return the product of the factors on a block, in the named buffer."""
    tile = block.tile
    out = buffers(name, tile.shape)
    if not factors:
        return out.fill_(1.0)
    for number, (compare, source, candidates, anchors) in enumerate(factors):
        target = buffers("scratch", tile.shape) if number else out
        of_anchors = anchors[tile.columns] if mirror else anchors[tile.rows, None]
        if candidates is not None:
            compare(candidates[tile.rows, None] if mirror else candidates[tile.columns], of_anchors, out=target)
        else:
            compare(block.values if source == "own" else block.guide, of_anchors, out=target)
        if number:
            out.mul_(target)
    return out


class Judged(NamedTuple):
    """What a rule does with a block of pairs, (b, C) of booleans each.

    Attributes:
        kept: pairs that stay in the denominator: neither ignored nor dropped.
        pulled: kept pairs that are positives as well.
    """

    kept: Tensor
    pulled: Tensor


def judge_block(
    rule: Rule, similarities: Tensor, rows: slice | None = None, *, guide_similarities: Tensor | None = None
) -> Judged:
    """Say which pairs of a block a rule keeps and pulls, exactly as the kernel does it, tile by tile.

    The rule knows nothing of samples: whoever asks takes out the anchors' own and empty slots. Its ranks must have
    become bounds (`bounded`), since a block need not show all candidates.

    Args:
        rule: of A anchors and C candidates.
        similarities: (b, C) of some anchors with all candidates.
        rows: which anchors, a slice of b of them with a start and a stop. None: all.
        guide_similarities: (b, C) in the guide's space, for a rule that looks at it.

    Raises:
        ValueError: if the rule has ranks, or looks at a guide that is not given.

    Example:
        >>> rule = Rule(ceiling=torch.tensor([0.5, 0.9]))
        >>> judge_block(rule, torch.tensor([[0.1, 0.8], [0.1, 0.8]])).kept
        tensor([[ True, False],
                [ True,  True]])
    """
    if rule.ranks:
        raise ValueError("ranks mean nothing in a block: turn them into bounds first, with `bounded`")
    if rule.needs_guide and guide_similarities is None:
        raise ValueError("the rule looks at the guide's space: give guide_similarities")
    rule = rule if rows is None else rule.of_anchors(rows)
    height, width = similarities.shape
    tile = whole(height, width)
    mask = compile_rule(rule, lambda bound: bound, (tile,), similarities.dtype)
    buffers = Buffers(height * width, similarities)
    block = Block(tile, similarities.detach(), None if guide_similarities is None else guide_similarities.detach())
    keep = keep_mask(mask, block, False, buffers)
    if not mask.pulls:
        return Judged(keep > 0, torch.zeros_like(keep, dtype=torch.bool))
    return Judged(keep > 0, pull_mask(mask, block, False, keep, buffers) > 0)


def flagged_block(
    rule: Rule, similarities: Tensor, rows: slice | None = None, *, guide_similarities: Tensor | None = None
) -> Tensor:
    """Say which pairs of a block a rule calls false negatives, whether it drops or pulls them, (b, C) of booleans.

    The arguments are those of `judge_block`; what the rule ignores makes no difference.

    Example:
        >>> flagged_block(Rule(ceiling=torch.tensor([0.5])), torch.tensor([[0.1, 0.8]]))
        tensor([[False,  True]])
    """
    return judge_block(rule.flags().attract(), similarities, rows, guide_similarities=guide_similarities).pulled
