"""FNC: the top share by hand and by sorting, and the promises every policy keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antipodes import FNC, InfoNCE
from antipodes.functional.contrast import contrast
from antipodes.losses import Treatment
from antipodes.pairs import Pairs, normalise


def test_flags_by_hand_on_a_circle() -> None:
    degrees = torch.tensor([0.0, 20.0, 90.0, 180.0, 200.0]).deg2rad()
    points = torch.stack((degrees.cos(), degrees.sin()), dim=1)
    ids = torch.arange(5)
    (rule,) = FNC(alpha=0.25).judge(Pairs(points, ids, torch.ones(5)), 1.0)
    assert rule.ceiling is not None
    similarity = points @ points.T
    flagged = (similarity > rule.ceiling[:, None]) & ~torch.eye(5, dtype=torch.bool)
    # round(0.25 * 4) = 1: everyone's nearest neighbour
    assert flagged.nonzero().tolist() == [[0, 1], [1, 0], [2, 1], [3, 4], [4, 3]]


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_flags_equal_a_sort(alpha: float) -> None:
    z = normalise(torch.randn(40, 8, generator=torch.Generator().manual_seed(0)))
    ids = torch.arange(20).repeat(2)
    pairs = Pairs(z, ids, torch.ones(40))
    (rule,) = FNC(alpha).judge(pairs, 1.0)
    sums = contrast(z, anchor_ids=ids, temperature=0.1, rules=rule)
    similarity = (z @ z.T).masked_fill(ids[:, None] == ids, -torch.inf)
    k = max(1, round(alpha * 38))
    dropped = similarity.sort(dim=1, descending=True).values[:, k:38]
    torch.testing.assert_close(sums.log_sum[0], (dropped / 0.1).logsumexp(1))
    assert sums.kept.unique().tolist() == [38 - k]


@pytest.mark.parametrize("options", [{}, {"supports": 1}])
def test_a_share_for_every_sample_by_hand(options: dict[str, Any]) -> None:
    degrees = torch.tensor([0.0, 20.0, 90.0, 180.0, 200.0]).deg2rad()
    points = torch.stack((degrees.cos(), degrees.sin()), dim=1)
    rows = torch.tensor([4, 3, 2, 1, 0])
    policy = FNC(alpha=torch.tensor([0.5, 0.0, 1.0, 0.3, 0.75]), **options)
    pairs = Pairs(points, torch.arange(5), torch.ones(5), anchor_rows=rows, supports=points)
    flags = policy.flags(pairs)
    # by row 0.75, 0.3, 1, 0 and 0.5 of four candidates; a share of 0 flags nothing, another at least one
    assert torch.bincount(flags.anchors, minlength=5).tolist() == [3, 1, 4, 0, 2]
    flagged = list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True))
    assert all(pair in flagged for pair in [(0, 1), (1, 0), (4, 3)])  # everyone's nearest neighbour first


@pytest.mark.parametrize(("queue", "treatment"), [(False, "attract"), (True, "eliminate")])
def test_support_views_decide_instead_of_the_anchor(queue: bool, treatment: Treatment) -> None:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64).requires_grad_()
    supports = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    ids = torch.arange(7)
    keys, key_ids = torch.randn(11, 5, generator=generator, dtype=torch.float64), torch.arange(11) - 1
    memory = {"candidates": keys, "candidate_ids": key_ids} if queue else {}
    loss_fn = InfoNCE(0.3, FNC(0.3, supports=3), treatment)
    loss = loss_fn(z1, z2, ids, supports=supports, **memory)

    anchors = normalise(z1 if queue else torch.cat((z1, z2)))
    others, other_ids = (normalise(keys), key_ids) if queue else (anchors, ids.repeat(2))
    positives = (normalise(z1) * normalise(z2)).sum(1).repeat(1 if queue else 2)
    losses = []
    for i, anchor in enumerate(anchors):
        allowed = [k for k in range(len(others)) if other_ids[k] not in (-1, ids.repeat(2)[i])]
        score = {k: sum(float(normalise(view[i % 7]) @ others[k].detach()) for view in supports) / 3 for k in allowed}
        flagged = sorted(allowed, key=lambda k: -score[k])[: max(1, round(0.3 * len(allowed)))]
        kept = [k for k in allowed if k not in flagged or treatment == "attract"]
        logits = torch.stack([positives[i], *(anchor @ others[k] for k in kept)]) / 0.3
        pulled = torch.stack([positives[i], *(anchor @ others[k] for k in flagged)])
        target = pulled.mean() if treatment == "attract" else positives[i]
        losses.append(logits.logsumexp(0) - target / 0.3)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_support_views_the_anchors_take_their_place() -> None:
    z1, z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    with_supports, without = (InfoNCE(0.1, FNC(0.2, supports=count))(z1, z2, torch.arange(6)) for count in (1, 0))
    torch.testing.assert_close(with_supports, without)


def test_support_views_of_another_shape() -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"supports must be \(S, B, D\) of views like z1, got .*\(6, 4\)"):
        InfoNCE(0.1, FNC(0.2, supports=1))(z, z, torch.arange(6), supports=z)
    with pytest.raises(ValueError, match="supports must be at least 0, got -1"):
        FNC(supports=-1)


def test_nothing_happens_before_the_start() -> None:
    z1, z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    loss_fn = InfoNCE(0.1, FNC(0.2, start=0.5))
    loss_fn(z1, z2, torch.arange(6), progress=0.4)
    assert loss_fn.stats["flagged_share"] == 0
    loss_fn(z1, z2, torch.arange(6), progress=0.5)
    assert loss_fn.stats["flagged_share"] == pytest.approx(0.2)


def test_shares_by_sample_are_saved() -> None:
    saved = FNC(torch.tensor([0.1, 0.2])).state_dict()
    other = FNC(torch.tensor([0.3, 0.3]))
    other.load_state_dict(saved)
    torch.testing.assert_close(other.alpha, torch.tensor([0.1, 0.2]))


def test_wrong_arguments_get_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\), got 0"):
        FNC(0)
    with pytest.raises(ValueError, match="start must be in"):
        FNC(start=-1)
    with pytest.raises(ValueError, match=r"alpha by sample must be \(n,\) floats in \[0, 1\]"):
        FNC(torch.tensor([0.5, 1.5]))
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"ids must be in 0..1"):
        InfoNCE(0.1, FNC(torch.tensor([0.5, 0.5])))(z, z, torch.arange(3))
    with pytest.raises(ValueError, match="ids are missing"):
        InfoNCE(0.1, FNC(torch.tensor([0.5, 0.5])))(z, z)
