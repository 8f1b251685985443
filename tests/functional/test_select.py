"""Row selections: by hand on a circle, against full sorts, and at their edges."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode

from antipodes.functional import select
from antipodes.functional.neighbours import nearest_of
from tests.cases import every
from tests.reference import select as reference


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1).float()


@pytest.fixture(autouse=True, params=[False, True], ids=["three blocks", "one block"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test, once with low blocks."""
    if not request.param:
        monkeypatch.setattr(select, "ROWS", 16)
        monkeypatch.setattr(select, "CELLS", 0)


def scene(seed: int, anchors: int = 70, candidates: int = 300, samples: int = 60) -> tuple[Tensor, ...]:
    """Anchors in several blocks, candidates of repeated ids and a tenth of empty slots."""
    generator = torch.Generator().manual_seed(seed)
    a, c = (normalize(torch.randn(n, 16, generator=generator), dim=1) for n in (anchors, candidates))
    anchor_ids = torch.randint(samples, (anchors,), generator=generator)
    candidate_ids = torch.randint(samples, (candidates,), generator=generator)
    candidate_ids[torch.rand(candidates, generator=generator) < 0.1] = -1
    return a, c, anchor_ids, candidate_ids


def selected(inputs: tuple[Tensor, ...], low: Tensor, high: Tensor) -> list[set[int]]:
    """What a kernel with other rounding (float64) takes between the bounds."""
    a, c, anchor_ids, candidate_ids = inputs
    s = a.double() @ c.double().T
    inside = (s >= low[:, None]) & (s <= high[:, None]) & (candidate_ids != -1)
    inside &= anchor_ids[:, None] != candidate_ids
    return [set(row.nonzero().flatten().tolist()) for row in inside]


# anchor at 0 degrees; most similar first: columns 4 (10), 1 (-20), 3 (40), 0 (60), 5 (90), 2 (180)
BY_HAND = (
    circle(0),
    circle(60, -20, 180, 40, 10, 90, 5, 1),
    torch.tensor([7]),
    torch.tensor([0, 1, 2, 3, 4, 5, 7, -1]),  # column 6 is the anchor's own id, column 7 an empty slot
)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def ring(*inputs: Any, inner: float, outer: float) -> tuple[Tensor, Tensor]:
    """Ring's bounds: the ranks [floor(inner * outer * N), floor(outer * N)) of every anchor's N candidates."""
    return select.band_by_rank(*inputs, float(inner * outer), float(outer))


def test_by_hand_on_a_circle() -> None:
    similar = [cosine(angle) for angle in (10, 20, 40, 60, 90, 180)]
    for k in range(1, 7):
        assert select.kth_largest(*BY_HAND, k).item() == pytest.approx(similar[k - 1], abs=1e-6)
    low, high = select.band_by_rank(*BY_HAND, 1, 4)
    assert high.item() == pytest.approx((similar[0] + similar[1]) / 2, abs=1e-6)
    assert low.item() == pytest.approx((similar[3] + similar[4]) / 2, abs=1e-6)
    # N = 6: ranks [floor(.5 * .7 * 6), floor(.7 * 6)) = [2, 4)
    assert selected(BY_HAND, *ring(*BY_HAND, inner=0.5, outer=0.7)) == [{3, 0}]
    # round(.4 * 6) = 2
    ceiling = select.top_share(*BY_HAND, 0.4)
    assert ceiling.item() == pytest.approx((similar[1] + similar[2]) / 2, abs=1e-6)


def test_ends_are_infinite_and_an_empty_range_selects_nothing() -> None:
    inf = math.inf
    assert [bound.item() for bound in select.band_by_rank(*BY_HAND, 0, 6)] == [-inf, inf]
    assert [bound.item() for bound in select.band_by_rank(*BY_HAND, 0, 99)] == [-inf, inf]
    for first, last in ((2, 2), (3, 1), (6, 9), (0, 0)):
        assert [bound.item() for bound in select.band_by_rank(*BY_HAND, first, last)] == [inf, -inf]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    anchors=st.integers(1, 70),
    candidates=st.integers(0, 40),
    samples=st.integers(1, 30),
    inner=st.floats(0, 0.99),
    outer=st.floats(0.01, 1),
)
def test_bounds_select_exactly_what_a_sort_selects(
    seed: int, anchors: int, candidates: int, samples: int, inner: float, outer: float
) -> None:
    a, c, *ids = scene(seed, anchors, candidates, samples)
    inputs = (a.double(), c.double(), *ids)  # near ties are no matter of chance here
    ranked = reference.ranking(*inputs)
    assert selected(inputs, *ring(*inputs, inner=inner, outer=outer)) == reference.ring(ranked, inner, outer)
    ceiling = select.top_share(*inputs, outer)
    above = torch.nextafter(ceiling, torch.full_like(ceiling, math.inf))
    assert selected(inputs, above, torch.full_like(above, math.inf)) == reference.top_share(ranked, outer)
    rows, columns = select.top_pairs(*inputs, outer)
    assert [set(columns[rows == i].tolist()) for i in range(len(above))] == reference.top_share(ranked, outer)
    first = torch.arange(anchors) % 7
    last = first + torch.arange(anchors) % 5
    expected = [set(row[f:t]) for row, f, t in zip(ranked, first.tolist(), last.tolist(), strict=True)]
    assert selected(inputs, *select.band_by_rank(*inputs, first, last)) == expected


