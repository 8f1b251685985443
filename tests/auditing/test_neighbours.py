from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from antipodes.auditing import neighbours
from antipodes.auditing.neighbours import nearest_large
from antipodes.functional.neighbours import nearest, nearest_of


def reference(vectors: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """All similarities at once, in float64, sorted."""
    similarity = normalize(vectors.double()) @ normalize(vectors.double()).T
    similarity.fill_diagonal_(-torch.inf)
    values, rows = similarity.sort(descending=True)
    k = min(k, len(vectors) - 1)
    return values[:, :k], rows[:, :k]


@pytest.mark.parametrize(
    ("n", "k", "block"), [(2, 1, 8), (50, 3, 8), (67, 5, 16), (40, 10, 7), (33, 60, 8), (20, 4, 64)]
)
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


def test_faiss_answers_for_large_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "LARGE", 100)
    vectors = torch.randn(400, 8, generator=torch.Generator().manual_seed(1)) + torch.eye(8).repeat(50, 1) * 8
    found = nearest_large(vectors, 3)
    assert not found.exact
    exact = nearest(vectors, 3)
    same = (found.rows[:, :, None] == exact.rows[:, None]).any(2).float().mean()
    assert same > 0.8
    assert (found.rows != torch.arange(400)[:, None]).all()


def test_what_cannot_be_searched() -> None:
    with pytest.raises(ValueError, match="at least two vectors"):
        nearest(torch.ones(1, 3), 1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        nearest(torch.ones(3, 3), 0)
    with pytest.raises(ValueError, match="embed both with one encoder"):
        nearest_of(torch.ones(1, 2), torch.ones(3, 3), 1)
