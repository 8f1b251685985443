"""A slow count of what a rule flags, pair by pair."""

from __future__ import annotations

import torch

from antipodes.pairs import Pairs, Rule


def rates_of_flags(rule: Rule, pairs: Pairs, labels: torch.Tensor) -> tuple[float, float]:
    """MTPR and MTNR of a rule of groups over all pairs, by a double loop."""
    (group,) = rule.groups
    positive, negative = [], []
    for i in range(len(labels)):
        same = different = found = wrong = 0
        for k in range(len(labels)):
            if i == k:
                continue
            flagged = bool(group.anchors[i] == group.candidates[k]) and int(group.anchors[i]) >= 0
            if labels[i] == labels[k]:
                same, found = same + 1, found + flagged
            else:
                different, wrong = different + 1, wrong + flagged
        if same:
            positive.append(found / same)
        negative.append(1 - wrong / different)
    return sum(positive) / len(positive), sum(negative) / len(negative)
