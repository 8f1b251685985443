"""What two real ranks give to one loss: refused on both with a sentence where it does not fit, never silently local."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import GloFND, HardPairs, InfoNCE, TwoWay
from tests.ranks import Ranks

B = 8


def embeddings(seed: int, count: int = B) -> Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))


def answer(this: int, world: int, kind: str) -> str:
    """The sentence with which a rank refuses, or nothing."""
    indices, count = torch.arange(B) + B * this, B if kind != "lengths" else B - 2 * this
    q, d, ids = embeddings(this, count), embeddings(10 + this, count), torch.arange(B)[:count]
    losses: dict[str, Any] = {
        "pairs": lambda: InfoNCE(0.05)(q, d, ids, candidates=d, candidate_ids=ids),
        "joined pairs": lambda: InfoNCE(0.05)(q, d, ids, candidates=d, candidate_ids=ids, gathered=False),
        "same ids": lambda: InfoNCE(0.05)(q, d, indices, candidates=d, candidate_ids=ids + 40),
        "batch": lambda: InfoNCE(0.05)(q, d, ids),
        "two": lambda: TwoWay(InfoNCE(0.05))(q, d, ids),
        "hard": lambda: HardPairs()(q, d, ids),
        "lengths": lambda: InfoNCE(0.05, GloFND(99))(q, d, indices[:count] + 50),
        "candidates": lambda: InfoNCE(0.05)(q, d, indices, candidates=d[this:], candidate_ids=indices[this:]),
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


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("pairs", "every rank gives the ids 0..7 for other samples: ids must be dataset indices"),
        ("joined pairs", "every rank gives the ids 0..7 for other samples: ids must be dataset indices"),
        ("same ids", "candidates of the same ids that are not the same: ids must be dataset indices"),
        ("batch", "every rank gives the ids 0..7 for other samples"),
        ("two", "every rank gives the ids 0..7 for other samples"),
        ("hard", "every rank gives the ids 0..7 for other samples"),
        ("lengths", "the ranks give 8 and 6 samples: every rank must give as many"),
        ("candidates", "the ranks give 8 and 7 candidates: every rank must give as many"),
        ("one of them", "the ranks give 0 and 8 candidates: every rank must give as many"),
    ],
)
def test_both_ranks_refuse(two_ranks: Ranks, kind: str, sentence: str) -> None:
    assert all(sentence in said for said in two_ranks(answer, kind)), two_ranks(answer, kind)


@pytest.mark.parametrize("kind", ["no ids", "dataset", "views", "queue", "evaluation"])
def test_what_fits_is_taken(two_ranks: Ranks, kind: str) -> None:
    """Other views of the same samples, a queue that every rank holds, and ranks that do the same are all right."""
    assert two_ranks(answer, kind) == ["", ""]
