"""Counts of flagged pairs, against loops over every pair."""

from __future__ import annotations

import pytest
import torch

from antipodes import FNC, InfoNCE, Oracle, Rule
from antipodes.negatives.flags import count_flags, summarise_flags
from antipodes.pairs import Group, Pairs, normalise

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, -1])


def by_loops(pairs: Pairs, rules: list[Rule], labels: torch.Tensor) -> dict[str, float]:
    """The same numbers, one pair at a time; rules may have a ceiling and groups of false negatives."""
    keys, ids = pairs.keys()
    names = ("true", "flagged", "found", "mtpr", "mtnr", "anchor_precision", "anchor_recall")
    sums: dict[str, list[float]] = {name: [] for name in names}
    for rule in rules:
        for i, own in enumerate(pairs.anchor_ids.tolist()):
            true = flagged = found = available = 0
            for k, other in enumerate(ids.tolist()):
                if other in (own, -1):
                    continue
                false = rule.ceiling is not None and bool(pairs.anchors[i] @ keys[k] > rule.ceiling[i])
                false |= any(
                    g.same != "only" and g.anchors[i] == g.candidates[k] and g.anchors[i] >= 0 for g in rule.groups
                )
                same = bool(labels[own] == labels[other]) and int(labels[own]) >= 0
                available, true = available + 1, true + same
                flagged, found = flagged + false, found + (false and same)
            for name, value in (("true", true), ("flagged", flagged), ("found", found)):
                sums[name].append(value)
            sums["anchor_precision"].append(found / flagged if flagged else 1.0)
            sums["anchor_recall"].append(found / true if true else 1.0)
            if true:
                sums["mtpr"].append(found / true)
            if available > true:
                sums["mtnr"].append(1 - (flagged - found) / (available - true))
    return {name: sum(values) / len(values) for name, values in sums.items()}


@pytest.mark.parametrize("queue", [False, True])
def test_counts_equal_loops(queue: bool) -> None:
    z = normalise(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
    ids = torch.arange(8).repeat(2)
    pairs = Pairs(z, ids, torch.ones(16))
    if queue:
        pairs = Pairs(z[:5], ids[:5], torch.ones(5), z, torch.where(ids == 6, -1, ids))
    keys = pairs.keys()[1]
    group = Group(pairs.anchor_ids % 3, keys.clamp(min=0) % 3, "drop")
    low = Rule(ceiling=torch.full((len(pairs.anchors),), 0.3), low=torch.full((len(pairs.anchors),), 0.2))
    for rules in ([Rule(groups=(group,))], [low], [low, Rule(groups=(group,))], [low.attract()]):
        expected = by_loops(pairs, rules, LABELS)
        assert count_flags(pairs, rules, LABELS).means() == pytest.approx(expected)


def test_the_oracle_is_perfect() -> None:
    seen = []
    loss_fn = InfoNCE(0.1, Oracle(LABELS))
    loss_fn.observer = lambda observation: seen.append(observation.score(LABELS))
    z1, z2 = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0))
    loss_fn(z1, z2, torch.arange(7))
    summary = summarise_flags(seen[0])
    assert {name: summary[name] for name in ("precision", "recall", "f1", "mtpr", "mtnr", "anchor_f1")} == {
        "anchor_f1": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0, "mtpr": 1.0, "mtnr": 1.0
    }  # fmt: skip


def test_a_policy_that_knows_nothing_has_the_precision_of_chance() -> None:
    labels = torch.arange(200) % 4
    counts = []
    for seed in range(10):
        z1, z2 = torch.randn(2, 200, 4, generator=torch.Generator().manual_seed(seed))
        loss_fn = InfoNCE(0.1, FNC(0.2))
        loss_fn.observer = lambda observation: counts.append(observation.score(labels, "x_"))
        loss_fn(z1, z2, torch.arange(200))
    means = {name: sum(one[name] for one in counts) / len(counts) for name in counts[0]}
    summary = summarise_flags(means, "x_")
    assert summary["x_precision"] == pytest.approx(0.25, abs=0.02)
    assert summary["x_recall"] == pytest.approx(0.2, abs=0.02)
    assert summary["x_mtnr"] == pytest.approx(0.8, abs=0.02)
