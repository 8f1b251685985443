"""Random embeddings, ids, rules and guides from one seed, for all kernels, and how results are compared."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.functional.rule import Bounds, Group, Listed, Ranks, Rule


class Case:
    """Random embeddings, ids and rules from one seed."""

    def __init__(self, seed: int, *, symmetric: bool, ids: str = "views", dtype: torch.dtype = torch.float64) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.count, self.others = 14, 14 if symmetric else 19
        self.dtype = dtype
        self.anchors = self.embeddings(self.count)
        self.candidates = None if symmetric else self.embeddings(self.others)
        self.anchor_ids = torch.arange(self.count // 2).repeat(2)
        self.candidate_ids = None if symmetric else self.integers(0, 20, self.others)
        if ids == "copies":
            self.anchor_ids = self.integers(0, 3, self.count)
        elif ids == "one":
            self.anchor_ids = torch.zeros(self.count, dtype=torch.int64)
            self.anchor_ids[:2] = 1
            self.candidate_ids = None if symmetric else torch.zeros(self.others, dtype=torch.int64)
        elif ids == "empty":
            (self.anchor_ids if self.candidate_ids is None else self.candidate_ids)[3:6] = -1

    def embeddings(self, count: int) -> Tensor:
        return normalize(torch.randn(count, 3, generator=self.generator, dtype=self.dtype), dim=1)

    def guide(self) -> tuple[Tensor, Tensor | None]:
        """Vectors of another width in a guide's space."""
        first, second = (
            normalize(torch.randn(count, 5, generator=self.generator, dtype=self.dtype), dim=1)
            for count in (self.count, self.others)
        )
        return first, None if self.candidates is None else second

    def integers(self, low: int, high: int, count: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=self.generator)

    def bound(self, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(self.count, generator=self.generator, dtype=self.dtype)

    def group(self, kinds: int, scale: int = 1) -> Group:
        anchors = self.integers(-1, kinds, self.count) * scale
        return Group(anchors, anchors if self.candidates is None else self.integers(-1, kinds, self.others) * scale)

    def listed(self, length: int) -> Listed:
        return Listed(self.integers(0, self.count, length), self.integers(0, self.others, length))

    def ranks(self) -> Rule:
        first = self.integers(0, 8, self.count)
        return Rule(ranks=(Ranks(first, first + self.integers(0, 12, self.count)),))

    def rules(self, name: str) -> list[Rule]:
        ceiling = Rule(ceiling=self.bound(-0.2, 0.8))
        band = Rule(low=self.bound(-0.9, 0.0), high=self.bound(0.0, 0.9))
        group = Rule(groups=(self.group(3),))
        lopsided = Group(self.integers(0, 2, self.count), self.integers(0, 2, self.others), "only")
        only = Rule(groups=(lopsided,))
        many = Rule(groups=(self.group(3, scale=2**40),))
        single = Rule(lists=(self.listed(25), self.listed(0)))
        guided = Rule(guide=Bounds(ceiling=self.bound(-0.2, 0.6)))
        guided_band = Rule(guide=Bounds(low=self.bound(-0.9, -0.1), high=self.bound(0.0, 0.9)))
        first = self.integers(0, 8, self.count)
        guided_ranks = Rule(ranks=(Ranks(first, first + 6, space="guide"),))
        return {
            "guided": [guided],
            "guided, pulled": [guided.attract()],
            "guided band": [guided_band],
            "guided ranks": [guided_ranks],
            "guided, two ceilings": [guided.attract() & Rule(guide=Bounds(ceiling=self.bound(-0.2, 0.6)))],
            "guided and own": [band & guided & group, (ceiling & guided_band & guided).attract(), Rule()],
            "guided, all joined": [self.ranks() & guided_ranks & single & guided.attract() & ceiling],
            "none": [Rule()],
            "low": [Rule(low=band.low)],
            "high": [Rule(high=band.high)],
            "band": [band],
            "ceiling": [ceiling],
            "ceiling pulled": [ceiling.attract()],
            "group": [group],
            "large group numbers": [many],
            "group pulled": [group.attract()],
            "only": [only],
            "all joined": [band & ceiling & group & only],
            "all joined, pulled": [(band & ceiling & group & only).attract()],
            "dropped and pulled": [ceiling.attract() & group, group.attract() & ceiling],
            "two ceilings": [ceiling & Rule(ceiling=self.bound(-0.2, 0.8), above="pull")],
            "three granularities": [group, Rule(groups=(self.group(2),)), Rule(groups=(self.group(5),))],
            "mixed": [Rule(), Rule(), band & group.attract(), ceiling, Rule(), group],
            "listed": [single],
            "listed, pulled": [single.attract()],
            "listed and joined": [single & ceiling.attract() & group, (single & band & only).attract(), Rule()],
            "ranks": [self.ranks()],
            "ranks, joined": [self.ranks() & ceiling & group, self.ranks() & single],
            "ranks, pulled": [(self.ranks() & ceiling & group).attract(), Rule()],
            "two bands of ranks": [self.ranks() & self.ranks(), self.ranks()],
            "nothing left": [Rule(low=self.bound(0.9999, 0.99999)), Rule(low=self.bound(0.9, 0.95)).attract()],
        }[name]


GUIDED = [
    "guided",
    "guided, pulled",
    "guided band",
    "guided ranks",
    "guided, two ceilings",
    "guided and own",
    "guided, all joined",
]

RULES = [
    "none",
    "low",
    "high",
    "band",
    "ceiling",
    "ceiling pulled",
    "group",
    "large group numbers",
    "group pulled",
    "only",
    "all joined",
    "all joined, pulled",
    "dropped and pulled",
    "two ceilings",
    "three granularities",
    "mixed",
    "listed",
    "listed, pulled",
    "listed and joined",
    "ranks",
    "ranks, joined",
    "ranks, pulled",
    "two bands of ranks",
    "nothing left",
]


def assert_same(fast: list[Tensor], slow: list[Tensor], relative: float = 1e-10) -> None:
    for ours, theirs in zip(fast, slow, strict=True):
        finite = theirs[theirs.isfinite()].abs()
        scale = max(1.0, finite.max().item() if finite.numel() else 0.0)
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=relative, atol=relative * scale)
