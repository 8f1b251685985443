from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.background import measure_background
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import (
    EXACT,
    FALSE_NEGATIVE,
    NEAR,
    OTHER_CLASS,
    OUTLIER,
    AuditOptions,
    Findings,
    audit_vectors,
)
from antipodes.auditing.groups import join, listed_pairs, pairs_within
from antipodes.auditing.keep import keep_table
from antipodes.auditing.summary import numbers_of


def named(vectors: np.ndarray, labels: np.ndarray | None = None) -> Vectors:
    return Vectors(vectors.astype(np.float32), tuple(f"{i}.jpg" for i in range(len(vectors))), labels)


def data(vectors: Vectors) -> AuditedData:
    return AuditedData(vectors=vectors, encoder="given")


def summarise(audited: AuditedData, findings: Findings, batch_size: int) -> dict[str, Any]:
    keep = keep_table(audited, findings)
    return {number.name: number.value for number in numbers_of(audited, findings, keep, batch_size)}


def strangers(n: int = 200, width: int = 64, collapse: float = 0.0) -> np.ndarray:
    """Random directions, all leaning to one side where there is a cone."""
    return np.random.default_rng(0).normal(size=(n, width)) + collapse


@pytest.mark.parametrize("collapse", [0.0, 2.0])
def test_each_kind_is_found_in_a_cone_too(collapse: float) -> None:
    vectors = strangers(collapse=collapse)
    noise = np.random.default_rng(1).normal(size=(2, 64))
    vectors[11] = vectors[10]  # the same
    vectors[21] = vectors[20] + 0.1 * noise[0]  # nearly
    vectors[31] = vectors[30] + 0.9 * noise[1]  # alike
    findings = audit_vectors(named(vectors))
    found = {(pair.a, pair.b): pair for pair in findings.pairs}
    assert {pair: found[pair].kind for pair in [(10, 11), (20, 21), (30, 31)]} == {
        (10, 11): EXACT,
        (20, 21): NEAR,
        (30, 31): FALSE_NEGATIVE,
    }
    assert all(pair.similarity >= pair.threshold for pair in found.values() if pair.kind != EXACT)
    assert len(found) <= 6  # of 200 strangers hardly any pair exceeds both thresholds
    assert [row for row in range(200) if findings.groups[row] >= 0] == [10, 11, 20, 21]
    assert findings.groups[10] == findings.groups[11] != findings.groups[20]


def test_thresholds_are_quantiles_with_alpha() -> None:
    vectors = torch.from_numpy(strangers(300, 8)).float()
    background = measure_background(vectors, alpha=0.1)
    unit = torch.nn.functional.normalize(vectors)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-1)
    share = (similarity > background.threshold[:, None]).sum(1) / 299
    torch.testing.assert_close(share, torch.full((300,), 0.1), atol=0.005, rtol=0)


def test_the_background_by_hand() -> None:
    angles = torch.tensor([0.0, 60.0, 90.0]).deg2rad()
    background = measure_background(torch.stack([angles.cos(), angles.sin()], 1))
    cosine = np.cos(np.deg2rad([[60, 90], [60, 30], [90, 30]]))
    np.testing.assert_allclose(background.mean, cosine.mean(1), atol=1e-6)
    np.testing.assert_allclose(background.deviation, cosine.std(1), atol=1e-6)
    assert background.closeness(torch.tensor([1.0]), torch.tensor([0])).tolist() == [1.0]


def test_learned_thresholds_take_the_place_of_estimated_ones() -> None:
    vectors = strangers()
    vectors[31] = vectors[30] + 0.9 * vectors[1]
    assert audit_vectors(named(vectors)).count(FALSE_NEGATIVE) > 0
    assert audit_vectors(named(vectors), thresholds=torch.ones(200)).count(FALSE_NEGATIVE) == 0


