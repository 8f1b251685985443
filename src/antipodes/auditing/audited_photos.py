"""Photos as an audit works on them: equal files, copies whose pixels agree, faults, and which of several is kept.

1. All photos are scanned once: vectors, keypoints, numbers about the quality.
2. Pairs that may be copies are proposed by the vectors' neighbours and by an index of the keypoints.
3. The keypoints of each proposed pair are matched; where they agree on one map, the pixels are compared under it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.auditing.alignment import agree
from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import Notice
from antipodes.auditing.keypoints import signatures
from antipodes.auditing.photos import Photos
from antipodes.auditing.scanning import Scan, scan_photos
from antipodes.auditing.vectors import Encode, ImageVectors
from antipodes.neighbour_search import nearest_others
from antipodes.progress import Progress, progress_bar
from antipodes.seeding import generator
from antipodes.threads import one_thread

PROPOSED = 3
"""How many photos with the most similar keypoints are proposed as copies of each, at most."""

CHANCE = 0.2
"""How many other photos a photo would be as similar to by chance, if similarities of keypoints were normal, at most."""

HIGHEST = 0.4
"""The similarity of keypoints from which photos are proposed, at most: of few photos, copies have over 0.6."""

FEW = 32
"""Of so many photos all pairs are compared: too few to say what is similar by chance."""

VERIFIED = 256  # pairs that a thread compares at a time


@dataclass(frozen=True, kw_only=True)
class AuditedPhotos(AuditedData):
    """Photos with their vectors.

    Args:
        photos: the photos, in the order of the vectors.
        scan: what was found out about them.
        workers: threads that compare them.
    """

    unit: ClassVar[str] = "photo"

    photos: Photos
    scan: Scan
    workers: int = 2

    @property
    def is_verified(self) -> bool:
        """Pixels decide about near duplicates."""
        return True

    @property
    def _few(self) -> bool:
        """Whether all pairs are compared."""
        return len(self) <= FEW

    @cached_property
    def _index(self) -> Tensor:
        """Vectors of the photos by their keypoints, (n, D)."""
        return signatures(self.scan.keypoints, workers=self.workers)

    @cached_property
    def _chance(self) -> float:
        """The similarity that `CHANCE` of the others would exceed by chance, by the similarities of random pairs."""
        index = self._index
        if self._few:
            return -math.inf
        order = torch.randperm(len(index), generator=generator("chance", 0))
        strangers = (index[order] * index[order.roll(1)]).sum(1)
        deviation = 1.4826 * float(strangers.abs().median())  # that of a normal distribution, robust against copies
        return min(deviation * NormalDist().inv_cdf(1 - CHANCE / len(index)), HIGHEST)

    def copies(self) -> list[tuple[int, int]]:
        """Pairs of equal files or equal pixels, as a training counts them."""
        return self.photos.copies()

    def proposals(self, progress: Progress) -> Tensor | None:
        """Every photo with those that share most keypoints with it, (p, 2)."""
        found = nearest_others(self._index, len(self) - 1 if self._few else PROPOSED, progress)
        first = torch.arange(len(self))[:, None].expand_as(found.rows)
        close = (found.rows >= 0) & (found.similarities > self._chance)
        return torch.stack((first[close], found.rows[close]), 1)

    def agree(self, first: NDArray[np.int64], second: NDArray[np.int64], progress: Progress) -> NDArray[np.bool_]:
        """Whether the pixels of pairs agree; of pairs whose keypoints have little in common they are not compared."""
        result = (self._index[first] * self._index[second]).sum(1) > self._chance / 2
        one, other = (torch.from_numpy(np.asarray(rows, dtype=np.int64))[result] for rows in (first, second))
        scan, answers = self.scan, [torch.zeros(0, dtype=torch.bool)]

        def compare(rows: tuple[Tensor, Tensor]) -> Tensor:
            with torch.inference_mode():
                first, second = (scan.keypoints.of(each) for each in rows)
                return agree(first, second, [scan.grey[each] for each in rows], [scan.sizes[each] for each in rows])

        with one_thread(), ThreadPoolExecutor(max(1, self.workers)) as pool:
            for answer in pool.map(compare, zip(one.split(VERIFIED), other.split(VERIFIED), strict=True)):
                answers.append(answer)
                progress(sum(map(len, answers)), len(one))
        result[result.clone()] = torch.cat(answers)
        return result.numpy()

    def notices(self, progress: Progress) -> Sequence[Notice]:
        """Photos with a fault: blank, dark, bright, blurred, of an odd size or shape, or grey among coloured ones."""
        issues = self.scan.quality.issues()
        return [Notice(each.row, each.kind, each.score, each.bound, reason=each.reason) for each in issues]

    def rank(self, row: int) -> tuple[float, ...]:
        """The number of pixels, then the sharpness of a photo."""
        quality = self.scan.quality
        return (float(quality.width[row] * quality.height[row]), round(float(quality.sharpness[row]), 3))

    def image(self, row: int) -> Image.Image | None:
        """The photo, None where it cannot be read any more."""
        try:
            return self.photos.image(row)
        except (ValueError, OSError):
            return None

    def thumbnails(self, rows: NDArray[np.int64]) -> Tensor | None:
        """Small square pictures of photos."""
        return self.photos.pixels(rows)


def audited_photos(photos: Photos, encoder: tuple[str, Encode], workers: int, shown: bool) -> AuditedPhotos:
    """Scan and embed photos for an audit.

    Args:
        photos: at least two.
        encoder: the name of the encoder and the encoder.
        workers: threads that decode and compute.
        shown: whether progress is shown.
    """
    name, encode = encoder
    with one_thread():
        image_vectors = ImageVectors(encode, photos)
    with progress_bar("photos", shown=shown) as progress:
        side, identity = image_vectors.side, image_vectors.identity
        scan = scan_photos(photos, image_vectors, side=side, identity=identity, workers=workers, progress=progress)
    assert scan.vectors is not None
    vectors = Vectors(scan.vectors, photos.paths, photos.labels, photos.classes)
    return _with_scan(photos, vectors, name, workers, None, scan)


def photos_with_vectors(
    photos: Photos,
    vectors: Vectors,
    encoder: str,
    workers: int = 2,
    thresholds: Tensor | None = None,
    shown: bool = False,
) -> AuditedPhotos:
    """Photos with given vectors."""
    with progress_bar("photos", shown=shown) as progress:
        scan = scan_photos(photos, identity="no vectors", workers=workers, progress=progress)
    return _with_scan(photos, vectors, encoder, workers, thresholds, scan)


def _with_scan(
    photos: Photos, vectors: Vectors, encoder: str, workers: int, thresholds: Tensor | None, scan: Scan
) -> AuditedPhotos:
    return AuditedPhotos(
        vectors=vectors,
        encoder=encoder,
        splits=photos.splits if len(photos.parts) > 1 else (),
        skipped=photos.skipped,
        thresholds=thresholds,
        photos=photos,
        scan=scan,
        workers=workers,
    )
