"""Local aggregation against dense float64 loops, and the sets that may be empty."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from antipodes import Cave, Hardest, InfoNCE, LocalAggregation, Policy, Ring, Rule
from antipodes.pairs import Pairs, normalise
from tests.reference.losses import local_aggregation

N, IDS, TAU = 30, torch.tensor([2, 9, 17, 17, 25]), 0.1


def scene() -> tuple[Tensor, Tensor]:
    """Anchors, of which two show the same sample, and a bank."""
    generator = torch.Generator().manual_seed(0)
    anchors, bank = (normalise(torch.randn(count, 6, generator=generator).double()) for count in (len(IDS), N))
    return anchors, bank


class Nothing(Policy):
    """Keeps no candidate."""

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> list[Rule]:
        return [Rule(low=torch.full((len(pairs.anchors),), 2.0, dtype=pairs.anchors.dtype))]


def clusters(*labels: Tensor) -> Cave:
    """Clusters as if they had been found."""
    policy = Cave(N, tuple(int(each.max()) + 1 for each in labels), space="features")
    policy.labels.copy_(torch.stack(labels))
    policy.fitted_at.fill_(0.5)
    return policy


def both(close: Cave, negatives: Policy | None, backgrounds: list[list[int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Our loss and gradient, and those of the loops."""
    anchors, bank = scene()
    ours, theirs = anchors.clone().requires_grad_(), anchors.clone().requires_grad_()
    loss_fn = LocalAggregation(close, TAU, negatives)
    loss = loss_fn.evaluate(Pairs(ours, IDS, (ours * bank[IDS]).sum(1), bank, torch.arange(N)), 1.0)
    labels = close.labels.tolist()
    expected = local_aggregation(theirs, IDS.tolist(), bank, labels, backgrounds, TAU)
    return loss, torch.autograd.grad(loss, ours)[0], expected, torch.autograd.grad(expected, theirs)[0]


def ranked() -> list[list[int]]:
    """The other samples of every anchor, the most similar first."""
    anchors, bank = scene()
    order = (anchors @ bank.T).argsort(dim=1, descending=True).tolist()
    return [[k for k in row if k != own] for row, own in zip(order, IDS.tolist(), strict=True)]


@pytest.mark.parametrize("name", ["neighbours", "ring", "everything"])
def test_values_and_gradients_equal_the_loops(name: str) -> None:
    labels = torch.arange(N) % 4, torch.arange(N) % 7
    policies: dict[str, tuple[Policy | None, slice]] = {
        "neighbours": (Hardest(8), slice(0, 8)),
        "ring": (Ring((1.0, 0.5), 0.25), slice(3, 14)),  # of 29: ranks [3.6, 14.5)
        "everything": (None, slice(None)),
    }
    policy, ranks = policies[name]
    loss, gradient, expected, expected_gradient = both(clusters(*labels), policy, [row[ranks] for row in ranked()])
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
@pytest.mark.parametrize("case", ["one cluster", "alone", "no clusters yet", "no background", "neither"])
def test_empty_and_single_sets_stay_finite(case: str) -> None:
    close = clusters(torch.zeros(N, dtype=torch.int64))
    if case in ("alone", "neither"):
        close = clusters(torch.arange(N))
    elif case == "no clusters yet":
        close = Cave(N, (3,), space="features")
    empty = case in ("no background", "neither")
    policy = Nothing() if empty else Hardest(8)
    rows = [[] if empty else row[:8] for row in ranked()]
    loss, gradient, expected, expected_gradient = both(close, policy, rows)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert gradient.isfinite().all()
    if case == "neither":
        assert loss == 0


def test_before_the_start_it_is_instance_discrimination() -> None:
    anchors, bank = scene()
    pairs = Pairs(anchors, IDS, (anchors * bank[IDS]).sum(1), bank, torch.arange(N))
    labels = torch.arange(N) % 4, torch.arange(N) % 7
    loss_fn = LocalAggregation(clusters(*labels), TAU, Hardest(8), start=0.4)
    before, after = loss_fn.evaluate(pairs, 0.39), loss_fn.evaluate(pairs, 0.4)
    torch.testing.assert_close(before + math.log(N), InfoNCE(TAU).evaluate(pairs))  # a mean over all, not a sum
    torch.testing.assert_close(after, LocalAggregation(clusters(*labels), TAU, Hardest(8)).evaluate(pairs))
    loss_fn.evaluate(pairs, 0.0)
    assert loss_fn.stats["close_per_anchor"] == 1
    assert loss_fn.stats["kept_per_anchor"] == N - 1
    with pytest.raises(ValueError, match="start must be in"):
        LocalAggregation(clusters(*labels), TAU, start=1.5)


def test_statistics_are_of_the_background_and_of_the_close_set() -> None:
    anchors, bank = scene()
    loss_fn = LocalAggregation(clusters(torch.arange(N) % 3), TAU, Hardest(8))
    loss_fn.evaluate(Pairs(anchors, IDS, (anchors * bank[IDS]).sum(1), bank, torch.arange(N)))
    assert loss_fn.stats["kept_per_anchor"] == 8
    assert loss_fn.stats["close_per_anchor"] == 10
    assert math.isfinite(loss_fn.stats["positive_similarity"])
