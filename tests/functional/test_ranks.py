"""Rules that go by ranks alone, as of a queue: loops, ties, low temperatures, memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.functional import same_sample, select
from antipodes.functional.contrast import contrast
from antipodes.functional.rule import Ranks, Rule
from antipodes.functional.select import bounded
from tests.cases import every
from tests.functional.test_select import Largest
from tests.reference import contrast as reference


def scene(anchors: int = 70, candidates: int = 150, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    """Candidates of repeated ids, some of them the anchors' own, and empty slots."""
    generator = torch.Generator().manual_seed(0)
    a, c = (normalize(torch.randn(n, 8, generator=generator, dtype=dtype), dim=1) for n in (anchors, candidates))
    ids = torch.randint(-1, 2 * anchors, (candidates,), generator=generator)
    return a, c, torch.arange(anchors), ids


def sums_of(
    inputs: tuple[Tensor, ...], first: int | Tensor, last: int | Tensor, temperature: float = 0.2
) -> tuple[Tensor, ...]:
    """Log sums, counts and the anchors' gradient."""
    a, c, anchor_ids, candidate_ids = inputs
    a = a.clone().requires_grad_()
    rule = Rule(ranks=(Ranks(*(torch.zeros_like(anchor_ids) + place for place in (first, last))),))
    sums = contrast(a, c, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=temperature, rules=rule)
    sums.log_sum.masked_fill(sums.kept == 0, 0.0).mul(torch.linspace(-1, 2, len(a)).to(a)).sum().backward()
    assert a.grad is not None
    return sums.log_sum, sums.kept, a.grad


@every(("first", "last"), [(0, 10**6), (0, 30), (5, 40), (100, 10**6), (7, 7), (9, 3)])
def test_sums_equal_the_reference(first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "ROWS", 16)
    inputs = scene()
    log_sum, kept, gradient = sums_of(inputs, first, last)
    a, c, anchor_ids, candidate_ids = inputs
    a = a.clone().requires_grad_()
    rule = Rule(ranks=(Ranks(torch.full((70,), first), torch.full((70,), last)),))
    expected = reference.contrast(
        a, c, anchor_ids=anchor_ids, candidate_ids=candidate_ids, temperature=0.2, rules=[rule]
    )
    assert torch.equal(kept, expected.kept)
    torch.testing.assert_close(log_sum, expected.log_sum)
    total = (expected.log_sum.masked_fill(expected.kept == 0, 0.0) * torch.linspace(-1, 2, 70).double()).sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(total + 0 * a.sum(), a)[0])


def test_a_float_is_a_share_of_the_candidates() -> None:
    inputs = scene()
    anchors, candidates, anchor_ids, candidate_ids = inputs
    count = torch.tensor([int(((candidate_ids >= 0) & (candidate_ids != own)).sum()) for own in range(len(anchors))])
    first, last = (0.1 * count.double()).floor().long(), (0.55 * count.double()).floor().long()
    shares, numbers = Rule(ranks=(Ranks(0.1, 0.55),)), Rule(ranks=(Ranks(first, last),))
    single, all_of_them = Rule(ranks=(Ranks(0, 1),)), Rule(ranks=(Ranks(0.0, 1.0),))
    ids = {"anchor_ids": anchor_ids, "candidate_ids": candidate_ids, "temperature": 0.2}
    for one, other in ((shares, numbers), (shares & Rule(ceiling=count * 0.0), numbers & Rule(ceiling=count * 0.0))):
        ours, theirs = (contrast(anchors, candidates, rules=rule, **ids) for rule in (one, other))
        assert torch.equal(ours.kept, theirs.kept)
        assert torch.equal(ours.log_sum, theirs.log_sum)
    assert torch.equal(contrast(anchors, candidates, rules=shares, **ids).kept[0], last - first)
    assert torch.equal(contrast(anchors, candidates, rules=single, **ids).kept[0], torch.ones_like(count))
    assert torch.equal(contrast(anchors, candidates, rules=all_of_them, **ids).kept[0], count)


