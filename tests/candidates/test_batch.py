"""The batch as candidates: on one rank the views themselves, on two the views of both in the order of one rank."""

import torch
from torch import Tensor

from antipodes.candidates import batch_pairs
from tests.ranks import Ranks


def views() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.nn.functional.normalize(torch.randn(2, 4, 3, generator=generator), dim=2)
    return first, second, torch.tensor([7, 2, 9, 4])


def test_both_views_are_anchors_and_the_positive_is_the_other_view() -> None:
    first, second, ids = views()
    pairs = batch_pairs(torch.cat((first, second)), ids)
    assert torch.equal(pairs.anchors, torch.cat((first, second)))
    assert pairs.anchor_ids.tolist() == [7, 2, 9, 4] * 2
    assert pairs.candidates is None
    for i in range(4):
        assert torch.isclose(pairs.positives[i], first[i] @ second[i])
        assert torch.isclose(pairs.positives[4 + i], first[i] @ second[i])


def pairs_on_a_rank(rank: int, world_size: int) -> tuple[Tensor, ...]:
    share = slice(2 * rank, 2 * rank + 2)
    first, second, ids = (tensor[share] for tensor in views())
    pairs = batch_pairs(torch.cat((first, second)), ids)
    return pairs.anchors, pairs.anchor_ids, pairs.positives, *pairs.keys()


def test_two_ranks_see_the_candidates_of_one(two_ranks: Ranks) -> None:
    first, second, ids = views()
    whole = batch_pairs(torch.cat((first, second)), ids)
    for rank, (anchors, anchor_ids, positives, candidates, candidate_ids) in enumerate(two_ranks(pairs_on_a_rank)):
        share = [2 * rank, 2 * rank + 1, 4 + 2 * rank, 5 + 2 * rank]
        assert torch.equal(anchors, whole.anchors[share])
        assert torch.equal(anchor_ids, whole.anchor_ids[share])
        torch.testing.assert_close(positives, whole.positives[share])
        assert torch.equal(candidates, whole.anchors)
        assert torch.equal(candidate_ids, whole.anchor_ids)
