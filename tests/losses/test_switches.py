"""Weights of candidates, against loops."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from antipodes import FNC, GlobalContrastive, InfoNCE, Oracle, Sigmoid, TwoWay
from antipodes.losses import Treatment
from antipodes.pairs import normalise
from tests.ranks import Ranks

B = 6
LABELS = torch.tensor([0, 1, 0, 1, 2, 2])


def views(count: int = B, seed: int = 0) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z1.requires_grad_(), z2.requires_grad_()


def compare(ours: Tensor, theirs: Tensor, *wanted: Tensor) -> None:
    torch.testing.assert_close(ours, theirs)
    for mine, other in zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("queue", [False, True])
def test_weights_of_candidates(queue: bool) -> None:
    """log w is added to the logits of candidates and positives; the policy still compares the similarity itself."""
    z1, z2 = views()
    ids = torch.arange(B)
    keys = views(9, seed=3)[0].detach()
    key_ids = torch.arange(9) - 1
    log_weights = torch.linspace(-1, 2, 9 if queue else B).double()
    of_positives = torch.linspace(3, 0, B).double() if queue else log_weights
    more = {"candidates": keys, "candidate_ids": key_ids, "positive_log_weights": of_positives} if queue else {}
    loss = InfoNCE(0.3, FNC(0.25))(z1, z2, ids, candidate_log_weights=log_weights, **more)
    anchors = normalise(z1 if queue else torch.cat((z1, z2)))
    others = normalise(keys) if queue else anchors
    other_ids, weights = (key_ids, log_weights) if queue else (ids.repeat(2), log_weights.repeat(2))
    positives = (normalise(z1) * normalise(z2)).sum(1).repeat(1 if queue else 2)
    losses = []
    for i, anchor in enumerate(anchors):
        allowed = [k for k in range(len(others)) if other_ids[k] not in (-1, ids.repeat(2)[i])]
        ranked = sorted(allowed, key=lambda k: -(anchor @ others[k]).item())
        kept = ranked[max(1, round(0.25 * len(allowed))) :]
        logits = torch.stack(
            [positives[i] / 0.3 + of_positives[i % B], *(anchor @ others[k] / 0.3 + weights[k] for k in kept)]
        )
        losses.append(logits.logsumexp(0) - logits[0])
    compare(loss, torch.stack(losses).mean(), z1, z2)


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_the_logq_correction_of_recommenders(treatment: Treatment) -> None:
    """Logits s / tau - log q for the positive and the negatives alike: the softmax of a sampled batch (Yi et al.)."""
    users, items = views()
    ids, log_q = torch.arange(B), torch.rand(B, generator=torch.Generator().manual_seed(1)).double().log()
    loss_fn = InfoNCE(0.2, None if treatment == "eliminate" else Oracle(LABELS), treatment)
    batch = {"candidates": items, "candidate_ids": ids}
    loss = loss_fn(users, items, ids, **batch, candidate_log_weights=-log_q, positive_log_weights=-log_q)
    logits = normalise(users) @ normalise(items).T / 0.2 - log_q
    log_softmax = logits - logits.logsumexp(1, keepdim=True)
    if treatment == "eliminate":
        compare(loss, -log_softmax.diagonal().mean(), users, items)
        return
    same = (LABELS[:, None] == LABELS).double()
    plain = -(same * log_softmax).sum(1) / same.sum(1)
    ours, theirs = (torch.autograd.grad(each, (users, items), retain_graph=True) for each in (loss, plain.mean()))
    for one, other in zip(ours, theirs, strict=True):  # the log weights of what is pulled besides are a constant
        torch.testing.assert_close(one, other)


def test_the_logq_correction_in_both_directions() -> None:
    first, second = views()
    ids, generator = torch.arange(B), torch.Generator().manual_seed(1)
    of_first, of_second = (torch.rand(B, generator=generator).double().log() for _ in range(2))
    loss = TwoWay(InfoNCE(0.2))(first, second, ids, log_weights=(-of_first, -of_second))
    logits = normalise(first) @ normalise(second).T / 0.2
    there = torch.nn.functional.cross_entropy(logits - of_second, ids)
    back = torch.nn.functional.cross_entropy(logits.T - of_first, ids)
    compare(loss, (there + back) / 2, first, second)


def test_weights_of_one_side_alone_are_noticed() -> None:
    z1, z2 = views()
    batch = {"candidates": z2, "candidate_ids": torch.arange(B), "candidate_log_weights": torch.zeros(B).double()}
    with pytest.warns(UserWarning, match="a logQ correction is meant for both"):
        InfoNCE()(z1, z2, torch.arange(B), **batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InfoNCE()(z1, z2, torch.arange(B), **batch, positive_log_weights=torch.zeros(B).double())
    with pytest.raises(ValueError, match="without candidates the positives have the weights of their samples"):
        InfoNCE()(z1, z2, torch.arange(B), positive_log_weights=torch.zeros(B).double())


def test_weights_that_do_not_fit() -> None:
    z1, z2 = views()
    with pytest.raises(ValueError, match=r"candidate_log_weights must be \(6,\) floating-point"):
        InfoNCE()(z1, z2, candidate_log_weights=torch.zeros(5))
    with pytest.raises(ValueError, match="leave their log weights out"):
        Sigmoid()(z1, z2, candidate_log_weights=torch.zeros(B))
    batch = {"candidates": z2, "candidate_ids": torch.arange(B)}
    with pytest.raises(ValueError, match="leave their log weights out"):
        Sigmoid()(z1, z2, torch.arange(B), **batch, positive_log_weights=torch.zeros(B))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has no positive in its sum
        GlobalContrastive(B)(z1, z2, torch.arange(B), **batch, candidate_log_weights=torch.zeros(B))


def share(rank: int, world_size: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z.detach()[part].clone().requires_grad_() for z in views(8))
    loss_fn = GlobalContrastive(8, 0.3, gamma=0.4)
    weights, ids = torch.linspace(-1, 1, 8).double()[part], torch.arange(8)[part]
    if kind == "global":
        loss = loss_fn(z1, z2, ids, candidate_log_weights=weights)
    elif kind == "batch":
        loss = InfoNCE(0.3)(z1, z2, ids, candidate_log_weights=weights)
    elif kind == "pairs":
        both = {"candidate_log_weights": weights, "positive_log_weights": weights}
        loss = InfoNCE(0.3)(z1, z2, ids, candidates=z2, candidate_ids=ids, **both)
    else:
        loss = TwoWay(InfoNCE(0.3))(z1, z2, ids, log_weights=(weights, 1 - weights))
    return loss.detach(), torch.stack(torch.autograd.grad(loss, (z1, z2))), loss_fn.log_u.rows


@pytest.mark.parametrize("kind", ["global", "batch", "pairs", "two"])
def test_two_ranks_equal_one(two_ranks: Ranks, kind: str) -> None:
    loss, gradient, rows = share(0, 1, kind)
    parts = two_ranks(share, kind)
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    torch.testing.assert_close(torch.cat([part[1] for part in parts], dim=1) / 2, gradient)
    torch.testing.assert_close(parts[0][2], rows)
