"""The oracle: pairs enumerated by hand, everything flagged, two ranks, and its labels in the checkpoint."""

import pytest
import torch
from torch import Tensor

from antipodes import Oracle
from antipodes.pairs import Pairs

LABELS = torch.tensor([0, 0, 1, 1, 0, 2, -1, -1])


def decisions(pairs: Pairs, attract: bool = False) -> tuple[list[int], list[int]]:
    """How many candidates of every anchor are kept and pulled."""
    (rule,) = Oracle(LABELS).judge(pairs, 1.0)
    sums = pairs.contrast(1.0, rule.attract() if attract else rule)
    return sums.kept[0].tolist(), sums.pulled[0].tolist()


def test_pairs_of_a_batch_by_hand() -> None:
    ids = torch.tensor([0, 1, 2, 4, 6, 7])  # labels 0 0 1 0 and two unknown ones
    pairs = Pairs(torch.eye(12), ids.repeat(2), torch.zeros(12))
    kept = [6, 6, 10, 6, 10, 10]  # of ten views of other samples; two other samples share label 0
    assert decisions(pairs) == (kept * 2, [0] * 12)
    assert decisions(pairs, attract=True) == ([10] * 12, [4, 4, 0, 4, 0, 0] * 2)


def test_pairs_with_a_queue_by_hand() -> None:
    ids, keys = torch.tensor([0, 3, 6]), torch.tensor([1, -1, 0, 2, 7, 5, -1, 4])
    pairs = Pairs(torch.eye(8)[:3], ids, torch.zeros(3), torch.eye(8), keys)
    # of 1 0 2 7 5 4: anchor 0 loses itself, 1 and 4; anchor 3 (label 1) loses 2; anchor 6 is unknown, so is 7
    assert decisions(pairs) == ([3, 5, 6], [0, 0, 0])
    assert decisions(pairs, attract=True) == ([5, 6, 6], [2, 1, 0])


@pytest.mark.parametrize("labels", [torch.zeros(3), torch.zeros(3, 1, dtype=torch.int64), torch.tensor(1)])
def test_refuses_labels_of_another_kind(labels: Tensor) -> None:
    with pytest.raises(ValueError, match=r"labels must be whole numbers of shape \(n,\)"):
        Oracle(labels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_takes_any_whole_numbers(dtype: torch.dtype) -> None:
    assert Oracle(torch.tensor([1, 2], dtype=dtype)).labels.dtype == torch.int64


def test_the_labels_are_its_own_copy() -> None:
    """A dataset's labels that are edited later must not change the run."""
    labels = torch.tensor([0, 1, 2])
    policy = Oracle(labels)
    labels[0] = 9
    assert policy.labels.tolist() == [0, 1, 2]
