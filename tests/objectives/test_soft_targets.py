"""Soft targets from a guide: dense labels in float64, by hand, two ranks, and everything flagged."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import InfoNCE, Oracle, Refine
from antipodes.pairs import normalise
from tests.ranks import Ranks

LABELS = torch.tensor([0, 1, 0, 2, 1, 0, 2, 2])


def draw(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(
    anchors: Tensor,
    positives: Tensor,
    candidates: Tensor,
    seen: Tensor,
    seen_candidates: Tensor,
    ids: Tensor,
    candidate_ids: Tensor,
    labels: Tensor,
    tau: float,
    mu: float,
    tau_prime: float,
) -> Tensor:
    """The mean cross entropy with labels as whole rows: the positive first, then every candidate."""
    logits = torch.cat((positives[:, None], anchors @ candidates.T), 1) / tau
    other = (ids[:, None] != candidate_ids) & (candidate_ids >= 0)
    flagged = (labels[ids][:, None] == labels[candidate_ids.clamp(min=0)]) & other
    first = torch.ones(len(ids), 1, dtype=torch.bool)
    logits = logits.masked_fill(~torch.cat((first, other), 1), -math.inf)
    guide = torch.cat((torch.ones(len(ids), 1).double(), seen @ seen_candidates.T), 1) / (tau * tau_prime)
    p = guide.masked_fill(~torch.cat((first, flagged), 1), -math.inf).softmax(1)
    a = mu * p.amax(1, keepdim=True) / (1 + mu * p.amax(1, keepdim=True))
    onehot = torch.zeros_like(p)
    onehot[:, 0] = 1
    y = (1 - a) * onehot + a * p
    return -(y * logits.log_softmax(1).masked_fill(y == 0, 0.0)).sum(1).mean()


@pytest.mark.parametrize(("mu", "tau_prime"), [(1.0, 0.8), (5.0, 0.3), (0.0, 1.0)])
def test_a_batch_equals_dense_labels(mu: float, tau_prime: float) -> None:
    z1, z2 = draw(8, 6, 0).requires_grad_(), draw(8, 6, 1).requires_grad_()
    guide = draw(8, 3, 2), draw(8, 3, 3)
    ids = torch.arange(8)
    loss_fn = InfoNCE(0.2, Oracle(LABELS), Refine(mu, tau_prime, space="guide"))
    loss = loss_fn(z1, z2, ids, guide=guide)
    views = torch.cat((normalise(z1), normalise(z2)))
    positives = (normalise(z1) * normalise(z2)).sum(1).repeat(2)
    seen, both = normalise(torch.cat(guide)), ids.repeat(2)
    expected = dense(views, positives, views, seen, seen, both, both, LABELS, 0.2, mu, tau_prime)
    torch.testing.assert_close(loss, expected)
    for one, other in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_queue_equals_dense_labels() -> None:
    queries, keys, queue = draw(4, 6, 0).requires_grad_(), draw(4, 6, 1), draw(9, 6, 2)
    guide, queue_guide = (draw(4, 3, 3), draw(4, 3, 4)), draw(9, 3, 5)
    ids, queue_ids = torch.arange(4), torch.tensor([0, 5, -1, 6, 2, 7, 4, 1, 3])
    loss = InfoNCE(0.2, Oracle(LABELS), Refine(2.0, 0.5, "guide"))(
        queries, keys, ids, candidates=queue, candidate_ids=queue_ids, guide=guide, candidate_guide=queue_guide
    )
    anchors, positives = normalise(queries), (normalise(queries) * normalise(keys)).sum(1)
    seen = normalise(guide[0]), normalise(queue_guide)
    expected = dense(anchors, positives, normalise(queue), *seen, ids, queue_ids, LABELS, 0.2, 2.0, 0.5)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(each, queries)[0] for each in (loss, expected)))


def test_the_guide_decides_by_hand() -> None:
    """Of two flagged candidates the guide finds one like the anchor and one opposite: only the first is pulled."""
    tau, exp = 0.5, math.exp
    anchor, key = torch.tensor([[[1.0, 0.0]], [[0.6, 0.8]]], dtype=torch.float64)
    queue = torch.tensor([[0.0, 1.0], [0.8, 0.6]], dtype=torch.float64)
    loss_fn = InfoNCE(tau, Oracle(torch.tensor([0, 0, 0])), Refine(mu=1.0, tau_prime=0.1, space="guide"))
    loss = loss_fn(
        anchor, key, torch.tensor([0]), candidates=queue, candidate_ids=torch.tensor([1, 2]),
        guide=(anchor, anchor), candidate_guide=torch.tensor([[1.0, 0.0], [-1.0, 0.0]]).double(),
    )  # fmt: skip
    p = 0.5  # of the positive and of the first candidate; the other gets e^-40
    a = p / (1 + p)
    target = (1 - a + a * p) * 0.6 + a * p * 0.0
    denominator = exp(0.6 / tau) + exp(0.0) + exp(0.8 / tau)
    assert loss.item() == pytest.approx(math.log(denominator) - target / tau, rel=1e-9)


def test_everything_flagged_and_alike_stays_finite() -> None:
    z1, z2 = torch.ones(2, 4, 3).requires_grad_()
    alike = torch.ones(4, 2)
    loss_fn = InfoNCE(0.01, Oracle(torch.zeros(4, dtype=torch.int64)), Refine(10.0, 0.1, "guide"))
    loss = loss_fn(z1, z2, torch.arange(4), guide=(alike, alike))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (z1, z2)))


def test_wrong_calls_get_one_sentence() -> None:
    with pytest.raises(ValueError, match="space must be own or guide, got 'both'"):
        Refine(space="both")  # type: ignore[arg-type]
    loss_fn = InfoNCE(0.2, Oracle(LABELS), Refine(space="guide"))
    with pytest.raises(ValueError, match="needs a guide: give the loss guide="):
        loss_fn(draw(8, 6, 0), draw(8, 6, 1), torch.arange(8))


def share_of(rank: int, world_size: int) -> tuple[Any, ...]:
    """The loss and the gradients of one rank's part of a batch of eight."""
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (draw(8, 6, seed)[part].clone().requires_grad_() for seed in (0, 1))
    guide = draw(8, 3, 2)[part], draw(8, 3, 3)[part]
    loss = InfoNCE(0.2, Oracle(LABELS), Refine(space="guide"))(z1, z2, torch.arange(8)[part], guide=guide)
    return loss.detach(), *torch.autograd.grad(loss, (z1, z2))


def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    loss, *gradients = share_of(0, 1)
    parts = two_ranks(share_of)
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    for number, gradient in enumerate(gradients, start=1):
        torch.testing.assert_close(torch.cat([part[number] for part in parts]) / 2, gradient)
