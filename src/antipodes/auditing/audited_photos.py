"""Photos as an audit works on them: files that are equal, pixels that agree, and which of several is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.photos import Photos
from antipodes.auditing.pixels import agree
from antipodes.auditing.proposals import propose
from antipodes.auditing.vectors import PATCHES, Encode, embed_photos
from antipodes.progress import Progress, progress_bar

VERIFIED = 64  # pairs whose pixels are fetched and compared at a time


@dataclass(frozen=True, kw_only=True)
class AuditedPhotos(AuditedData):
    """Photos with their vectors.

    Args:
        photos: the photos, in the order of the vectors.
        workers: threads that decode them.
    """

    unit: ClassVar[str] = "photo"

    photos: Photos
    workers: int = 2

    @property
    def is_verified(self) -> bool:
        """Pixels decide about near duplicates."""
        return True

    def copies(self) -> list[tuple[int, int]]:
        """Pairs of equal files; where photos are not files, pairs of equal vectors."""
        found = self.photos.copies()
        return super().copies() if found is None else found

    def proposals(self, progress: Progress) -> Tensor | None:
        """What the small patches of the photos find alike, unless they made the vectors."""
        return None if self.encoder == PATCHES else propose(self.photos, self.workers, progress)

    def agree(self, first: NDArray[np.int64], second: NDArray[np.int64], progress: Progress) -> NDArray[np.bool_]:
        """Whether the pixels of pairs agree."""
        answers = [np.zeros(0, dtype=np.bool_)]
        for start in range(0, len(first), VERIFIED):
            rows = slice(start, start + VERIFIED)
            answers.append(agree(self.photos.pixels(first[rows]), self.photos.pixels(second[rows])).numpy())
            progress(start, len(first))
        return np.concatenate(answers)

    def rank(self, row: int) -> tuple[float, ...]:
        """The number of pixels, then the sharpness of a photo."""
        try:
            image = self.photos.image(row)
        except ValueError:  # gone, or damaged
            return (0.0, 0.0)
        grey = np.asarray(image.convert("L").resize((256, 256)), dtype=np.float32)
        detail = 4 * grey[1:-1, 1:-1] - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
        return (float(image.width * image.height), round(float(detail.var()), 1))

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
    """Embed photos for an audit, each averaged with its mirror image.

    Args:
        photos: at least two.
        encoder: the name of the encoder and the encoder.
        workers: threads that decode the photos.
        shown: whether progress is shown.
    """
    name, encode = encoder
    with progress_bar("embedding", shown=shown) as progress:
        matrix = embed_photos(photos, encode, mirrored=True, workers=workers, progress=progress)
    vectors = Vectors(matrix, photos.paths, photos.labels, photos.classes)
    return photos_with_vectors(photos, vectors, name, workers)


def photos_with_vectors(
    photos: Photos, vectors: Vectors, encoder: str, workers: int = 2, thresholds: Tensor | None = None
) -> AuditedPhotos:
    """Photos with given vectors."""
    splits = photos.splits if len(photos.parts) > 1 else ()
    return AuditedPhotos(
        vectors=vectors,
        encoder=encoder,
        splits=splits,
        skipped=photos.skipped,
        thresholds=thresholds,
        photos=photos,
        workers=workers,
    )
