"""Ranks where pairs say what is right, against a search by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from antipodes.functional import feature_quality
from antipodes.functional.feature_quality import first_ranks, first_ranks_of_pairs


@pytest.mark.parametrize("block", [1, 50, 2**22])
def test_ranks_of_pairs_are_those_of_a_full_search(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_quality, "BLOCK_ELEMENTS", block)
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(17, 5, generator=draw), torch.randn(23, 5, generator=draw)
    relevant = torch.cat(
        (
            torch.stack((torch.arange(17), torch.randint(23, (17,), generator=draw)), 1),
            torch.stack((torch.randint(17, (30,), generator=draw), torch.randint(23, (30,), generator=draw)), 1),
        )
    )
    similarity = normalize(queries, dim=1) @ normalize(keys, dim=1).T
    expected = []
    for query in range(17):
        right = {int(key) for place, key in relevant.tolist() if place == query}
        best = max(float(similarity[query, key]) for key in right)
        expected.append(sum(float(similarity[query, key]) >= best for key in range(23) if key not in right))
    assert first_ranks_of_pairs(queries, keys, relevant).tolist() == expected
    groups = torch.arange(17)
    alone = torch.stack((groups, groups), 1)
    assert (
        first_ranks_of_pairs(queries, keys[:17], alone).tolist()
        == first_ranks(queries, keys[:17], groups, groups).tolist()
    )


def test_a_query_without_a_right_key_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 queries"):
        first_ranks_of_pairs(torch.eye(2), torch.eye(2), torch.tensor([[0, 1]]))
