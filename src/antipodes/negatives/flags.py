"""What a policy flags: the pairs one by one (`Flags`), and how many of them are right by labels (`FlagCounts`).

A pair is truly false when both samples share a label. Labels are read, never learned from. The kernel counts: it gets
the same rules once more, restricted to pairs of the same label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.masks import flagged_block
from antipodes.pairs import Group, Pairs, Rule

_BLOCK = 512  # anchors whose similarities are in memory at once


class Flags(NamedTuple):
    """The pairs that a policy calls false negatives, in the order of rules and anchors.

    Attributes:
        anchors: (L,) positions of anchors.
        candidates: (L,) positions of candidates.
        similarities: (L,) the cosines of these pairs.
        rules: (L,) which rule flags the pair; all 0 but for policies with several granularities.
        thresholds: (R, A) the similarity above which a candidate is flagged; inf where a rule has no such bound.
    """

    anchors: Tensor
    candidates: Tensor
    similarities: Tensor
    rules: Tensor
    thresholds: Tensor

    def of(self, anchor: int) -> Tensor:
        """The candidates that this anchor flags under any rule, each once."""
        found: Tensor = self.candidates[self.anchors == anchor].unique()
        return found


@torch.no_grad()
def find_flags(pairs: Pairs, rules: Sequence[Rule]) -> Flags:
    """List what the rules flag, a block of anchors at a time; what they only ignore is not flagged."""
    keys, key_ids = pairs.keys()
    anchors, keys = pairs.anchors.detach(), keys.detach()
    guide = None if pairs.guide is None else (pairs.guide.anchors, pairs.guide.keys())
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    thresholds = anchors.new_full((len(rules), len(anchors)), torch.inf)
    for number, rule in enumerate(rules):
        if rule.ceiling is not None:
            thresholds[number] = rule.ceiling
        for start in range(0, len(anchors), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(anchors)))
            similarities = anchors[block] @ keys.T
            looked = guide[0][block] @ guide[1].T if guide is not None and rule.needs_guide else None
            flagged = flagged_block(rule, similarities, block, guide_similarities=looked)
            flagged[pairs.same_sample.pairs(block)] = False
            flagged[:, key_ids < 0] = False
            row, column = flagged.nonzero(as_tuple=True)
            found.append((row + start, column, similarities[row, column], torch.full_like(row, number)))
    columns = [torch.cat(parts) for parts in zip(*found, strict=True)]
    return Flags(columns[0], columns[1], columns[2], columns[3], thresholds)


_COUNTS = ("true", "flagged", "found")


class FlagCounts(NamedTuple):
    """Counts of pairs by rule r and anchor a: available candidates (A,), those with the anchor's label (A,), flagged
    ones (R, A), and flagged ones with the anchor's label (R, A). Counts of several batches can be joined along A."""

    available: Tensor
    true: Tensor
    flagged: Tensor
    found: Tensor

    def means(self, prefix: str = "") -> dict[str, float]:
        """Return means over anchors and rules, which `summarise_flags` turns into precision, recall and F1.

        Returns:
            true: pairs of the same label; flagged: pairs flagged as false; found: both; mtpr and mtnr: means over
            anchors of the share of truly false pairs that are flagged, and of true negatives that are not;
            anchor_precision and anchor_recall: means over anchors, where no flag counts as precision 1 and no true
            false negative as recall 1.
        """
        available, true, flagged, found = self
        kept_negatives = (available - true) - (flagged - found)
        numbers = {
            "true": true.mean(),
            "flagged": flagged.mean(),
            "found": found.mean(),
            "mtpr": (found / true)[:, true > 0].mean(),
            "mtnr": (kept_negatives / (available - true))[:, available > true].mean(),
            "anchor_precision": torch.where(flagged > 0, found / flagged, 1.0).mean(),
            "anchor_recall": torch.where(true > 0, found / true, 1.0).mean(),
        }
        return dict(zip((prefix + name for name in numbers), torch.stack([*numbers.values()]).tolist(), strict=True))


