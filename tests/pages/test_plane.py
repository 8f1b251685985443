from __future__ import annotations

import numpy as np
import torch

from antipodes.pages.plane import _neighbour_shares, flatten


def test_a_map_keeps_groups_together() -> None:
    """Ten nearest points on the map are of one group, where the first two components alone mix groups."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, 12, 300)
    vectors = (rng.normal(size=(12, 100))[group] + rng.normal(size=(300, 100))).astype(np.float32)
    points, how = flatten(vectors)
    assert how == "t-SNE after PCA"
    assert points.min() == 0
    assert points.max() == 1
    distance = torch.cdist(torch.from_numpy(points), torch.from_numpy(points)).fill_diagonal_(torch.inf)
    nearest = distance.topk(10, largest=False).indices.numpy()
    assert (group[nearest] == group[:, None]).mean() > 0.95
    np.testing.assert_array_equal(flatten(vectors)[0], points)


def test_neighbour_shares_have_the_perplexity() -> None:
    shares = _neighbour_shares(torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), 12.0)
    entropy = -(shares * shares.clamp(min=1e-30).log()).sum(1)
    torch.testing.assert_close(entropy.exp(), torch.full((60,), 12.0), rtol=1e-3, atol=0)


def test_maps_of_few_or_equal_vectors_are_finite() -> None:
    for vectors in (np.eye(3), np.ones((4, 1)), np.repeat(np.eye(2, 5), 20, axis=0)):
        assert np.isfinite(flatten(vectors.astype(np.float32))[0]).all()
