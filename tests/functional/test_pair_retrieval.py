"""nDCG, MRR, MAP@R and recall against their definitions, query by query."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import normalize

from antipodes.functional import feature_quality
from antipodes.functional.feature_quality import ranked_measures


@pytest.mark.parametrize("block", [1, 50, 2**22])
def test_measures_are_those_of_a_full_search(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_quality, "BLOCK_ELEMENTS", block)
    draw = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(17, 5, generator=draw), torch.randn(23, 5, generator=draw)
    pairs = torch.randint(23, (60, 2), generator=draw)
    pairs[:17, 0], pairs[17:, 0] = torch.arange(17), pairs[17:, 0] % 17
    relevant = pairs.unique(dim=0)[torch.randperm(len(pairs.unique(dim=0)), generator=draw)]
    gains = torch.randint(1, 4, (len(relevant),), generator=draw).float()
    similarity = normalize(queries, dim=1) @ normalize(keys, dim=1).T
    expected: dict[str, list[float]] = {}
    for query in range(17):
        gain = {int(key): float(g) for (q, key), g in zip(relevant.tolist(), gains.tolist(), strict=True) if q == query}
        order = similarity[query].argsort(descending=True).tolist()
        hits = [key in gain for key in order]
        best = sorted(gain.values(), reverse=True)
        ideal = sum(value / math.log2(place + 2) for place, value in enumerate(best[:10]))
        found = sum(gain.get(key, 0) / math.log2(place + 2) for place, key in enumerate(order[:10]))
        measures = {
            "nDCG@10": found / ideal,
            "MRR@10": next((1 / (place + 1) for place in range(10) if hits[place]), 0.0),
            "MAP@R": sum(sum(hits[: place + 1]) / (place + 1) for place in range(len(gain)) if hits[place]) / len(gain),
            "recall@1": sum(hits[:1]) / len(gain),
            "recall@7": sum(hits[:7]) / len(gain),
        }
        for name, value in measures.items():
            expected.setdefault(name, []).append(value)
    means = {name: sum(values) / len(values) for name, values in expected.items()}
    assert ranked_measures(queries, keys, relevant, gains, (1, 7)) == pytest.approx(means, rel=1e-12)


def test_a_query_without_a_relevant_key_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 queries"):
        ranked_measures(torch.eye(2), torch.eye(2), torch.tensor([[0, 1]]), torch.ones(1))
