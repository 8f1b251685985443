"""The candidates of an anchor's own sample against a comparison of all pairs."""

from __future__ import annotations

from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipodes.functional import same_sample
from antipodes.functional.same_sample import SameSample

IDS = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 2**40, 2**62]), max_size=12)


@settings(max_examples=100, deadline=None)
@given(
    anchors=IDS,
    candidates=st.one_of(IDS, IDS.map(lambda ids: [-1, *ids])),
    start=st.integers(0, 12),
    few=st.sampled_from([0, 4096]),
)
def test_own_equals_a_comparison_of_all_pairs(anchors: list[int], candidates: list[int], start: int, few: int) -> None:
    """Whichever of both is sorted."""
    anchor_ids, candidate_ids = torch.tensor(anchors).long(), torch.tensor(candidates).long()
    same = anchor_ids[:, None] == candidate_ids
    own = SameSample(anchor_ids, candidate_ids)
    with patch.object(same_sample, "FEW_CANDIDATES", few):
        assert torch.equal(own.count, same.sum(1))
        assert own.number_of_pairs() == same.sum()
        for rows in (slice(None), slice(start, start + 4)):
            assert torch.equal(torch.stack(own.pairs(rows), 1), same[rows].nonzero())


def test_two_views_of_different_samples_are_found_without_looking() -> None:
    ids = torch.tensor([7, 3, 9]).repeat(2)
    known, found = SameSample(ids, views=2), SameSample(ids)
    for rows in (slice(None), slice(2, 5)):
        for ours, theirs in zip(known.pairs(rows), found.pairs(rows), strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(known.count, found.count)
    assert torch.equal(known.available, found.available)
    assert torch.equal(known.blank(torch.ones(6, 6)), found.blank(torch.ones(6, 6)))
