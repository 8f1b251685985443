"""What two real ranks give to one loss: refused on both with a sentence where it does not fit, never silently local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import FNC, GlobalContrastive, GloFND, HardPairs, InfoNCE, OneWay, Sigmoid, Temperature, TwoWay
from tests.cases import every
from tests.ranks import Ranks

B = 8


def embeddings(seed: int, count: int = B) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


def answer(this: int, world: int, kind: str) -> str:
    """The sentence with which a rank refuses, or nothing."""
    indices = torch.arange(B) + B * this
    q, d, ids = embeddings(this), embeddings(10 + this), torch.arange(B)
    losses: dict[str, Any] = {
        "pairs": lambda: InfoNCE(0.05)(q, d, ids, candidates=d, candidate_ids=ids),
        "joined pairs": lambda: InfoNCE(0.05)(q, d, ids, candidates=d, candidate_ids=ids, gathered=False),
        "same ids": lambda: InfoNCE(0.05)(q, d, indices, candidates=d, candidate_ids=ids + 40),
        "batch": lambda: InfoNCE(0.05)(q, d, ids),
        "two": lambda: TwoWay(InfoNCE(0.05))(q, d, ids),
        "hard": lambda: HardPairs()(q, d, ids),
        "one evaluates": lambda: InfoNCE(0.05, GloFND(99)).train(this == 0)(q, d, indices),
        "one of them": lambda: InfoNCE(0.05)(
            q, d, indices, **({"candidates": d, "candidate_ids": indices} if this else {})
        ),
        "no ids": lambda: InfoNCE(0.05)(q, d),
        "dataset": lambda: InfoNCE(0.05)(q, d, indices, candidates=d, candidate_ids=indices),
        "views": lambda: InfoNCE(0.05)(q, d, ids + 3),
        "queue": lambda: InfoNCE(0.05)(q, d, indices, candidates=embeddings(7), candidate_ids=ids + 40),
        "evaluation": lambda: InfoNCE(0.05)(embeddings(1), embeddings(2), ids),
    }
    try:
        assert losses[kind]().isfinite()
    except ValueError as error:
        return str(error)
    return ""


@every(
    ("kind", "sentence"),
    [
        ("pairs", "every rank gives the ids 0..7 for other samples: ids must be dataset indices"),
        ("joined pairs", "every rank gives the ids 0..7 for other samples: ids must be dataset indices"),
        ("same ids", "candidates of the same ids that are not the same: ids must be dataset indices"),
        ("batch", "every rank gives the ids 0..7 for other samples"),
        ("two", "every rank gives the ids 0..7 for other samples"),
        ("hard", "every rank gives the ids 0..7 for other samples"),
        ("one of them", "the ranks give 0 and 8 candidates: every rank must give some"),
        ("one evaluates", "rank 1 calls the loss in eval() or without gradients while others train"),
    ],
)
def test_both_ranks_refuse(two_ranks: Ranks, kind: str, sentence: str) -> None:
    assert all(sentence in said for said in two_ranks(answer, kind)), two_ranks(answer, kind)


@pytest.mark.parametrize("kind", ["no ids", "dataset", "views", "queue", "evaluation"])
def test_what_fits_is_taken(two_ranks: Ranks, kind: str) -> None:
    """Other views of the same samples, a queue that every rank holds, and ranks that do the same are all right."""
    assert two_ranks(answer, kind) == ["", ""]


N = 9
LOSSES: dict[str, Callable[[], Any]] = {
    "infonce": lambda: InfoNCE(0.2, GloFND(N, alpha=0.2) & FNC(alpha=0.1)),
    "global": lambda: GlobalContrastive(N, 0.2, gamma=0.5),
    "sigmoid": lambda: OneWay(Sigmoid(0.2)),
    "two ways": lambda: TwoWay(InfoNCE(Temperature(0.2, learnable=True), GloFND(N, alpha=0.2))),
    "given negatives": lambda: OneWay(InfoNCE(0.2)),
    "candidates": lambda: InfoNCE(0.2),
    "hard pairs": lambda: HardPairs(),
    "without ids": lambda: InfoNCE(0.2),
    "weights": lambda: InfoNCE(0.2),
}


def step(this: int, world: int, name: str) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Two steps on this rank's share, of which it has 7 samples or 2: gradients, and the state of the loss."""
    share = slice(0, N) if world == 1 else (slice(0, 7), slice(7, N))[this]
    loss_fn, gradients = LOSSES[name](), []
    for seed in range(2):
        q, d, h = (embeddings(seed + 10 * k, N)[share].double().requires_grad_() for k in range(3))
        ids: Any = torch.arange(N)[share]
        more: dict[str, Any] = {"given negatives": {"hard_negatives": h[:, None]}, "weights": {"weights": q[:, 0] ** 2}}
        more["candidates"] = {"candidates": h, "candidate_ids": ids + N, "gathered": world == 1}
        ids = None if name == "without ids" else ids
        loss_fn(q, d, ids, **more.get(name, {})).backward()
        gradients += [torch.zeros_like(each) if each.grad is None else each.grad / world for each in (q, d, h)]
    of_loss = [each.grad for each in loss_fn.parameters() if each.grad is not None]
    return gradients, {**loss_fn.state_dict(), **{f"gradient {i}": each for i, each in enumerate(of_loss)}}


@every("name", LOSSES)
def test_batches_of_different_lengths_equal_one_batch(two_ranks: Ranks, name: str) -> None:
    expected, state = step(0, 1, name)
    (first, state_0), (second, state_1) = two_ranks(step, name)
    joined = [torch.cat(parts) for parts in zip(first, second, strict=True)]
    torch.testing.assert_close(joined, expected, atol=1e-12, rtol=1e-10)
    for of_rank in (state_0, state_1):
        torch.testing.assert_close(of_rank, state, atol=1e-6, rtol=1e-6)
    assert two_ranks(answer, "dataset") == ["", ""]  # batches of one length again
