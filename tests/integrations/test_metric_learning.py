"""A policy as a miner of pytorch-metric-learning, with the package's own losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import Debiased, GloFND, Guided, Oracle, PositiveAware, Ring
from antipodes.integrations.metric_learning import PolicyMiner


def losses() -> Any:
    return pytest.importorskip("pytorch_metric_learning.losses", reason="pytorch-metric-learning is in the extra bench")


def on_a_circle(*degrees: float) -> Tensor:
    return torch.tensor([[math.cos(math.radians(each)), math.sin(math.radians(each))] for each in degrees])


EMBEDDINGS = on_a_circle(0, 20, 10, 90, 100, 180)
LABELS = torch.tensor([0, 0, 1, 2, 2, 3])


def pairs(first: Tensor, second: Tensor) -> set[tuple[int, int]]:
    return set(zip(first.tolist(), second.tolist(), strict=True))


POSITIVE = {(0, 1), (1, 0), (3, 4), (4, 3)}
NEGATIVE = {(i, j) for i in range(6) for j in range(6) if LABELS[i] != LABELS[j]}


def test_what_is_nearer_than_the_positive_is_no_negative() -> None:
    a1, p, a2, n = PolicyMiner(PositiveAware(0.0, relative=False))(EMBEDDINGS, LABELS)
    assert pairs(a1, p) == POSITIVE
    # 10 degrees lies between 0 and 20, whose positives are 20 degrees away
    assert NEGATIVE - pairs(a2, n) == {(0, 2), (1, 2)}


def test_attract_makes_positives_of_what_is_flagged() -> None:
    a1, p, a2, n = PolicyMiner(PositiveAware(0.0, relative=False), "attract")(EMBEDDINGS, LABELS)
    assert pairs(a1, p) == POSITIVE | {(0, 2), (1, 2)}
    assert pairs(a2, n) == NEGATIVE - {(0, 2), (1, 2)}


def test_pairs_that_a_policy_ignores_are_left_out_as_well() -> None:
    """A ring without an outer bound keeps the more similar half of the negatives."""
    *_, a2, n = PolicyMiner(Ring(outer=(1.0, 0.5), inner=0.5, until=1.0))(EMBEDDINGS, LABELS)
    kept = pairs(a2, n)
    assert kept < NEGATIVE
    assert {j for i, j in kept if i == 5} <= {3, 4, 1, 2, 0}
    assert 0 < len(kept) < len(NEGATIVE)


def test_references_and_rows() -> None:
    labels_of_rows = torch.tensor([7, 7, 8, 8, 9, 9])
    miner = PolicyMiner(Oracle(labels_of_rows))
    with pytest.raises(ValueError, match="rows"):
        miner(EMBEDDINGS, torch.arange(6))
    miner.rows, miner.reference_rows = torch.tensor([0, 2]), torch.tensor([1, 3, 5])
    a1, p, a2, n = miner(EMBEDDINGS[:2], torch.tensor([0, 1]), EMBEDDINGS[2:5], torch.tensor([0, 2, 3]))
    assert pairs(a1, p) == {(0, 0)}
    assert pairs(a2, n) == {(0, 1), (0, 2), (1, 0), (1, 2)}  # rows 2 and 3 share a label
    miner.reference_rows = torch.tensor([1])
    with pytest.raises(ValueError, match="reference_rows"):
        miner(EMBEDDINGS[:2], torch.tensor([0, 1]), EMBEDDINGS[2:5], torch.tensor([0, 2, 3]))


def test_tables_learn_in_training_mode_alone() -> None:
    policy = GloFND(6, alpha=0.3, start=0.0)
    miner = PolicyMiner(policy)
    miner.rows, miner.progress = torch.arange(6), 0.5
    before = policy.threshold.clone()
    miner.eval()
    miner(EMBEDDINGS, LABELS)
    assert torch.equal(policy.threshold, before)
    miner.train()
    miner(EMBEDDINGS, LABELS)
    assert not torch.equal(policy.threshold, before)


def test_without_flags_the_loss_is_that_without_a_miner() -> None:
    loss_fn = losses().NTXentLoss(temperature=0.1)
    indices = PolicyMiner(PositiveAware(-2.0, relative=False))(EMBEDDINGS, LABELS)
    torch.testing.assert_close(loss_fn(EMBEDDINGS, LABELS, indices), loss_fn(EMBEDDINGS, LABELS))


def test_their_loss_on_what_the_miner_lists() -> None:
    embeddings = EMBEDDINGS.clone().requires_grad_()
    found = losses().NTXentLoss(temperature=0.1)(
        embeddings, LABELS, PolicyMiner(PositiveAware(0.0, relative=False))(embeddings, LABELS)
    )
    logits = EMBEDDINGS @ EMBEDDINGS.T / 0.1
    kept = NEGATIVE - {(0, 2), (1, 2)}
    by_hand = []
    for anchor, positive in sorted(POSITIVE):
        others = [logits[i, j].exp().item() for i, j in kept if i == anchor]
        own = logits[anchor, positive].exp().item()
        by_hand.append(-math.log(own / (own + sum(others))))
    assert found.item() == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-4)
    found.backward()
    assert embeddings.grad is not None
    assert bool(embeddings.grad.isfinite().all())


def test_a_loss_that_sums_over_pairs() -> None:
    reducers = pytest.importorskip("pytorch_metric_learning.reducers")
    loss_fn = losses().ContrastiveLoss(neg_margin=1, reducer=reducers.SumReducer())
    indices = PolicyMiner(PositiveAware(0.0, relative=False))(EMBEDDINGS, LABELS)
    left_out = 2 * (1 - 2 * math.sin(math.radians(5)))  # two pairs 10 degrees apart, a chord of 2 sin 5
    found, without = loss_fn(EMBEDDINGS, LABELS, indices).item(), loss_fn(EMBEDDINGS, LABELS).item()
    assert without - found == pytest.approx(left_out, rel=1e-5)


@pytest.mark.parametrize("policy", [Guided(0.1), Debiased(0.1)])
def test_policies_that_need_more_are_refused(policy: Any) -> None:
    with pytest.raises(ValueError, match=type(policy).__name__):
        PolicyMiner(policy)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="treatment"):
        PolicyMiner(PositiveAware(0.1), "refine")
    with pytest.raises(ValueError, match="labels"):
        PolicyMiner(PositiveAware(0.1))(EMBEDDINGS, LABELS[:3])
    with pytest.raises(ValueError, match="ref_labels"):
        PolicyMiner(PositiveAware(0.1))(EMBEDDINGS, LABELS, EMBEDDINGS)
