"""What similarity means for a sample: how similar it is to samples that have nothing to do with it.

Cosines of different encoders cannot be compared: in one, strangers have 0.1, in another, 0.8. So every sample is judged
by its own background, its similarities to a random set of others:

- its **closeness** to another sample is (s - mean) / (1 - mean): 0 like a stranger, 1 the same;
- its **threshold** is mean + z sd, where z is such that of all pairs of n strangers with normal similarities about one
  would exceed it, but no more than a closeness of 0.7; or, with `alpha`, the quantile above which a share alpha of the
  others lies: what GloFND learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.seeding import generator

REFERENCE = 1024
DISTANT = 0.2  # closeness from which the pixels of a sample and its nearest are looked at
HIGHEST = 0.7  # closeness: in few dimensions, or where classes are far apart, z deviations may be more than 1


@dataclass(frozen=True)
class Background:
    """Means (n,) and standard deviations (n,) of every sample's similarities to others, and thresholds (n,)."""

    mean: Tensor
    deviation: Tensor
    threshold: Tensor

    def closeness(self, similarity: Tensor, rows: Tensor) -> Tensor:
        """How close samples `rows` find similarities of the same shape: 0 like a stranger, 1 the same."""
        mean = self.mean[rows]
        return (similarity - mean) / (1 - mean).clamp(min=1e-6)

    def similarity_at(self, closeness: float) -> Tensor:
        """The similarity (n,) at which every sample finds another so close."""
        return self.mean + closeness * (1 - self.mean)


def measure_background(
    vectors: Tensor, alpha: float | None = None, reference: int = REFERENCE, seed: int = 0
) -> Background:
    """Compare every sample with a random set of others.

    Args:
        vectors: (n, F) float, n at least 2; need not be normalised.
        alpha: share of the others above the threshold, in (0, 1); None takes mean + z sd.
        reference: how many others.
        seed: of their choice.

    Raises:
        ValueError: if alpha is not in (0, 1).
    """
    if alpha is not None and not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}: it is the share of others that are false negatives")
    n = len(vectors)
    chosen = torch.randperm(n, generator=generator("audit", seed))[:reference]
    others = normalize(vectors[chosen].float())
    z = NormalDist().inv_cdf(1 - 1 / max(n, 2) ** 2)
    parts = []
    for start in range(0, n, REFERENCE):
        similarity = normalize(vectors[start : start + REFERENCE].float()) @ others.T
        itself = chosen == torch.arange(start, start + len(similarity))[:, None]
        similarity = similarity.masked_fill(itself, torch.nan)
        count = (~itself).sum(1)
        mean = similarity.nansum(1) / count
        deviation = ((similarity - mean[:, None]).square().nansum(1) / count).sqrt()
        if alpha is None:
            threshold = mean + torch.minimum(z * deviation, HIGHEST * (1 - mean))
        else:
            threshold = similarity.nanquantile(1 - alpha, dim=1)
        parts.append(torch.stack([mean, deviation, threshold]))
    return Background(*torch.cat(parts, 1))