def test_a_tie_across_the_edge_is_taken_as_a_whole() -> None:
    degrees = torch.tensor([10.0, 20.0, 20.0, 20.0, 50.0]).deg2rad()
    c = torch.stack([degrees.cos(), degrees.sin()], 1)
    inputs = (torch.tensor([[1.0, 0.0]]), c, torch.tensor([9]), torch.arange(5))
    for first, last, expected in ((0, 2, 4), (2, 5, 4), (2, 3, 3), (0, 1, 1), (4, 5, 1)):
        log_sum, kept, _ = sums_of(inputs, first, last)
        assert kept.item() == expected
        assert log_sum.exp().item() > 0


def test_close_similarities_are_ranked_as_they_are_summed() -> None:
    """Of 20,000 neighbours some differ by less than a product's rounding; only one at either end may be mistaken."""
    inputs = scene(64, 20_000, dtype=torch.float32)
    count = torch.tensor([int(((inputs[3] >= 0) & (inputs[3] != own)).sum()) for own in range(64)])
    for last, expected in ((2000, torch.full((64,), 1800)), (count, count - 200)):
        off = (sums_of(inputs, 200, last)[1][0] - expected).abs()
        assert int(off.max()) <= 2
        assert int(off.count_nonzero()) <= 6


def test_low_temperatures_and_half_precision() -> None:
    inputs = scene()
    single = tuple(x.float() if x.is_floating_point() else x for x in inputs)
    for temperature in (0.2, 0.01, 0.004):
        log_sum, _, gradient = sums_of(inputs, 5, 60, temperature)
        ours, _, ours_gradient = sums_of(single, 5, 60, temperature)
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), log_sum, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(ours_gradient.double(), gradient, rtol=1e-3, atol=1e-3)
    half = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    assert sums_of(half, 5, 60)[0].dtype == torch.float32


def test_blocks_do_not_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "ROWS", 16)
    monkeypatch.setattr(select, "CELLS", 0)
    monkeypatch.setattr(same_sample, "FEW_PAIRS", 0)
    a, c, anchor_ids, candidate_ids = (x.float() if x.is_floating_point() else x for x in scene())
    choice = select.RowBlocks(a, c, anchor_ids, candidate_ids)
    for _, similarities in choice.blocks():
        before = similarities.clone()
        for _, inside in choice.blocks():
            inside.zero_()
        assert torch.equal(similarities, before)
    with Largest() as largest:
        bounded([Rule(ranks=(Ranks(3, 20),))], a, c, anchor_ids, candidate_ids)
    assert largest.entries <= 32 * len(c)


def test_wrong_ranks_get_one_sentence() -> None:
    a, c, anchor_ids, candidate_ids = scene()
    for wrong, sentence in (
        (Ranks(anchor_ids[:3], anchor_ids[:3]), "Ranks.first must be one integer, or one per anchor"),
        (Ranks(anchor_ids, anchor_ids.double()), "Ranks.last must be one integer, or one per anchor"),
        (Ranks(anchor_ids - 1, anchor_ids), "first must not be negative"),
        (Ranks(-1, 5), "first must not be negative"),
        (Ranks(0.1, 1.1), "Ranks.last must be in \\[0, 1\\] as a share of the candidates, got 1.1"),
    ):
        for symmetric in (True, False):
            others = {} if symmetric else {"candidates": c, "candidate_ids": candidate_ids}
            with pytest.raises(ValueError, match=sentence):
                contrast(a, anchor_ids=anchor_ids, temperature=0.2, rules=Rule(ranks=(wrong,)), **others)
    with pytest.raises(ValueError, match="NaN or infinite"):
        sums_of((a, c * torch.nan, anchor_ids, candidate_ids.abs()), 0, 5)
    with pytest.raises(ValueError, match="must be \\(A, D\\) and \\(C, D\\)"):
        sums_of((a, c[:, :3], anchor_ids, candidate_ids), 0, 5)
    with pytest.raises(ValueError, match="temperature must be positive"):
        sums_of((a, c, anchor_ids, candidate_ids), 0, 5, temperature=0.0)
