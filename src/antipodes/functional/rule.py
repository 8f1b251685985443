"""Rules: which pairs of anchors and candidates are pushed, ignored or pulled, without a mask.

Every method's answer to "does this pair count" is a band of similarities or of their ranks, a comparison of groups, or
several of these.
A rule holds a few vectors per anchor and per candidate; `contrast` applies it to one block of similarities at a time.
Where the answer follows from neither, a rule can list single pairs.

Three things can happen to a pair that a rule singles out:

- ignored: outside the band `low <= s <= high` or its ranks, or outside an `"only"` group. It leaves the denominator.
- dropped: a false negative, above the `ceiling`, in a `"drop"` group or listed. It leaves the denominator.
- pulled: a false negative, above the `ceiling`, in a `"pull"` group or listed. It stays in the denominator and is a
  positive as well.

Ignoring and dropping win over pulling. The two differ in one respect: `Rule.attract` turns dropping into pulling
and leaves ignoring alone.

Bounds and ranks may look at a second space: a guide's vectors of the same anchors and candidates, without gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Group:
    """A comparison of one group number per anchor with one per candidate.

    Attributes:
        anchors: (A,) int64. A negative number is a group of its own: it matches nothing, not even itself.
        candidates: (C,) int64, as above.
        same: what happens to pairs of the same group: `"drop"` and `"pull"` treat them as false negatives;
            `"only"` ignores all other pairs instead.
    """

    anchors: Tensor
    candidates: Tensor
    same: Literal["drop", "only", "pull"] = "drop"


@dataclass(frozen=True, eq=False)
class Listed:
    """False negatives one by one, for decisions that neither this step's similarities nor groups can express.

    Memory grows with the list, and a batch that is its own candidates loses the shortcut of its symmetry.

    Attributes:
        anchors: (L,) int64 positions of anchors.
        candidates: (L,) int64 positions of candidates.
        act: what happens to these pairs, `"drop"` or `"pull"`.
        weights: (L,) numbers in [0, 1]: how much each is pulled, where the positive is pulled by 1; None pulls each
            like the positive. A pair that is listed with a weight is listed once.
    """

    anchors: Tensor
    candidates: Tensor
    act: Literal["drop", "pull"] = "drop"
    weights: Tensor | None = None

    def chosen(self, which: Tensor) -> Listed:
        """Return those pairs of the list, by a mask (L,)."""
        weights = None if self.weights is None else self.weights[which]
        return Listed(self.anchors[which], self.candidates[which], self.act, weights)


@dataclass(frozen=True, eq=False)
class Bounds:
    """A band and a ceiling of the similarity in the guide's space, with the meaning of the rule's own.

    Attributes:
        low: (A,), pairs whose guides have s < low are ignored.
        high: (A,), pairs with s > high are ignored.
        ceiling: (A,), pairs with s > ceiling are false negatives.
        above: what happens to pairs above the ceiling, `"drop"` or `"pull"`.
    """

    low: Tensor | None = None
    high: Tensor | None = None
    ceiling: Tensor | None = None
    above: Literal["drop", "pull"] = "drop"

    def __and__(self, other: Bounds) -> Bounds:
        """Merge two pairs of bounds as `Rule.__and__` does."""
        high = _smaller(self.high, other.high)
        if self.ceiling is None or other.ceiling is None or self.above == other.above:
            ceiling = _smaller(self.ceiling, other.ceiling)
            above = other.above if self.ceiling is None else self.above
        else:
            dropping, pulling = (self, other) if self.above == "drop" else (other, self)
            high, ceiling, above = _smaller(high, dropping.ceiling), pulling.ceiling, "pull"
        low = self.low if other.low is None else other.low if self.low is None else torch.maximum(self.low, other.low)
        return Bounds(low, high, ceiling, above)

    @cached_property
    def named(self) -> tuple[tuple[str, Tensor], ...]:
        """The bounds that there are, by name."""
        every = (("low", self.low), ("high", self.high), ("ceiling", self.ceiling))
        return tuple((name, bound) for name, bound in every if bound is not None)

    @property
    def pulls(self) -> bool:
        """Whether pairs above the ceiling are pulled."""
        return self.ceiling is not None and self.above == "pull"

    @property
    def ignores(self) -> bool:
        """Whether there is a band outside of which pairs are ignored."""
        return self.low is not None or self.high is not None


@dataclass(frozen=True, eq=False)
class Ranks:
    """Places in the order of similarity: rank 0 is the candidate of another sample that is most similar to the anchor.

    An integer is a rank, and so is every entry of an (A,) int64 tensor; a float is the rank that this share of the
    anchor's candidates have passed, rounded down.

    Attributes:
        first: candidates of a lower rank are ignored.
        last: candidates from this rank on are ignored.
        space: whose similarities are put in order: those of the embeddings, `"own"`, or those of the guide, `"guide"`.

    Example:
        >>> Ranks(0.01, 0.1)  # percentiles 90 to 99 of similarity
        Ranks(first=0.01, last=0.1, space='own')
    """

    first: float | Tensor
    last: float | Tensor
    space: Literal["own", "guide"] = "own"


@dataclass(frozen=True, eq=False)
class Rule:
    """A band of similarities and any number of rank bands, group comparisons and lists, joined by "and".

    Bounds are (A,) tensors, one number per anchor, or None for no bound. The band is closed: a similarity equal to
    `low`, `high` or `ceiling` is kept. Similarities carry rounding errors, so a policy that takes a bound from a
    ranking should place it midway between neighbours. A `high` or `ceiling` of at least 1 and a `low` of at most -1
    never bind, whatever the rounding. Arguments are checked by `contrast`, where the number of anchors is known.

    Attributes:
        low: pairs with s < low are ignored.
        high: pairs with s > high are ignored.
        ceiling: pairs with s > ceiling are false negatives.
        above: what happens to pairs above the ceiling, `"drop"` or `"pull"`.
        groups: group comparisons.
        lists: lists of single pairs.
        ranks: bands of ranks, which become bounds where the similarities are computed.
        guide: bounds of the similarity in the guide's space.
        only_pulled: sum over the pulled pairs alone. It is set last, on a rule whose ranks are bounds already; `&`
            does not keep it.

    Example:
        >>> import torch
        >>> ring = Rule(low=torch.tensor([0.1, 0.2]), high=torch.tensor([0.8, 0.9]))
        >>> both = ring & Rule(ceiling=torch.tensor([0.7, 0.7]))
        >>> both.attract().above
        'pull'
    """

    low: Tensor | None = None
    high: Tensor | None = None
    ceiling: Tensor | None = None
    above: Literal["drop", "pull"] = "drop"
    groups: tuple[Group, ...] = ()
    lists: tuple[Listed, ...] = ()
    ranks: tuple[Ranks, ...] = ()
    guide: Bounds | None = None
    only_pulled: bool = False

    def __post_init__(self) -> None:
        """Take a single group, list or band of ranks in the place of a tuple of them."""
        for name, kind in (("groups", Group), ("lists", Listed), ("ranks", Ranks)):
            given = getattr(self, name)
            if given.__class__ is not tuple:
                object.__setattr__(self, name, (given,) if isinstance(given, kind) else _of_kind(name, kind, given))

    def __and__(self, other: Rule) -> Rule:
        """Merge two rules: a pair is kept if both keep it, and pulled if one pulls it and neither drops nor ignores it.

        When one rule drops above its ceiling and the other pulls, the dropping ceiling becomes a `high`.
        """
        bounds = self.bounds & other.bounds
        guide = other.guide if self.guide is None else self.guide
        if self.guide is not None and other.guide is not None:
            guide = self.guide & other.guide
        groups, lists = self.groups + other.groups, self.lists + other.lists
        return Rule(
            bounds.low, bounds.high, bounds.ceiling, bounds.above, groups, lists, self.ranks + other.ranks, guide
        )

    @cached_property
    def bounds(self) -> Bounds:
        """The rule's own band and ceiling."""
        return Bounds(self.low, self.high, self.ceiling, self.above)

    @property
    def needs_guide(self) -> bool:
        """Whether this rule looks at the guide's space."""
        return (self.guide is not None and bool(self.guide.named)) or any(r.space == "guide" for r in self.ranks)

    def attract(self) -> Rule:
        """Return the same rule with every false negative pulled instead of dropped."""
        groups = tuple(replace(group, same="pull") if group.same == "drop" else group for group in self.groups)
        lists = tuple(replace(listed, act="pull") for listed in self.lists)
        guide = None if self.guide is None else replace(self.guide, above="pull")
        return replace(self, above="pull", groups=groups, lists=lists, guide=guide)

    def eliminate(self) -> Rule:
        """Return the same rule with every false negative dropped instead of pulled."""
        groups = tuple(replace(group, same="drop") if group.same == "pull" else group for group in self.groups)
        lists = tuple(Listed(listed.anchors, listed.candidates) for listed in self.lists)
        guide = None if self.guide is None else replace(self.guide, above="drop")
        return replace(self, above="drop", groups=groups, lists=lists, guide=guide)

    def of_candidates(self, positions: Tensor) -> Rule:
        """Return the rule for the candidates at these positions, which rise; ranks are taken as ranks among them."""
        groups = tuple(replace(group, candidates=group.candidates[positions]) for group in self.groups)
        lists = []
        for listed in self.lists:
            left = listed.chosen(torch.isin(listed.candidates, positions))
            lists.append(replace(left, candidates=torch.searchsorted(positions, left.candidates)))
        return replace(self, groups=groups, lists=tuple(lists))

    def of_anchors(self, rows: slice) -> Rule:
        """Return the rule for the anchors in a slice of them; ranks must be numbers or bounds already."""

        def cut(bounds: Bounds) -> Bounds:
            low, high, ceiling = (
                None if each is None else each[rows] for each in (bounds.low, bounds.high, bounds.ceiling)
            )
            return Bounds(low, high, ceiling, bounds.above)

        bounds, guide = cut(self.bounds), None if self.guide is None else cut(self.guide)
        groups = tuple(replace(group, anchors=group.anchors[rows]) for group in self.groups)
        lists = []
        for listed in self.lists:
            here = listed.chosen((listed.anchors >= rows.start) & (listed.anchors < rows.stop))
            lists.append(replace(here, anchors=here.anchors - rows.start))
        low, high, ceiling, above = bounds.low, bounds.high, bounds.ceiling, bounds.above
        return Rule(low, high, ceiling, above, groups, tuple(lists), self.ranks, guide, self.only_pulled)

    @cached_property
    def pulls(self) -> bool:
        """Whether there may be pairs that this rule pulls."""
        by_bound = self.bounds.pulls or (self.guide is not None and self.guide.pulls)
        by_list = any(listed.act == "pull" for listed in self.lists)
        return by_bound or by_list or any(group.same == "pull" for group in self.groups)

    @property
    def weighted(self) -> bool:
        """Whether there are pairs that are pulled by weights."""
        return any(listed.weights is not None for listed in self.lists)

    @property
    def ignores(self) -> bool:
        """Whether there are pairs that this rule leaves out without calling them false negatives."""
        by_band = self.bounds.ignores or bool(self.ranks) or (self.guide is not None and self.guide.ignores)
        return by_band or any(group.same == "only" for group in self.groups)

    @cached_property
    def ceiling_alone(self) -> bool:
        """Whether this rule says no more than that pairs above a ceiling are dropped, if that."""
        more = self.low is not None or self.high is not None or self.groups or self.lists or self.ranks or self.guide
        return not (more or self.only_pulled) and (self.ceiling is None or self.above == "drop")

    def flags(self) -> Rule:
        """Return what this rule says about false negatives, without what it ignores."""
        groups = tuple(group for group in self.groups if group.same != "only")
        guide = None if self.guide is None else replace(self.guide, low=None, high=None)
        return Rule(ceiling=self.ceiling, above=self.above, groups=groups, lists=self.lists, guide=guide)


EVERY_PAIR = (Rule(),)
"""The one rule that keeps every pair of different samples."""


def binding(limits: Tensor) -> Tensor:
    """Return upper limits of similarities, infinite from 1 on: nothing exceeds those, whatever the rounding."""
    return torch.where(limits < 1, limits, torch.inf)


def _of_kind(name: str, kind: type, given: object) -> tuple[Any, ...]:
    """Several parts of a rule as a tuple; refuse what is none."""
    if not isinstance(given, Sequence) or not all(isinstance(each, kind) for each in given):
        raise TypeError(f"Rule.{name} must be a {kind.__name__} or a tuple of them, got a {type(given).__name__}")
    return tuple(given)


def _smaller(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else torch.minimum(a, b)