@torch.no_grad()
def count_flags(pairs: Pairs, rules: Sequence[Rule], labels: Tensor) -> FlagCounts:
    """Count the flags of every rule and anchor, and the right ones by labels.

    Args:
        pairs: What was compared.
        rules: What the policy answered.
        labels: (n,) by row; a negative label is unknown and matches nothing.
    """
    same = _same_label(pairs, labels)
    flags = [rule.flags() for rule in rules]
    sums = pairs.detached().contrast(1.0, (Rule(), same, *flags, *(rule & same for rule in flags)))
    unflagged = (sums.kept - sums.pulled).double()
    available, true = unflagged[0], unflagged[1]
    flagged, found = available - unflagged[2 : 2 + len(flags)], true - unflagged[2 + len(flags) :]
    return FlagCounts(available, true, flagged, found)


@torch.no_grad()
def same_label_share(rows: Tensor, candidate_rows: Tensor, chosen: Tensor, labels: Tensor) -> float:
    """The share of chosen pairs whose samples have the same label; NaN if none is chosen.

    Args:
        rows: (A,) of the anchors.
        candidate_rows: (C,).
        chosen: (A, C) bool.
        labels: (n,) by row; a negative label is unknown and matches nothing.
    """
    mine = labels[rows][:, None]
    same = (mine == labels[candidate_rows]) & (mine >= 0)
    return same[chosen].double().mean().item()


@torch.no_grad()
def same_class_mass(pairs: Pairs, mass: Tensor, temperature: float, labels: Tensor) -> float:
    """The share of refined labels' mass off the one-hot that lies on keys of the same class; NaN if there is no mass.

    Args:
        pairs: The teachers as anchors, with the keys: off the one-hot, a label is a softmax of their similarities.
        mass: (A,) how much of every label is there.
        temperature: Of that softmax.
        labels: (n,) by row; a negative label is unknown and matches nothing.
    """
    same = _same_label(pairs, labels)
    every, right = pairs.contrast(temperature, (Rule(), same)).log_sum.double()
    share = (right - every).exp().where(every > -math.inf, 0.0)
    return float((mass.double() * share).sum() / mass.double().sum())


def summarise_flags(means: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Turn an epoch's mean counts into precision, recall and F1; other numbers pass through.

    `precision`, `recall` and `f1` are pooled over pairs. `anchor_precision` and `anchor_recall`, the means over anchors
    that GloFND's authors report, get their harmonic mean as `anchor_f1`.

    Example:
        >>> summarise_flags({"true": 4.0, "flagged": 2.0, "found": 1.0, "loss": 3.0})
        {'loss': 3.0, 'precision': 0.5, 'recall': 0.25, 'f1': 0.3333333333333333}
    """
    if prefix + "true" not in means:
        return dict(means)
    true, flagged, found = (means[prefix + name] for name in _COUNTS)
    result = {name: value for name, value in means.items() if name.removeprefix(prefix) not in _COUNTS}
    result[prefix + "precision"] = found / flagged if flagged else 0.0
    result[prefix + "recall"] = found / true if true else 0.0
    result[prefix + "f1"] = 2 * found / (flagged + true) if flagged + true else 0.0
    if prefix + "anchor_precision" in means:
        precision, recall = means[prefix + "anchor_precision"], means[prefix + "anchor_recall"]
        result[prefix + "anchor_f1"] = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return result


def _same_label(pairs: Pairs, labels: Tensor) -> Rule:
    """The rule that keeps pairs of the same label only."""
    anchor_rows, candidate_rows = pairs.rows()
    of_candidates = labels[candidate_rows.clamp(min=0)].masked_fill(candidate_rows < 0, -1)
    return Rule(groups=(Group(labels[anchor_rows], of_candidates, "only"),))
