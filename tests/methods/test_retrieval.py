"""Retrieval: the dense formula with given negatives and repeated texts, one tower or two, ids, and two ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes import FNC, InfoNCE, Known
from antipodes.methods import Batch, InputViews, Retrieval, Tower, TowerPlan, Towers
from tests.ranks import Ranks

B, WIDTH, DIM = 8, 6, 5
MODALITIES = {"query": "vector", "document": "vector", "negative_1": "vector", "negative_2": "vector"}
IDS = {
    "query": torch.tensor([0, 1, 2, 3, 0, 5, 6, 7]),  # rows 0 and 4 have the same query
    "document": torch.tensor([10, 11, 12, 13, 14, 11, 16, 17]),  # rows 1 and 5 the same document
    "negative_1": torch.tensor([20, 21, 12, 23, 24, 25, 26, 27]),  # row 2 was given its own document
    "negative_2": torch.tensor([30, -1, 32, 33, -1, 35, 10, 37]),  # two rows have one negative
}


def retrieval(shared: bool = True, **policy: object) -> Retrieval:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        towers = [Tower(nn.Linear(WIDTH, DIM), nn.Identity()) for _ in range(2)]
        plans = Retrieval.plan(MODALITIES)
        network = Towers(dict(zip(plans, [towers[0], towers[0] if shared else towers[1]], strict=True)), plans)
        return Retrieval(network, InfoNCE(0.1, **policy), IDS).double()  # type: ignore[arg-type]


def given(rows: slice = slice(None)) -> Batch:
    draw = torch.Generator().manual_seed(1)
    inputs = {name: torch.randn(B, WIDTH, generator=draw, dtype=torch.float64) for name in MODALITIES}
    numbers = torch.arange(B)[rows]
    return Batch(numbers, {name: InputViews([each[rows]]) for name, each in inputs.items()}, numbers)


def dense(method: Retrieval, batch: Batch) -> Tensor:
    """The mean of -log softmax over documents and given negatives, by the identities above."""
    towers = method.network
    queries = F.normalize(towers["query"](batch["query"].views[0]), dim=1)
    names = ["document", "negative_1", "negative_2"]
    keys = [F.normalize(towers["document"](batch[name].views[0]), dim=1) for name in names]
    losses = []
    for i in range(B):
        positive = queries[i] @ keys[0][i] / 0.1
        logits = [positive]
        for name, vectors in zip(names, keys, strict=True):
            for k in range(B):
                known = IDS[name][k] in (IDS["document"][i], -1)
                known |= name == "document" and bool(IDS["query"][k] == IDS["query"][i])
                if not known:
                    logits.append(queries[i] @ vectors[k] / 0.1)
        losses.append(torch.logsumexp(torch.stack(logits), 0) - positive)
    return torch.stack(losses).mean()


@pytest.mark.parametrize("shared", [True, False])
def test_is_the_dense_formula_in_value_and_gradient(shared: bool) -> None:
    method = retrieval(shared)
    with pytest.warns(UserWarning, match="hard_negatives"):
        loss = method.loss(method.network, given(), 0.5)
    expected = dense(method, given())
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    parameters = list(method.network.parameters())
    assert len(parameters) == (2 if shared else 4)
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)
    assert method.statistics()["given_ignored"] > 0
    assert set(method.exports()) == ({"encoder"} if shared else {"encoder-query", "encoder-document"})
    assert not any(key.startswith("ids") for key in method.state_dict())  # the data has them


def test_every_pair_that_is_listed_is_left_out_by_known() -> None:
    method = retrieval(negatives=Known.from_pairs([3, 3], [13, 16]))
    plain = retrieval()
    for each in (method, plain):
        each.loss(each.network, given(), 0.5)
    assert method.statistics()["kept_per_anchor"] == plain.statistics()["kept_per_anchor"] - 1 / B


def test_a_plan_shares_a_tower_between_inputs_of_one_modality() -> None:
    plans = Retrieval.plan(MODALITIES)
    assert plans["document"] == TowerPlan("document", "vector", further=("negative_1", "negative_2"), shares="query")
    assert Retrieval.plan({"image": "image", "text": "text"})["text"].shares is None
    for names in (["text"], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="retrieval compares two inputs"):
            Retrieval.plan(dict.fromkeys(names, "text"))
    with pytest.raises(ValueError, match="support views"):
        retrieval(negatives=FNC(0.1, supports=2))


def _step(rank: int, world: int) -> list[Tensor]:
    method = retrieval()
    size = B // world
    loss = method.loss(method.network, given(slice(rank * size, (rank + 1) * size)), 0.5)
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in method.network.parameters() if parameter.grad is not None)]


@pytest.mark.filterwarnings("ignore")
def test_two_ranks_equal_one(two_ranks: Ranks) -> None:
    for whole, parts in zip(_step(0, 1), zip(*two_ranks(_step), strict=True), strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), whole, rtol=1e-11, atol=1e-13)
