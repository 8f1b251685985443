"""How good a policy's false negatives are, judged by labels: precision, recall, F1, MTPR and MTNR of pair decisions;
and how good refined labels are: the share of their mass on samples of the same class.

A pair is truly false when both samples share a label. Labels are looked at, never learned from. Counting is left to the
kernel: the same rules once more, restricted to pairs of the same label.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from antipodes.pairs import Group, Pairs, Rule

_COUNTS = ("true", "flagged", "found")


@torch.no_grad()
def count_flags(pairs: Pairs, rules: Sequence[Rule], labels: Tensor, prefix: str = "") -> dict[str, float]:
    """Count the decisions of one step, as means over anchors and rules.

    Args:
        pairs: What was compared.
        rules: What the policy answered.
        labels: (n,) by sample; a negative label is unknown and matches nothing.
        prefix: In front of every name.

    Returns:
        true: pairs of the same label; flagged: pairs flagged as false; found: both; mtpr and mtnr: means over anchors
        of the share of truly false pairs that are flagged, and of true negatives that are not.
    """
    ids = pairs.keys()[1]
    same = Rule(groups=(Group(labels[pairs.anchor_ids], labels[ids.clamp(min=0)], "only"),))
    flags = [rule.flags() for rule in rules]
    sums = pairs.detached().contrast(1.0, (Rule(), same, *flags, *(rule & same for rule in flags)))
    unflagged = (sums.kept - sums.pulled).double()
    available, true = unflagged[0], unflagged[1]
    flagged = available - unflagged[2 : 2 + len(flags)]  # (R, A)
    found = true - unflagged[2 + len(flags) :]
    kept_negatives = (available - true) - (flagged - found)
    numbers = {
        "true": true.mean(),
        "flagged": flagged.mean(),
        "found": found.mean(),
        "mtpr": (found / true)[:, true > 0].mean(),
        "mtnr": (kept_negatives / (available - true))[:, available > true].mean(),
    }
    return {prefix + name: value.item() for name, value in numbers.items()}


@torch.no_grad()
def same_class_mass(pairs: Pairs, mass: Tensor, temperature: float, labels: Tensor) -> float:
    """The share of refined labels' mass off the one-hot that lies on keys of the same class; NaN if there is no mass.

    Args:
        pairs: The teachers as anchors, with the keys: off the one-hot, a label is a softmax of their similarities.
        mass: (A,) how much of every label is there.
        temperature: Of that softmax.
        labels: (n,) by sample; a negative label is unknown and matches nothing.
    """
    ids = pairs.keys()[1]
    same = Rule(groups=(Group(labels[pairs.anchor_ids], labels[ids.clamp(min=0)], "only"),))
    every, right = pairs.contrast(temperature, (Rule(), same)).log_sum.double()
    share = (right - every).exp().where(every > -math.inf, 0.0)
    return float((mass.double() * share).sum() / mass.double().sum())


def summarise_flags(means: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Turn an epoch's mean counts into precision, recall and F1; other numbers pass through.

    Example:
        >>> summarise_flags({"true": 4.0, "flagged": 2.0, "found": 1.0, "loss": 3.0})
        {'loss': 3.0, 'precision': 0.5, 'recall': 0.25, 'f1': 0.3333333333333333}
    """
    if prefix + "true" not in means:
        return dict(means)
    true, flagged, found = (means[prefix + name] for name in _COUNTS)
    rest = {name: value for name, value in means.items() if name.removeprefix(prefix) not in _COUNTS}
    return rest | {
        prefix + "precision": found / flagged if flagged else 0.0,
        prefix + "recall": found / true if true else 0.0,
        prefix + "f1": 2 * found / (flagged + true) if flagged + true else 0.0,
    }
