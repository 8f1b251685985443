"""What a user's loop may hand to a loss: ids of any kind, rows, weights, half precision, no progress."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from antipodes import FNC, GlobalContrastive, GloFND, InfoNCE, Oracle, Ring
from antipodes.losses import LossModule
from antipodes.pairs import normalise
from tests.cases import every
from tests.functional.test_reading import Counted
from tests.ranks import Ranks

B = 6


def views(count: int = B, seed: int = 0, dim: int = 5) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z1.requires_grad_(), z2.requires_grad_()


@every(
    "ids",
    [
        list(range(B)),
        np.arange(B),
        np.arange(B, dtype=np.int32),
        torch.arange(B).float(),
        torch.arange(B).int(),
        range(B),
    ],
    ids=["list", "numpy", "numpy32", "float", "int32", "range"],
)
def test_ids_of_any_exact_kind(ids: Any) -> None:
    loss_fn = InfoNCE(0.2, Oracle(torch.arange(B) // 2))
    assert torch.equal(loss_fn(*views(), ids), loss_fn(*views(), torch.arange(B)))


def test_boolean_ids_are_zero_and_one() -> None:
    z1, z2 = views(2)
    assert torch.equal(InfoNCE()(z1, z2, torch.tensor([False, True])), InfoNCE()(z1, z2, torch.arange(2)))


def test_ids_are_optional_where_nobody_needs_them() -> None:
    for policy in (None, FNC(0.2)):
        loss_fn = InfoNCE(0.2, policy)
        assert torch.equal(loss_fn(*views()), loss_fn(*views(), torch.arange(B)))
    for loss_fn in (InfoNCE(negatives=GloFND(20)), GlobalContrastive(20)):
        with pytest.raises(ValueError, match="ids are missing"):
            loss_fn(*views())
    with pytest.raises(ValueError, match="ids are missing: candidates must know"):
        InfoNCE()(*views(), candidates=torch.eye(5).double(), candidate_ids=torch.arange(5))


def test_ids_of_the_batch_instead_of_the_dataset_are_noticed() -> None:
    loss_fn = InfoNCE(negatives=GloFND(50_000))
    loss_fn(*views(), torch.arange(B))
    with pytest.warns(UserWarning, match=r"ids were 0\.\.5 in 2 calls in a row"):
        loss_fn(*views(), torch.arange(B))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shuffled = InfoNCE(negatives=GloFND(50_000))
        for step in range(4):
            shuffled(*views(), torch.arange(B) + B * step)


def test_progress_is_asked_for_or_counted() -> None:
    for loss_fn in (InfoNCE(negatives=Ring()), InfoNCE(negatives=GloFND(20, start=0.3) & FNC(0.1))):
        with pytest.raises(ValueError, match="give progress="):
            loss_fn(*views(), torch.arange(B))
    counted, told = (InfoNCE(0.1, GloFND(20, alpha=0.2, start=0.5), total_steps=total) for total in (4, None))
    losses = [counted(*views(seed=step), torch.arange(B)) for step in range(6)]
    expected = [told(*views(seed=step), torch.arange(B), progress=min(1.0, step / 4)) for step in range(6)]
    assert all(torch.equal(one, other) for one, other in zip(losses, expected, strict=True))
    assert counted.state_dict()["steps"] == 6
    assert "steps" not in told.state_dict()
    with pytest.raises(ValueError, match="total_steps must be at least 1"):
        InfoNCE(total_steps=0)


def test_a_name_is_no_policy() -> None:
    with pytest.raises(ValueError, match=r"negatives must be a policy such as GloFND.*got 'glofnd'"):
        InfoNCE(negatives="glofnd")  # type: ignore[arg-type]


def test_rows_say_where_and_ids_say_who() -> None:
    """Six captions of three images: captions of one image are never negatives, labels and thresholds go by caption."""
    images = torch.tensor([0, 0, 1, 1, 2, 2])
    captions = torch.arange(6) + 10
    labels = torch.full((16,), -1)
    labels[10:] = torch.tensor([0, 1, 0, 1, 2, 2])
    loss_fn = InfoNCE(0.2, Oracle(labels))
    loss = loss_fn(*views(), images, rows=captions)
    z = normalise(torch.cat(views()))
    expected = []
    for i in range(12):
        kept = [k for k in range(12) if images[k % 6] != images[i % 6] and labels[10 + k % 6] != labels[10 + i % 6]]
        logits = torch.stack([z[i] @ z[(i + 6) % 12], *(z[i] @ z[k] for k in kept)]) / 0.2
        expected.append(logits.logsumexp(0) - logits[0])
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    policy = GloFND(16, alpha=0.3, optimizer="sgd")
    InfoNCE(0.2, policy)(*views(), images, rows=captions)
    assert bool((policy.threshold[:10] == 1).all())
    assert bool((policy.threshold[10:] < 1).all())
    u = GlobalContrastive(16)
    u(*views(), images, rows=captions)
    assert bool((u.log_u.rows[:10] == -torch.inf).all())
    assert bool((u.log_u.rows[10:] > -torch.inf).all())


def test_rows_of_a_queue() -> None:
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    z1, z2 = views(2)
    keys = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    loss_fn = InfoNCE(0.2, Oracle(labels))
    queue = {"candidates": keys, "candidate_ids": torch.tensor([7, 0, -1, 9])}
    loss_fn(z1, z2, torch.tensor([0, 1]), rows=torch.tensor([4, 5]), candidate_rows=torch.tensor([2, 3, 0, 1]), **queue)
    # anchor 0 (label 0) loses 7 (label 0) and its own copy, keeps 9; anchor 1 (label 1) loses 0 and 9, keeps 7
    assert loss_fn.stats["kept_per_anchor"] == 1
    with pytest.raises(ValueError, match="rows and candidate_rows must both be given"):
        loss_fn(z1, z2, torch.tensor([0, 1]), rows=torch.tensor([4, 5]), **queue)


def test_the_loss_of_every_anchor() -> None:
    z1, z2 = views()
    each = InfoNCE(0.2, FNC(0.2), reduction="none")(z1, z2, torch.arange(B))
    assert each.shape == (2 * B,)
    torch.testing.assert_close(each.mean(), InfoNCE(0.2, FNC(0.2))(z1, z2, torch.arange(B)))


def test_weights_of_samples() -> None:
    z1, z2 = views()
    weights = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0, 0.0])
    loss = InfoNCE(0.2)(z1, z2, torch.arange(B), weights=weights)
    each = InfoNCE(0.2, reduction="none")(z1, z2, torch.arange(B))
    both = weights.repeat(2)
    torch.testing.assert_close(loss, (both * each).sum() / both.sum())
    assert InfoNCE(0.2)(z1, z2, torch.arange(B), weights=torch.zeros(B)) == 0
    with pytest.raises(ValueError, match=r"weights must be \(6,\) floating-point"):
        InfoNCE(0.2)(z1, z2, torch.arange(B), weights=torch.ones(5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    z1, z2 = (z.detach().to(dtype).requires_grad_() for z in views())
    loss = InfoNCE(0.05, GloFND(20, alpha=0.2))(z1, z2, torch.arange(B))
    assert loss.dtype == torch.float32
    expected = InfoNCE(0.05, GloFND(20, alpha=0.2))(z1.float(), z2.float(), torch.arange(B))
    torch.testing.assert_close(loss, expected)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (z1, z2)))


def test_inside_autocast() -> None:
    head = torch.nn.Linear(5, 4)
    x = torch.randn(2 * B, 5, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, second = head(x).chunk(2)
        loss = InfoNCE(0.1, GloFND(20, alpha=0.2))(first, second, torch.arange(B))
    loss.backward()
    expected = InfoNCE(0.1, GloFND(20, alpha=0.2))(first.detach().float(), second.detach().float(), torch.arange(B))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


def test_every_loss_has_the_same_face() -> None:
    loss_fn = InfoNCE(0.2, GloFND(20, alpha=0.2) & FNC(0.1))
    seen = []
    loss_fn.observer = seen.append
    loss_fn(*views(), torch.arange(B))
    assert isinstance(loss_fn, LossModule)
    assert [type(part) for part in loss_fn.policies()] == [GloFND, FNC]
    assert seen[0].score(torch.arange(20) % 3, "x_")["x_true"] > 0
    assert all(isinstance(value, float) for value in loss_fn.stats.values())


@every("initial", [None, "one", "quantile"])
@every("count", [B, 400])
def test_a_call_with_its_backward_reads_three_numbers_back(
    initial: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before tables move (ids and embeddings), by the policy (unvisited samples), and for the kernel (bounds)."""
    policy = None if initial is None else GloFND(5000, alpha=0.2, initial=initial)
    loss_fn, ids = InfoNCE(0.2, policy), torch.arange(count)
    reads = Counted(monkeypatch).reads
    monkeypatch.setattr("antipodes.losses.loss.on_host", lambda tensor: False)
    for call in range(3):
        reads.clear()
        loss_fn(*views(count), ids).backward()
        # calls 1, 2, 4, 8, ... also look whether negatives are left; with the first come the quantiles of new samples
        assert len(reads) <= 3 + (call < 2 and initial is not None) or (call == 0 and initial == "quantile"), reads
    before = len(reads)
    assert 0 < loss_fn.stats["kept_per_anchor"] <= 2 * count - 2
    assert len(reads) == before + 1  # all statistics at once


