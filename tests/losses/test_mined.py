"""Given hard negatives that their ids leave out are counted in one warning; queues and correct ids are not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from antipodes import GlobalContrastive, InfoNCE, Sigmoid
from antipodes.candidates import Queue
from tests.cases import every

B, D, K = 16, 8, 3
IDS = torch.arange(100, 100 + B)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


QUERIES, POSITIVES = numbers(B, D), numbers(B, D, seed=1)
ONE, SEVERAL = numbers(B, D, seed=2), numbers(B * K, D, seed=3)
OTHERS = torch.arange(1000, 1000 + B * K)
PARTLY = torch.cat((OTHERS[: B - 3], IDS[-3:]))

LOST = {
    "own ids": (torch.cat((POSITIVES, ONE)), torch.cat((IDS, IDS)), B),
    "padding": (torch.cat((POSITIVES, ONE)), torch.cat((IDS, torch.full((B,), -1))), B),
    "mined first": (torch.cat((ONE, POSITIVES)), torch.cat((IDS, IDS)), B),
    "mined alone": (ONE, IDS, B),
    "blocks": (torch.cat((POSITIVES, SEVERAL)), torch.cat((IDS, IDS.repeat(K))), B * K),
    "groups": (torch.cat((POSITIVES, SEVERAL)), torch.cat((IDS, IDS.repeat_interleave(K))), B * K),
    "groups alone": (SEVERAL, IDS.repeat_interleave(K), B * K),
    "groups first": (torch.cat((SEVERAL, POSITIVES)), torch.cat((IDS.repeat_interleave(K), IDS)), B * K),
    "some": (torch.cat((POSITIVES, ONE)), torch.cat((IDS, PARTLY)), 3),
}
KEPT = {
    "ids of their own": (torch.cat((POSITIVES, SEVERAL)), torch.cat((IDS, OTHERS))),
    "mined alone": (SEVERAL, OTHERS),
    "positives alone": (POSITIVES, IDS),
    "fewer than the batch": (ONE[:3], IDS[:3]),
    "a bank with every sample once": (numbers(200, D), torch.arange(200)),
    "positives and empty slots": (
        torch.cat((POSITIVES, torch.zeros(5, D))),
        torch.cat((IDS, torch.full((5,), -1))),
    ),
}


def said(loss_fn: torch.nn.Module, candidates: Tensor, candidate_ids: Tensor, calls: int = 3) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(calls):
            loss_fn(QUERIES, POSITIVES, IDS, candidates=candidates, candidate_ids=candidate_ids)
    return [str(each.message) for each in caught if "mined negative" in str(each.message)]


@every("name", LOST)
def test_lost_negatives_are_counted_once(name: str) -> None:
    candidates, candidate_ids, count = LOST[name]
    (sentence,) = said(InfoNCE(0.07), candidates, candidate_ids)
    assert sentence.startswith(f"{count} of {len(candidates)} candidates")


@pytest.mark.parametrize("build", [lambda: Sigmoid(), lambda: GlobalContrastive(200)], ids=["sigmoid", "global"])
def test_other_losses_say_so_as_well(build) -> None:
    candidates, candidate_ids, _ = LOST["own ids"]
    assert len(said(build(), candidates, candidate_ids)) == 1


@every("name", KEPT)
def test_no_warning_without_reason(name: str) -> None:
    assert said(InfoNCE(0.07), *KEPT[name]) == []


def test_no_warning_about_stale_copies_in_a_queue() -> None:
    queue, loss_fn = Queue(4 * B, D), InfoNCE(0.07)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(9):  # 40 samples: some are in the queue twice
            ids = torch.randperm(40, generator=torch.Generator().manual_seed(step))[:B]
            q, k = numbers(B, D, seed=step), numbers(B, D, seed=step + 50)
            if step:
                loss_fn(q, k, ids, candidates=queue.keys, candidate_ids=queue.ids)
            queue.push(k, ids)
