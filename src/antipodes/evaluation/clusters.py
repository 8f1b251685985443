"""How well pseudo labels find false negatives, exactly and over a whole dataset, from one contingency table.

Samples with the same pseudo label flag each other as false negatives; this is right if they share their true label. For
a sample with label y and pseudo label c, in a dataset of n samples,

    true positive rate = (n_yc - 1) / (n_y - 1)
    true negative rate = 1 - (n_c - n_yc) / (n - n_y)

where n_yc counts accepted samples with both. MTPR and MTNR are the means over samples (IFND, Table 4).
"""

from __future__ import annotations

import torch
from torch import Tensor


def pair_rates(labels: Tensor, clusters: Tensor) -> tuple[float, float]:
    """Return MTPR and MTNR in [0, 1] of pseudo labels.

    A sample whose label no other sample has is left out of the MTPR, and a sample without a true negative is left out
    of the MTNR.

    Args:
        labels: (n,) true labels; a negative label is unknown and equal to no other.
        clusters: (n,) pseudo labels; a negative one is not accepted, and its sample flags no other.

    Example:
        >>> [round(rate, 3) for rate in pair_rates(torch.tensor([0, 0, 0, 1]), torch.tensor([5, 5, -1, 5]))]
        [0.333, 0.333]
    """
    n = len(labels)
    label = _numbered(labels)
    own_size = label.bincount()[label].double()  # n_y of every sample
    accepted = clusters >= 0
    found, flagged = torch.zeros(n).double(), torch.zeros(n).double()
    if bool(accepted.any()):
        cluster = clusters[accepted].unique(return_inverse=True)[1]
        width = int(cluster.max()) + 1
        cell = label[accepted] * width + cluster
        _, where, counts = cell.unique(return_inverse=True, return_counts=True)
        found[accepted] = (counts[where] - 1).double()
        flagged[accepted] = (cluster.bincount()[cluster] - 1).double()
    positives, negatives = own_size - 1, n - own_size
    rate = (found / positives)[positives > 0]
    missed = ((flagged - found) / negatives)[negatives > 0]
    return float(rate.mean()), float(1 - missed.mean())


def _numbered(labels: Tensor) -> Tensor:
    """Number labels 0..K-1, with every unknown label as a class of its own."""
    unknown = labels < 0
    apart = torch.where(unknown, labels.max() + 1 + torch.arange(len(labels)), labels)
    numbered: Tensor = apart.unique(return_inverse=True)[1]
    return numbered