def test_a_queue_in_float32_gives_the_entries_of_torch_sort() -> None:
    inputs = scene(13, anchors=80, candidates=20_000, samples=5_000)
    a, c, anchor_ids, candidate_ids = inputs
    s = a.double() @ c.double().T
    s[(anchor_ids[:, None] == candidate_ids) | (candidate_ids == -1)] = -math.inf
    order = s.sort(dim=1, descending=True).indices
    low, high = ring(*inputs, inner=0.1, outer=0.1)
    for i, chosen in enumerate(selected(inputs, low, high)):
        n = int((s[i] > -math.inf).sum())
        assert chosen == set(order[i, math.floor(0.1 * 0.1 * n) : math.floor(0.1 * n)].tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kth_largest_and_nearest_vectors_match_the_sort(dtype: torch.dtype) -> None:
    a, c, anchor_ids, candidate_ids = scene(3)
    inputs = (a.to(dtype), c.to(dtype), anchor_ids, candidate_ids)
    ranked = reference.ranking(*inputs)
    filled = (candidate_ids >= 0).nonzero().squeeze(1)
    values, columns, _ = nearest_of(inputs[0], inputs[1][filled], 285, anchor_ids, candidate_ids[filled])
    columns = torch.where(columns < 0, -1, filled[columns])
    assert values.dtype == dtype
    s = inputs[0] @ inputs[1].T
    k = torch.arange(len(a)) * 5 + 1  # up to 346: some anchors have fewer
    kth = select.kth_largest(*inputs, k)
    for i, row in enumerate(ranked):
        assert columns[i].tolist() == row + [-1] * (columns.shape[1] - len(row))
        assert torch.allclose(values[i, : len(row)], s[i, row], atol=1e-6), "values belong to their columns"
        assert bool((values[i, len(row) :] == -math.inf).all())
        expected = float(s[i, row[k[i] - 1]]) if k[i] <= len(row) else -math.inf
        assert kth[i].item() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), width=st.integers(1, 30))
