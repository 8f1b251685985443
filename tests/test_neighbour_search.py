from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from antipodes import DatasetNeighbours, neighbour_search
from antipodes.functional import neighbours
from antipodes.functional.neighbours import nearest, nearest_of
from antipodes.neighbour_search import RECALL, Search, nearest_others
from tests.cases import every
from tests.ranks import Ranks


def reference(vectors: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All similarities at once, in float64, sorted."""
    similarity = normalize(vectors.double()) @ normalize(vectors.double()).T
    similarity.fill_diagonal_(-torch.inf)
    values, rows = similarity.sort(descending=True)
    k = min(k, len(vectors) - 1)
    return values[:, :k], rows[:, :k]


@every(("n", "k", "block"), [(2, 1, 8), (50, 3, 8), (67, 5, 16), (40, 10, 7), (33, 60, 8), (20, 4, 64)])
def test_blocks_find_what_a_full_sort_finds(n: int, k: int, block: int) -> None:
    vectors = torch.randn(n, 6, generator=torch.Generator().manual_seed(n))
    found = nearest(vectors, k, block=block)
    values, rows = reference(vectors, k)
    assert found.exact
    assert torch.equal(found.rows, rows)
    torch.testing.assert_close(found.similarities.double(), values, atol=1e-6, rtol=0)


def test_sorted_clusters_and_copies() -> None:
    centres = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    vectors = centres.repeat_interleave(9, 0)  # nine equal vectors in a row, blocks cut through them
    found = nearest(vectors, 8, block=7)
    assert (found.rows // 9 == torch.arange(45)[:, None] // 9).all()
    assert all(len(set(row)) == 8 and number not in row for number, row in enumerate(found.rows.tolist()))


def test_zero_vectors_are_like_nothing() -> None:
    vectors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1]])
    assert nearest(vectors, 2).similarities[0].tolist() == [0.0, 0.0]


def test_queries_leave_themselves_out() -> None:
    vectors = torch.randn(30, 5, generator=torch.Generator().manual_seed(3))
    own = torch.tensor([4, 17, 29])
    found, everywhere = nearest_of(vectors[own], vectors, 4, own), nearest(vectors, 4)
    assert torch.equal(found.rows, everywhere.rows[own])
    assert nearest_of(vectors[own], vectors, 1).rows[:, 0].tolist() == own.tolist()


def test_blocks_of_vectors_give_what_one_block_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.randn(50, 6, generator=torch.Generator().manual_seed(4))
    own, ids = torch.arange(40) // 2, torch.arange(50) // 2
    whole = nearest_of(vectors[:40], vectors, 9, own, ids)
    monkeypatch.setattr(neighbours, "WIDE", 7)  # fewer than k: the first blocks alone do not have enough
    monkeypatch.setattr(neighbours, "CELLS", 21)
    cut = nearest_of(vectors[:40], vectors, 9, own, ids)
    assert torch.equal(cut.rows, whole.rows)
    torch.testing.assert_close(cut.similarities, whole.similarities, atol=1e-6, rtol=0)
    assert (cut.rows // 2 != own[:, None]).all()
    with pytest.raises(ValueError, match="NaN or infinite"):
        nearest_of(vectors[:3], vectors.index_fill(0, torch.tensor([30]), torch.nan), 2)


def clustered(count: int) -> torch.Tensor:
    """Vectors near a surface of five dimensions, as embeddings are."""
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(count, 5, generator=generator)
    return latent @ torch.randn(5, 24, generator=generator) + 0.1 * torch.randn(count, 24, generator=generator)


def recall(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found[:, :, None] == expected[:, None]).any(2).float().mean())


@pytest.mark.parametrize("faiss", [False, True])
def test_an_inverted_file_finds_what_it_says(monkeypatch: pytest.MonkeyPatch, faiss: bool) -> None:
    if faiss:
        pytest.importorskip("faiss")
    else:
        monkeypatch.setattr(neighbour_search, "_faiss", lambda: None)
    monkeypatch.setattr(neighbour_search, "LARGE", 100)
    vectors = clustered(3_000)
    found, exact = nearest_others(vectors, 5), nearest(vectors, 5)
    assert RECALL <= found.recall < 1
    assert recall(found.rows, exact.rows) == pytest.approx(found.recall, abs=0.02)
    assert (found.rows != torch.arange(3_000)[:, None]).all()
    torch.testing.assert_close(found.similarities[:, 0], exact.similarities[:, 0], atol=0.05, rtol=0)
    search = Search(vectors)
    assert f"recall {search.recall:.3f}" in search.method
    few = search(vectors[:3] + 0.01, 2)
    assert few.rows[:, 0].tolist() == [0, 1, 2]


def test_numbers_that_several_vectors_have_are_left_out() -> None:
    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.1], [1.0, 0.2], [0.0, 1.0]])
    found = Search(vectors, torch.tensor([7, 7, 3, 3]))(vectors, 3, torch.tensor([7, 7, 3, 3]))
    assert found.rows.tolist() == [[2, 3, -1], [2, 3, -1], [1, 0, -1], [1, 0, -1]]
    assert found.similarities[0, 2] == -torch.inf


def search_on_a_rank(this: int, world: int, large: int) -> tuple[torch.Tensor, str]:
    """The neighbours of all samples, of which each rank holds a share."""
    before, neighbour_search.LARGE = neighbour_search.LARGE, large
    policy = DatasetNeighbours(2_000, k=4)
    policy.fit(clustered(2_000)[2_000 * this // world : 2_000 * (this + 1) // world])
    neighbour_search.LARGE = before
    return policy.table, policy.search


@pytest.mark.parametrize("large", [100, 10_000])
def test_two_ranks_share_the_search(two_ranks: Ranks, large: int) -> None:
    exact = nearest(clustered(2_000), 4).rows
    (first, method), (second, same) = two_ranks(search_on_a_rank, large)
    assert torch.equal(first, second)
    assert method == same
    if large > 2_000:
        assert torch.equal(first.long(), exact)
        assert method == "exact"
    else:
        assert recall(first, exact) > RECALL - 0.02


def test_what_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="at least two vectors"):
        nearest(torch.ones(1, 3), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        nearest(torch.ones(3, 3), 0)
    with pytest.raises(ValueError, match="embed both with one encoder"):
        nearest_of(torch.ones(1, 2), torch.ones(3, 3), 1)
