"""Which candidates show an anchor's own sample: in another view, or as a stale copy in a queue or bank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from antipodes.functional.tensors import on_host

FEW_CANDIDATES = 2**12  # up to so many they are sorted in place of the anchors, in fewer operations
FEW_PAIRS = 2**18  # up to so many there is one tile, and comparing all of them is faster than looking for some


def few_pairs(anchors: int, candidates: int) -> bool:
    """Return True if so many pairs are summed by the dense kernel."""
    return 0 < anchors * candidates <= FEW_PAIRS


class SameSample:
    """The candidates with the id of an anchor, found without comparing all pairs.

    It is made once per step and handed to all that look at the same pairs; nothing is computed before it is asked for.
    A negative id is an empty slot: it shows no sample.

    Args:
        anchor_ids: (A,) integers.
        candidate_ids: (C,) integers; None: the anchors are the candidates.
        views: How many views of every sample there are, where anchors and candidates are known to be the same different
            samples in the same order, all first views before all second ones: then they need not be searched. 0 if
            that is not known.

    Example:
        >>> SameSample(torch.tensor([7, 5]), torch.tensor([5, 6, 7, 5])).pairs()
        (tensor([0, 1, 1]), tensor([2, 0, 3]))
    """

    def __init__(self, anchor_ids: Tensor, candidate_ids: Tensor | None = None, views: int = 0) -> None:
        self.views = views
        self.anchor_ids = anchor_ids
        self.candidate_ids = anchor_ids if candidate_ids is None else candidate_ids

    @cached_property
    def filled(self) -> Tensor:
        """(C,) whether there is a candidate, rather than an empty slot."""
        return self.candidate_ids >= 0

    @cached_property
    def count(self) -> Tensor:
        """(A,) how many candidates have the anchor's id."""
        if len(self.anchor_ids) * len(self.candidate_ids) > FEW_PAIRS:
            return self._found[0]
        return (self.filled.sum() - self.different.sum(1)).long()

    @cached_property
    def different(self) -> Tensor:
        """(A, C) of float32: 1 where a candidate is of another sample, 0 where it is not or is none; for few pairs."""
        anchors, candidates = self.numbers(torch.float32)
        apart = torch.ne(anchors[:, None], candidates, out=anchors.new_empty(len(anchors), len(candidates)))
        filled = on_host(anchors) and len(candidates) > 0 and self.candidate_ids.numpy().min() >= 0
        return apart if filled else apart.mul_(self.filled)

    @cached_property
    def available(self) -> Tensor:
        """(A,) how many candidates are of other samples."""
        if self.views:
            return torch.full_like(self.anchor_ids, self.anchor_ids.shape[0] - self.views)
        if len(self.anchor_ids) * len(self.candidate_ids) <= FEW_PAIRS:
            return self.different.sum(1).long()
        return self.filled.sum() - self.count

    def turned(self) -> SameSample:
        """Return the relation of the candidates to the anchors."""
        return self if self.candidate_ids is self.anchor_ids else SameSample(self.candidate_ids, self.anchor_ids)

    @property
    def leaves_some(self) -> bool:
        """Whether it is known that every anchor has a candidate of another sample."""
        return 0 < self.views < self.anchor_ids.shape[0]

    def exclude(self, similarities: Tensor, rows: slice) -> Tensor:
        """Set the similarities (b, C) of the pairs that never count, of the anchors in these rows, to -inf, in place.

        On a CPU the few pairs are listed. A device would have to wait for the length of that list, so that it compares
        the ids of all pairs instead.
        """
        if on_host(similarities):
            similarities[self.pairs(rows)] = -torch.inf
            return similarities
        return similarities.masked_fill_(~self._block(rows), -torch.inf)

    def _block(self, rows: slice) -> Tensor:
        """(b, C) of booleans: whether the pairs of these anchors count."""
        return (self.anchor_ids[rows, None] != self.candidate_ids) & self.filled

    def blank(self, numbers: Tensor) -> Tensor:
        """Set what a matrix (A, C) holds for pairs of one sample and for empty slots to zero; for few pairs."""
        views = self.views
        if not views:
            different = self.different
            return numbers.mul_(different if different.dtype == numbers.dtype else different.to(numbers.dtype))
        samples = numbers.shape[0] // views
        numbers.view(views, samples, views, samples).diagonal(dim1=1, dim2=3).zero_()
        return numbers

    @cached_property
    def _found(self) -> tuple[Tensor, Tensor, Tensor]:
        """How many candidates of its id every anchor has, where they start in a list, and that list of columns."""
        if self.views:  # of two views every anchor has itself and the other one: columns 0, b, 1, b + 1, ...
            every = torch.arange(len(self.anchor_ids), device=self.anchor_ids.device).view(self.views, -1)
            sample = torch.arange(every.shape[1], device=every.device).repeat(self.views)
            return torch.full_like(sample, self.views), self.views * sample, every.T.flatten()
        if on_host(self.anchor_ids) and len(self.candidate_ids) <= FEW_CANDIDATES:
            ours, theirs = self.anchor_ids.numpy(), self.candidate_ids.numpy()
            order = theirs.argsort(kind="stable")
            ranked = theirs[order]
            first = ranked.searchsorted(ours)
            count = np.where(ours >= 0, ranked.searchsorted(ours, "right") - first, 0)
            return torch.from_numpy(count), torch.from_numpy(first), torch.from_numpy(order)
        anchor_ids, candidate_ids = self.anchor_ids.long(), self.candidate_ids.long().contiguous()
        samples, sample = anchor_ids.unique(return_inverse=True)
        place = torch.searchsorted(samples, candidate_ids)
        ends = torch.cat([samples, samples.new_full((1,), -1)])  # for ids above all of the samples
        # candidates of no anchor go to a last place of their own, so that nothing has to be read back
        place = torch.where((ends[place] == candidate_ids) & self.filled, place, len(samples))
        counts = torch.zeros_like(ends).index_add_(0, place, torch.ones_like(place))
        starts = counts.cumsum(0) - counts
        return counts[sample], starts[sample], place.argsort(stable=True)

    def numbers(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return numbers of anchors (A,) and candidates (C,) in that dtype, equal exactly where their ids are."""
        anchors, candidates = self._small
        ours = anchors.to(dtype)
        return ours, ours if candidates is anchors else candidates.to(dtype)

    @cached_property
    def _small(self) -> tuple[Tensor, Tensor]:
        """Integers that float32 can hold, equal exactly where ids are; only on a CPU may one look without waiting."""
        anchors, candidates = self.anchor_ids, self.candidate_ids
        parts = (anchors,) if candidates is anchors else (anchors, candidates)
        if on_host(anchors) and all(len(part) == 0 or part.numpy().max() < 2**24 for part in parts):
            return anchors, candidates
        numbers = torch.cat(parts).unique(return_inverse=True)[1]
        return numbers[: len(anchors)], numbers[len(numbers) - len(candidates) :]

    def spaces(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return numbers as `numbers` does, one pair of tensors per comparison: equal in any of them never counts."""
        return [self.numbers(dtype)]

    def of_candidates(self, positions: Tensor) -> SameSample:
        """Return the relation of the same anchors to the candidates at these positions (P,)."""
        return SameSample(self.anchor_ids, self.candidate_ids[positions])

    def number_of_pairs(self) -> int:
        """How many pairs `pairs` would list; only on a CPU may one look without waiting."""
        return int(self._found[0].numpy().sum())

    def pairs(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the pairs of the same id, of the anchors in these rows: rows, from their first on, and columns."""
        counts, starts, columns = self._found
        count, start = (part[rows].cpu().numpy() for part in (counts, starts))
        row = np.repeat(np.arange(len(count)), count)
        number = np.arange(len(row)) - np.repeat(count.cumsum() - count, count)
        place = torch.from_numpy(start[row] + number).to(columns.device)
        return torch.from_numpy(row).to(columns.device), columns[place]


class Excluded(SameSample):
    """Pairs that never count for more reasons than one: another comparison of numbers, or given negatives of others.

    Args:
        anchor_ids: (A,) as in `SameSample`.
        candidate_ids: (C,) as in `SameSample`; negative for an empty slot.
        spaces: Further numbers of anchors (A,), at least 0, and of candidates (C,): a pair with equal numbers in one of
            these spaces never counts. A negative number of a candidate equals none.
        owners: Numbers of anchors (A,) and of candidates (C,): only pairs with equal numbers count. For candidates
            that belong to one anchor each.

    Example:
        >>> queries, documents = torch.tensor([0, 0, 1]), torch.tensor([5, 6, 6])
        >>> Excluded(documents, documents, [(queries, queries)]).different
        tensor([[0., 0., 1.],
                [0., 0., 0.],
                [1., 0., 0.]])
    """

    def __init__(
        self,
        anchor_ids: Tensor,
        candidate_ids: Tensor,
        spaces: Sequence[tuple[Tensor, Tensor]] = (),
        owners: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(anchor_ids, candidate_ids)
        self.further, self.owners = tuple(spaces), owners

    @cached_property
    def count(self) -> Tensor:
        """(A,) how many filled candidates never count for the anchor."""
        if len(self.anchor_ids) * len(self.candidate_ids) <= FEW_PAIRS:
            return (self.filled.sum() - self.different.sum(1)).long()
        if self.owners is None:
            listed = self.filled[self._listed[1]]
            return torch.bincount(self._listed[0], weights=listed.double(), minlength=len(self.anchor_ids)).long()
        counts = [self.filled.sum() - self._block(slice(k, k + 64)).sum(1) for k in range(0, len(self.anchor_ids), 64)]
        return torch.cat(counts)

    @cached_property
    def different(self) -> Tensor:
        """(A, C) of float32: 1 where a pair counts, 0 where it never does; for few pairs."""
        return self._block(slice(None)).float()

    @cached_property
    def available(self) -> Tensor:
        """(A,) how many candidates count."""
        return self.filled.sum() - self.count

    def blank(self, numbers: Tensor) -> Tensor:
        """Set what a matrix (A, C) holds for pairs that never count to zero; for few pairs."""
        return numbers.mul_(self.different.to(numbers.dtype))

    def spaces(self, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
        """Return numbers of anchors (A,) and candidates (C,) per space, small enough for that dtype."""
        return [self.numbers(dtype), *(SameSample(*each).numbers(dtype) for each in self.further)]

    def of_candidates(self, positions: Tensor) -> Excluded:
        """Return the relation of the same anchors to the candidates at these positions (P,)."""
        return self.part(slice(None), positions)

    def part(self, rows: slice, columns: slice | Tensor) -> Excluded:
        """Return the relation of some anchors to some candidates."""
        further = [(anchors[rows], candidates[columns]) for anchors, candidates in self.further]
        owners = None if self.owners is None else (self.owners[0][rows], self.owners[1][columns])
        return Excluded(self.anchor_ids[rows], self.candidate_ids[columns], further, owners)

    def number_of_pairs(self) -> int:
        """How many pairs `pairs` would list."""
        if self.owners is not None:  # nearly all: not worth a list
            return len(self.anchor_ids) * len(self.candidate_ids)
        return len(self._listed[0])

    def pairs(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Return the pairs that never count, of the anchors in these rows: rows, from their first on, and columns."""
        if self.owners is not None:
            found = (~self._block(rows) & self.filled).nonzero()
            return found[:, 0], found[:, 1]
        row, column = self._listed
        start, stop, _ = rows.indices(len(self.anchor_ids))
        first, last = torch.searchsorted(row, torch.tensor([start, stop], device=row.device)).tolist()
        return row[first:last] - start, column[first:last]

    @cached_property
    def _listed(self) -> tuple[Tensor, Tensor]:
        """The pairs that are equal in one space or several, each once, in the order of anchors."""
        parts = [SameSample(*each).pairs() for each in ((self.anchor_ids, self.candidate_ids), *self.further)]
        width = max(len(self.candidate_ids), 1)
        flat = torch.cat([rows * width + columns for rows, columns in parts]).unique()
        return flat // width, flat % width

    def _block(self, rows: slice) -> Tensor:
        """(b, C) of booleans: whether the pairs of these anchors count."""
        counts = super()._block(rows)
        for anchors, candidates in self.further:
            counts &= anchors[rows, None] != candidates
        if self.owners is not None:
            counts &= self.owners[0][rows, None] == self.owners[1]
        return counts