def test_partition_and_top_k_find_the_same_edges(seed: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    similarities = torch.randn(5, width, generator=generator)
    last = torch.randint(1, width + 1, (5, 1), generator=generator)
    ranks = torch.cat([last, last // 2], dim=1)  # falling, and 0 where last is 1
    by_top_k = select._edges_by_top_k(similarities, ranks)
    by_partition = select._edges_by_partition(similarities.clone(), ranks)
    assert all(torch.equal(one, other) for one, other in zip(by_top_k, by_partition, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3).flatmap(
        lambda width: st.lists(
            st.lists(
                st.sampled_from([-math.inf, -1.0, -0.5, -1e-30, -0.0, 0.0, 1e-30, 0.25, 1.0]),
                min_size=4 * width,
                max_size=4 * width,
            ),
            min_size=1,
            max_size=4,
        )
    ),
    place=st.integers(0, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_partitions_put_a_sorts_value_in_its_place(rows: list[list[float]], place: int, dtype: type) -> None:
    """By integers where the value is not negative, by floats elsewhere."""
    values = np.array(rows, dtype=dtype)
    ranked = np.sort(values, axis=1)
    select.partition(values, place)
    assert np.array_equal(values[:, place], ranked[:, place])
    assert np.array_equal(np.sort(values, axis=1), ranked), "nothing is lost"
    assert (values[:, :place] <= values[:, place, None]).all()
    assert (values[:, place:] >= values[:, place, None]).all()


def test_a_tie_across_an_edge_is_selected_as_a_whole() -> None:
    inputs = (circle(0), circle(30, 30, 30, 90, 120), torch.tensor([9]), torch.arange(5))
    assert selected(inputs, *(b.float() for b in select.band_by_rank(*inputs, 0, 4))) == [{0, 1, 2, 3}]
    s = inputs[0] @ inputs[1].T
    low, high = select.band_by_rank(*inputs, 1, 2)
    assert ((s >= low) & (s <= high)).tolist() == [[True, True, True, False, False]]
    assert (s > select.top_share(*inputs, 0.2)).tolist() == [[True, True, True, False, False]]


def test_neighbouring_floats_are_still_separated() -> None:
    one = torch.tensor(1.0)
    steps = [one]
    for _ in range(4):
        steps.append(torch.nextafter(steps[-1], torch.tensor(0.0)))
    inputs = (torch.ones(1, 1), torch.stack(steps)[:, None], torch.tensor([9]), torch.arange(5))
    s = inputs[0] @ inputs[1].T
    for first in range(5):
        for last in range(first + 1, 6):
            low, high = select.band_by_rank(*inputs, first, last)
            assert ((s >= low) & (s <= high)).nonzero()[:, 1].tolist() == list(range(first, last))
    for k in range(1, 6):
        assert int((s > select.top_share(*inputs, k / 5)).sum()) == k


class Largest(TorchDispatchMode):
    """Remember the number of entries of the largest tensor that any operation returned."""

    entries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            self.entries = max(self.entries, tensor.numel() if isinstance(tensor, Tensor) else 0)
        return result


def test_nothing_is_larger_than_a_block_even_when_all_ids_are_equal() -> None:
    a, c, anchor_ids, candidate_ids = scene(14, anchors=600, candidates=500)
    for ids in (anchor_ids, torch.full_like(anchor_ids, int(candidate_ids.max()))):
        others = torch.full_like(candidate_ids, int(ids[0])) if ids is not anchor_ids else candidate_ids
        with Largest() as largest:
            ring(a, c, ids, others, inner=0.1, outer=0.5)
        assert largest.entries <= max(2 * select.ROWS * 500, select.CELLS)


@every("case", ["no candidates", "empty slots only", "all the same id"])
def test_anchors_without_candidates(case: str) -> None:
    a, c, anchor_ids, candidate_ids = scene(9)
    if case == "no candidates":
        c, candidate_ids = c[:0], candidate_ids[:0]
    elif case == "empty slots only":
        c, candidate_ids = c * math.nan, torch.full_like(candidate_ids, -1)  # what is in a slot does not matter
    else:
        anchor_ids, candidate_ids = torch.zeros_like(anchor_ids), torch.zeros_like(candidate_ids)
    inputs = (a, c, anchor_ids, candidate_ids)
    inf = torch.full((70,), math.inf)
    assert torch.equal(select.kth_largest(*inputs, 1), -inf)
    for low, high in (select.band_by_rank(*inputs, 0, 5), ring(*inputs, inner=0.1, outer=1.0)):
        assert torch.equal(low, inf)
        assert torch.equal(high, -inf)
    assert torch.equal(select.top_share(*inputs, 0.1), inf)
    assert all(not len(part) for part in select.top_pairs(*inputs, 0.1))


def test_no_anchors() -> None:
    a, c, anchor_ids, candidate_ids = scene(10)
    inputs = (a[:0], c, anchor_ids[:0], candidate_ids)
    assert select.kth_largest(*inputs, 1).shape == (0,)
    assert all(bound.shape == (0,) for bound in ring(*inputs, inner=0.1, outer=0.5))


def test_half_precision_is_selected_in_float32_and_nothing_has_a_gradient() -> None:
    a, c, anchor_ids, candidate_ids = scene(11)
    inputs = (a.bfloat16().requires_grad_(), c.requires_grad_(), anchor_ids, candidate_ids)
    low, high = ring(*inputs, inner=0.1, outer=0.5)
    assert low.dtype == high.dtype == torch.float32
    assert not low.requires_grad
    assert not nearest_of(*inputs[:2], 3, *inputs[2:])[0].requires_grad


def test_refusals() -> None:
    a, c, anchor_ids, candidate_ids = inputs = scene(12)
    broken = c.clone()
    broken[(candidate_ids != -1).nonzero()[5], 3] = math.nan
    refused = [
        ("candidates hold NaN or infinite numbers", lambda: ring(a, broken, *inputs[2:], inner=0.1, outer=0.5)),
        ("anchors hold NaN or infinite numbers", lambda: select.kth_largest(a * math.inf, *inputs[1:], 1)),
        ("matrices of one width", lambda: select.kth_largest(a[:, :3], *inputs[1:], 1)),
        ("needs one id", lambda: select.kth_largest(a, c, anchor_ids[:3], candidate_ids, 1)),
        ("k must be at least 1, got 0", lambda: select.kth_largest(*inputs, torch.arange(70))),
        ("k must be one integer, or one per anchor", lambda: select.kth_largest(*inputs, torch.arange(3))),
        ("first must not be negative", lambda: select.band_by_rank(*inputs, -1, 5)),
        ("last must be in \\[0, 1\\] as a share", lambda: select.band_by_rank(*inputs, 0, 1.5)),
        ("alpha must be in", lambda: select.top_share(*inputs, 1.5)),
        ("alpha must be in", lambda: select.top_pairs(*inputs, 0)),
    ]
    for message, call in refused:
        with pytest.raises(ValueError, match=message):
            call()
