"""`Hardness`: a log weight that makes similar negatives count more, and the sums with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from antipodes.arguments import checked, number
from antipodes.functional.contrast import Sums
from antipodes.functional.same_sample import Excluded
from antipodes.losses.step import Part
from antipodes.pairs import PairFacts, Pairs, Rule

On = Literal["given", "in_batch", "all"]


@dataclass(frozen=True)
class Hardness:
    """Raise the logit of a negative by strength times its similarity: its weight in the sum is e^{strength s}.

    The weight is a constant to the gradient. It applies to the comparison of queries with documents, not to the blocks
    that `OneWay(also=...)` adds, and never to the positive. LLaVE (Lan et al. 2025) takes a strength of 9 on in-batch
    negatives, EmbeddingGemma one of 5 on given negatives. `HCL` also weighs by similarity, but normalises its weights
    and lets the gradient through them.

    Args:
        strength: Times the similarity, not divided by the temperature; 0 changes nothing.
        on: Which negatives: `given`, the anchor's own hard negatives; `in_batch`, all others, among them the hard
            negatives of other anchors; or `all`. Without given negatives the last two are the same.

    Example:
        >>> Hardness(strength=9.0, on="in_batch")
        Hardness(strength=9.0, on='in_batch')
    """

    strength: float = 5.0
    on: On = "all"

    def __post_init__(self) -> None:
        number("strength", self.strength, 0.0, why="it makes similar negatives count more")
        if self.on not in get_args(On):
            raise ValueError(f"on must be one of {', '.join(get_args(On))}, got {self.on!r}")


Hardness.__init__ = checked(Hardness.__init__)  # type: ignore[method-assign]


def hardened(pairs: Pairs, temperature: float | Tensor, rules: Sequence[Rule], strength: float) -> Sums:
    """The sums of pairs whose logits are s / tau + strength * s, with the second s a constant.

    As a number the logit is s / tau' with 1 / tau' = 1 / tau + strength, which the kernel can sum. The gradient of that
    sum for s is tau / tau' times too large, and is scaled back; that for tau is put right in the same way.
    """
    if strength == 0.0:
        return pairs.contrast(temperature, rules)
    if isinstance(temperature, Tensor):
        fixed = temperature.detach()
        share = 1 / (1 + strength * fixed)
        sums = pairs.contrast(fixed * share + share * (temperature - fixed), rules)
    else:
        share = torch.tensor(1 / (1 + strength * temperature), dtype=torch.float64)
        sums = pairs.contrast(temperature * float(share), rules)
    share = share.to(sums.log_sum)
    log_sum = sums.log_sum.detach()
    # the value of the sum, with a part of its gradient; where nothing is kept the difference would be inf - inf
    rest = torch.where(log_sum > -torch.inf, sums.log_sum - log_sum, 0.0)
    return sums._replace(log_sum=log_sum + share * rest)


def split_given(pairs: Pairs, rules: Sequence[Rule], hardness: Hardness) -> tuple[Part, ...]:
    """Split the comparison of queries with documents in two: the anchor's own given negatives, and all others.

    Raises:
        ValueError: if it applies to given negatives and there are none.
    """
    if hardness.on == "all" or (pairs.owners is None and hardness.on == "in_batch"):
        return (Part(pairs, rules, hardness.strength),)
    if pairs.owners is None or pairs.candidates is None or pairs.candidate_ids is None:
        raise ValueError("Hardness(on='given') needs given negatives: call OneWay(...)(q, d, hard_negatives=h)")
    on_given, on_others = (hardness.strength, 0.0) if hardness.on == "given" else (0.0, hardness.strength)
    same = pairs.same_sample
    if isinstance(same, Excluded) and same.owners is not None:  # only given negatives of their own
        return (Part(pairs, rules, on_given),)
    spaces = same.further if isinstance(same, Excluded) else ()
    others = Excluded(pairs.anchor_ids, pairs.candidate_ids, [*spaces, pairs.owners])
    anchors, candidates = pairs.owners
    own = torch.isin(candidates, anchors).nonzero()[:, 0]
    related = Excluded(
        pairs.anchor_ids,
        pairs.candidate_ids[own],
        [(of_anchors, of_candidates[own]) for of_anchors, of_candidates in spaces],
        (anchors, candidates[own]),
    )
    guide = pairs.guide if pairs.guide is None else replace(pairs.guide, candidates=pairs.guide.keys()[own])
    rules = pairs.bounded(rules)
    given = replace(
        pairs,
        candidates=pairs.candidates[own],
        candidate_ids=pairs.candidate_ids[own],
        candidate_rows=pairs.rows()[1][own],
        guide=guide,
        log_weights=None if pairs.log_weights is None else pairs.log_weights[own],
        identities=None,
        owners=(anchors, candidates[own]),
        facts=PairFacts(pairs.facts.extent, pairs.facts.row_span, related),
    )
    rest = replace(pairs, facts=replace(pairs.facts, same_sample=others))
    of_given = [replace(rule.of_candidates(own), only_pulled=rule.only_pulled) for rule in rules]
    return Part(rest, rules, on_others), Part(given, of_given, on_given)