def test_pixels_decide_where_they_are_looked_at() -> None:
    vectors = strangers()
    vectors[21] = vectors[20] + 0.1 * strangers()[5]
    vectors[41] = vectors[40] + 0.1 * strangers()[6]
    asked: list[tuple[int, int]] = []

    def verify(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        asked.extend(zip(first.tolist(), second.tolist(), strict=True))
        return first == 20

    findings = audit_vectors(named(vectors), copies=[], verify=verify, candidate=0.6)
    assert {(20, 21), (40, 41)} <= set(asked)
    assert len(asked) < 200
    assert [(pair.a, pair.kind) for pair in findings.pairs if pair.a in (20, 40)] == [(20, NEAR), (40, FALSE_NEGATIVE)]


def test_pixels_decide_about_proposals_of_others() -> None:
    vectors = strangers()
    vectors[31] = vectors[30] + 0.1 * strangers()[5]
    asked: list[tuple[int, int]] = []

    def verify(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        asked.extend(zip(first.tolist(), second.tolist(), strict=True))
        return first == 3

    proposed = torch.tensor([[90, 3], [3, 90], [7, 60], [30, 31]])
    alone = audit_vectors(named(vectors), copies=[], verify=verify)
    assert (3, 90) not in asked
    asked.clear()
    findings = audit_vectors(named(vectors), copies=[], verify=verify, proposed=proposed)
    assert {(3, 90), (7, 60), (30, 31)} <= set(asked)
    assert len(asked) == len(set(asked))
    added = set(findings.pairs) - set(alone.pairs)
    expected = float(torch.cosine_similarity(*torch.from_numpy(vectors[[3, 90]]), dim=0))
    assert [(pair.a, pair.b, pair.kind) for pair in added] == [(3, 90, NEAR)]
    assert added.pop().similarity == pytest.approx(expected, abs=1e-6)
    assert findings.groups[3] == findings.groups[90] >= 0 > findings.groups[7]
    nothing = torch.zeros(0, 2, dtype=torch.int64)
    again = audit_vectors(named(vectors), copies=[], verify=verify, proposed=nothing)
    assert list(again.pairs) == list(alone.pairs)


def test_outliers_and_samples_of_another_class() -> None:
    rng = np.random.default_rng(2)
    centres = np.eye(4, 32) * 12
    labels = np.repeat(np.arange(4), 25)
    vectors = centres[labels] + rng.normal(size=(100, 32))
    vectors[7] = -12 * np.eye(32)[20]  # nowhere near the others
    labels[30] = 3  # looks like class 1
    findings = audit_vectors(named(vectors, labels))
    notices = {(notice.row, notice.kind): notice for notice in findings.notices}
    assert (7, OUTLIER) in notices
    assert notices[30, OTHER_CLASS].suggestion == 1
    assert {row for row, kind in notices if kind == OTHER_CLASS} <= {7, 30}


def test_a_batch_pushes_so_many_pairs_apart() -> None:
    vectors = strangers(50)
    vectors[1] = vectors[2] = vectors[0]  # three pairs
    embeddings = named(vectors)
    summary = summarise(data(embeddings), audit_vectors(embeddings, AuditOptions(alpha=1e-6)), batch_size=10)
    assert summary["could be left out"] == 2
    rng = np.random.default_rng(0)
    drawn = [(rng.choice(50, 10, replace=False) < 3).sum() for _ in range(4000)]
    expected = np.mean([count * (count - 1) / 2 for count in drawn])
    assert summary["duplicate pairs pushed apart per batch"] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("n", [2, 3])
def test_the_smallest_sets(n: int) -> None:
    embeddings = named(strangers(n))
    assert summarise(data(embeddings), audit_vectors(embeddings), 256)["samples"] == n


def test_all_alike_and_all_zero() -> None:
    for vectors in (np.ones((20, 4)), np.zeros((20, 4))):
        embeddings = named(vectors)
        findings = audit_vectors(embeddings)
        summary = summarise(data(embeddings), findings, 8)
        assert all(np.isfinite(pair.similarity) for pair in findings.pairs)
        assert summary["exact duplicate pairs"] == (20 * 19 // 2 if vectors.any() else 0)


def test_every_pair_of_three_copies_is_an_exact_duplicate() -> None:
    vectors = strangers(50)
    vectors[9] = vectors[4] = vectors[2]
    asked: list[tuple[int, int]] = []

    def verify(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        asked.extend(zip(first.tolist(), second.tolist(), strict=True))
        return np.ones(len(first), dtype=bool)

    for findings in (
        audit_vectors(named(vectors)),
        audit_vectors(named(vectors), copies=[(2, 4), (2, 9)], verify=verify),
    ):
        kinds = {(pair.a, pair.b): pair.kind for pair in findings.pairs if pair.a in (2, 4) and pair.b in (4, 9)}
        assert kinds == {(2, 4): EXACT, (2, 9): EXACT, (4, 9): EXACT}
    assert not {(2, 4), (2, 9), (4, 9)} & set(asked)  # equal files need no look at their pixels


def test_large_groups_are_listed_by_their_first_sample() -> None:
    groups = np.array([-1, *[0] * 60, 1, 1])
    assert listed_pairs(groups) == [*((1, other) for other in range(2, 61)), (61, 62)]


def test_joined_groups_count_pairs() -> None:
    groups = join(7, [(0, 3), (3, 6), (1, 2)])
    assert groups.tolist() == [0, 1, 1, 0, -1, -1, 0]
    assert pairs_within(groups) == 4
    assert join(2, []).tolist() == [-1, -1]


def test_options_that_make_no_sense() -> None:
    for options, sentence in (({"k": 0}, "k must be"), ({"alpha": 1.5}, "alpha must"), ({"duplicate": 0}, "duplicate")):
        with pytest.raises(ValueError, match=sentence):
            AuditOptions(**options)
