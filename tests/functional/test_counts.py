"""How many candidates exceed a threshold: every path against plain loops."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from antipodes.functional.checks import Extent
from antipodes.functional.contrast import contrast, count_above
from tests.cases import every


def scene(symmetric: bool) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    anchors = normalize(torch.randn(30, 6, generator=generator, dtype=torch.float64), dim=1)
    if symmetric:
        return anchors, None, torch.arange(15).repeat(2), None
    candidates = normalize(torch.randn(50, 6, generator=generator, dtype=torch.float64), dim=1)
    return anchors, candidates, torch.arange(30), torch.randint(-3, 30, (50,), generator=generator)


@every("symmetric", [True, False])
@every("block", [7, None])
@every("dtype", [torch.float64, torch.float32])
def test_counts_equal_loops(symmetric: bool, block: int | None, dtype: torch.dtype) -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene(symmetric)
    generator = torch.Generator().manual_seed(1)
    thresholds = 2 * torch.rand(30, generator=generator, dtype=torch.float64) - 1
    thresholds[:3] = torch.tensor([1.0, -1.0, 2.0])
    keys, key_ids = (
        (anchors, anchor_ids) if candidates is None or candidate_ids is None else (candidates, candidate_ids)
    )
    expected = []
    for i in range(30):
        others = [k for k in range(len(keys)) if key_ids[k] >= 0 and key_ids[k] != anchor_ids[i]]
        expected.append(sum(float(anchors[i] @ keys[k]) > float(thresholds[i]) for k in others))
    found = count_above(
        anchors.to(dtype),
        None if candidates is None else candidates.to(dtype),
        thresholds.to(dtype),
        anchor_ids=anchor_ids,
        candidate_ids=candidate_ids,
        block=block,
    )
    assert found.tolist() == expected


def test_what_the_caller_knows_changes_nothing() -> None:
    anchors, candidates, anchor_ids, candidate_ids = scene(False)
    assert candidates is not None
    assert candidate_ids is not None
    ids = {"anchor_ids": anchor_ids, "candidate_ids": candidate_ids}
    numbers = Extent.numbers(anchors, candidates, anchor_ids, candidate_ids)
    extent, product = Extent(*(float(each) for each in numbers)), anchors @ candidates.T
    known = {"extent": extent, "product": product}
    thresholds = torch.full((30,), 0.1, dtype=torch.float64)
    plain = count_above(anchors, candidates, thresholds, **ids)
    assert torch.equal(plain, count_above(anchors, candidates, thresholds, **ids, extent=extent))
    assert torch.equal(plain, count_above(anchors, candidates, thresholds, **ids, product=product))
    gradients = []
    for more in ({}, known):
        leaf = anchors.clone().requires_grad_()
        contrast(leaf, candidates, **ids, temperature=0.1, **more).log_sum.sum().backward()
        gradients.append(leaf.grad)
    assert gradients[0] is not None
    torch.testing.assert_close(gradients[0], gradients[1])
