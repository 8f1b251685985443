"""Dot products in the range of cosines: the kernel compares bounds in [-1, 1], and dot products may be larger.

All embeddings of a step are divided by a power of two, 2^p, at least as large as the longest of them. Similarities and
the bounds of rules are then 2^2p times smaller, and so is the temperature: the logits, the sums and the gradients of
the embeddings stay the same, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from antipodes.functional.tensors import read
from antipodes.losses.step import Part, Step
from antipodes.pairs import PairFacts, Pairs, Rule


def shrink(step: Step) -> Step:
    """The same step with embeddings no longer than 1."""
    blocks = [step.pairs, *(part.pairs for part in step.parts)]
    embeddings = [each for pairs in blocks for each in (pairs.anchors, pairs.candidates) if each is not None]
    lengths = [torch.linalg.vector_norm(each.detach(), dim=1).max() for each in embeddings if len(each)]
    longest = max(read(*lengths), default=0.0)
    scale = 2.0 ** max(0, math.ceil(math.log2(longest))) if 0 < longest < math.inf else 1.0
    parts = tuple(Part(_pairs(part.pairs, scale), _rules(part.rules, scale), part.hardness) for part in step.parts)
    return replace(
        step,
        pairs=_pairs(step.pairs, scale),
        temperature=step.temperature / scale**2,
        rules=_rules(step.rules, scale),
        extra_rules=_rules(step.extra_rules, scale),
        parts=parts,
        scale=scale,
    )


def _pairs(pairs: Pairs, scale: float) -> Pairs:
    candidates = None if pairs.candidates is None else pairs.candidates / scale
    facts = PairFacts(None, pairs.facts.row_span, pairs.same_sample)
    return replace(
        pairs, anchors=pairs.anchors / scale, positives=pairs.positives / scale**2, candidates=candidates, facts=facts
    )


def _rules(rules: Sequence[Rule], scale: float) -> list[Rule]:
    def smaller(bound: Tensor | None) -> Tensor | None:
        return None if bound is None else bound / scale**2

    return [
        replace(rule, low=smaller(rule.low), high=smaller(rule.high), ceiling=smaller(rule.ceiling)) for rule in rules
    ]
