"""Shares of candidates as whole numbers of them."""

from __future__ import annotations

from fractions import Fraction

import torch

from antipodes.functional.select import whole_above, whole_below
from tests.cases import every


@every("count", [1, 10, 30, 99, 100, 1024, 65_536, 1_281_167])
def test_percentages_are_what_fractions_say(count: int) -> None:
    for percent in range(101):
        exact = Fraction(percent, 100) * count
        whole = torch.tensor([count])
        assert int(whole_below(percent / 100, whole)) == exact // 1
        assert int(whole_above(percent / 100, whole)) == -(-exact // 1)


def test_a_share_that_a_schedule_rounded_counts_as_it_was_meant() -> None:
    assert whole_below(1 - 0.9 * 0.6 - 1e-15, torch.tensor([100])).tolist() == [46]
    assert whole_below(0.45, torch.tensor([100, 99])).tolist() == [45, 44]
