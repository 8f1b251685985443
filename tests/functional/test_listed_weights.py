"""Listed pairs with weights: how much each is pulled, against the dense formula, in every kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from antipodes.functional.contrast import contrast, sigmoid_sums
from antipodes.functional.rule import Listed, Rule


def scene() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    anchors, candidates = (
        normalize(torch.randn(count, 6, generator=generator, dtype=torch.float64), dim=1) for count in (9, 14)
    )
    ids, key_ids = torch.arange(9), torch.cat((torch.arange(9), torch.arange(20, 25)))
    return anchors.requires_grad_(), candidates.requires_grad_(), ids, key_ids


ROWS, COLUMNS = torch.tensor([0, 0, 3, 8, 8]), torch.tensor([5, 13, 4, 0, 11])
WEIGHTS = torch.tensor([0.25, 1.0, 0.0, 0.5, 0.75], dtype=torch.float64)
LISTED = Listed(ROWS, COLUMNS, "pull", WEIGHTS)


def pulled_matrix() -> Tensor:
    matrix = torch.zeros(9, 14, dtype=torch.float64)
    matrix[ROWS, COLUMNS] = WEIGHTS
    return matrix


@pytest.mark.parametrize("block", [4, None])
@pytest.mark.parametrize("temperature", [0.2, 0.005])
def test_sums_and_gradients_equal_the_dense_formula(block: int | None, temperature: float) -> None:
    anchors, candidates, ids, key_ids = scene()
    ids_of = {"anchor_ids": ids, "candidate_ids": key_ids, "temperature": temperature}
    sums = contrast(anchors, candidates, **ids_of, rules=Rule(lists=(LISTED,)), block=block)
    similarities = anchors @ candidates.T
    same = ids[:, None] == key_ids
    log_sum = (similarities / temperature).masked_fill(same, -torch.inf).logsumexp(1)
    torch.testing.assert_close(sums.log_sum[0], log_sum)
    torch.testing.assert_close(sums.pulled_sum[0], (pulled_matrix() * similarities).sum(1))
    torch.testing.assert_close(sums.pulled[0], pulled_matrix().sum(1))
    assert sums.kept[0].tolist() == [13] * 9
    ours = torch.autograd.grad(sums.log_sum.sum() - 3 * sums.pulled_sum.sum(), (anchors, candidates))
    plain = torch.autograd.grad(log_sum.sum() - 3 * (pulled_matrix() * similarities).sum(), (anchors, candidates))
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("block", [4, None])
def test_the_sigmoid_counts_a_pair_partly_on_either_side(block: int | None) -> None:
    anchors, candidates, ids, key_ids = scene()
    ids_of = {"anchor_ids": ids, "candidate_ids": key_ids, "temperature": 0.2, "bias": -1.0}
    sums = sigmoid_sums(anchors, candidates, **ids_of, rules=Rule(lists=(LISTED,)), block=block)
    logits = anchors @ candidates.T / 0.2 - 1.0
    others = (ids[:, None] != key_ids).double()
    loss = ((others - pulled_matrix()) * -logsigmoid(-logits)).sum(1)
    pulled = (pulled_matrix() * -logsigmoid(logits)).sum(1)
    torch.testing.assert_close(sums.loss_sum[0], loss)
    torch.testing.assert_close(sums.pulled_loss[0], pulled)
    ours = torch.autograd.grad(sums.loss_sum.sum() + sums.pulled_loss.sum(), anchors)
    torch.testing.assert_close(ours, torch.autograd.grad((loss + pulled).sum(), anchors))


def test_a_part_of_the_rule_keeps_its_weights() -> None:
    rule = Rule(lists=(LISTED,)).of_anchors(slice(3, 9)).of_candidates(torch.tensor([0, 4, 11]))
    (listed,) = rule.lists
    assert listed.anchors.tolist() == [0, 5, 5]
    assert listed.candidates.tolist() == [1, 0, 2]
    assert listed.weights is not None
    assert listed.weights.tolist() == [0.0, 0.5, 0.75]


@pytest.mark.parametrize(
    ("listed", "sentence"),
    [
        (Listed(ROWS, COLUMNS, "drop", WEIGHTS), 'give act="pull"'),
        (Listed(ROWS, COLUMNS, "pull", WEIGHTS[:2]), r"one floating number per pair, \(5,\)"),
        (Listed(ROWS, COLUMNS, "pull", 2 * WEIGHTS), r"must be in \[0, 1\]"),
        (Listed(ROWS, COLUMNS, "pull", WEIGHTS.where(WEIGHTS < 1, torch.nan)), r"must be in \[0, 1\]"),
    ],
)
def test_weights_that_make_no_sense(listed: Listed, sentence: str) -> None:
    anchors, candidates, ids, key_ids = scene()
    with pytest.raises(ValueError, match=sentence):
        contrast(
            anchors, candidates, anchor_ids=ids, candidate_ids=key_ids, temperature=0.1, rules=Rule(lists=(listed,))
        )
