"""Pairs of pictures that may be copies, proposed by the small patches that they are made of.

A pretrained encoder ranks another picture of the same kind of object high; patches rank the same picture high, even
cropped or with another light. The two miss different copies, and pixels decide about what either proposes, so that more
proposals cost time and no precision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from antipodes.auditing.background import DISTANT, measure_background
from antipodes.auditing.neighbours import nearest_large
from antipodes.auditing.photos import Photos
from antipodes.auditing.vectors import Patches, embed_photos
from antipodes.progress import Progress


def propose(photos: Photos, workers: int = 2, progress: Progress | None = None) -> Tensor:
    """Every picture with the one whose patches are nearest, (p, 2) rows, where that is closer than a stranger's.

    Args:
        photos: at least two pictures; their small squares are looked at, which are in memory.
        workers: threads that fetch them ahead.
        progress: called with (pictures done, pictures in all).
    """
    squares = replace(photos, are_files=False)
    vectors = torch.from_numpy(embed_photos(squares, Patches(), workers=workers, progress=progress))
    found = nearest_large(vectors, 1)
    row, other = torch.arange(len(vectors)), found.rows[:, 0]
    bars = measure_background(vectors).similarity_at(DISTANT)
    close = (other >= 0) & (found.similarities[:, 0] >= torch.maximum(bars, bars[other.clamp(min=0)]))
    return torch.stack((row, other), 1)[close]