@pytest.mark.parametrize("policy", [None, "glofnd"])
@pytest.mark.parametrize("count", [B, 400])
def test_a_call_on_a_cpu_reads_two_numbers_back_at_most(
    policy: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss_fn, ids = InfoNCE(0.2, None if policy is None else GloFND(5000, alpha=0.2)), torch.arange(count) + 7
    loss_fn(*views(count), ids).backward()
    reads = Counted(monkeypatch, host=True).reads
    loss_fn(*views(count), ids).backward()
    assert len(reads) <= 2 * (policy is not None), reads  # whether a sample is new, and a bound for the kernel


def share(rank: int, world_size: int, kind: str) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one rank's part: candidates of its own, weights, or no ids."""
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z.detach()[part].clone().requires_grad_() for z in views(8))
    ids = torch.arange(8)[part]
    if kind == "candidates":
        loss = InfoNCE(0.2, Oracle(torch.arange(8) % 3))(z1, z2, ids, candidates=z2, candidate_ids=ids)
    elif kind == "weights":
        loss = InfoNCE(0.2)(z1, z2, ids, weights=torch.linspace(0, 1, 8)[part])
    elif kind == "rows":
        loss = InfoNCE(0.2, Oracle(torch.arange(16) % 3))(z1, z2, ids // 2, rows=ids + 5)
    else:
        loss = InfoNCE(0.2, FNC(0.2))(z1, z2)
    return loss.detach(), torch.stack(torch.autograd.grad(loss, (z1, z2)))


@pytest.mark.parametrize("kind", ["candidates", "weights", "rows", "no ids"])
def test_two_ranks_equal_one(two_ranks: Ranks, kind: str) -> None:
    loss, gradient = share(0, 1, kind)
    parts = two_ranks(share, kind)
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    torch.testing.assert_close(torch.cat([part[1] for part in parts], dim=1) / 2, gradient)
