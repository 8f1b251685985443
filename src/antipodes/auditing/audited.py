"""What an audit works on: `AuditedData`, of which every kind of data (photos, texts, pairs, vectors) has a subclass.

The pipeline of `antipodes.audit` is the same for all kinds: neighbours and backgrounds of the vectors, pairs, samples
that stand out, groups, tables, page. It asks the data where the kinds differ:

- which samples are equal (`copies`), which further pairs to look at (`proposals`), whether two samples agree (`agree`);
- which samples have a fault of their own (`notices`), such as a blurred photo or an empty text;
- which sample of a group stays (`rank`), and how the page shows a sample (`image`, `text`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.findings import (
    EXACT,
    FALSE_NEGATIVE,
    NEAR,
    OUTLIER,
    AuditOptions,
    Findings,
    Notice,
    audit_vectors,
)
from antipodes.auditing.groups import equal_rows
from antipodes.progress import Progress, progress_bar
from antipodes.threads import one_thread

_FEW = 10_000  # samples up to which one thread compares all: several would mostly wait for each other


@dataclass(frozen=True, kw_only=True)
class AuditedData:
    """Vectors without anything behind them, and the base of all other kinds.

    Args:
        vectors: (n, F) of the n samples, with their names and labels.
        encoder: where the vectors come from.
        splits: the split or the folder of every sample; empty where all are of one. Samples of the first are trained
            on, and come first.
        skipped: files or rows that were left out, with the reasons.
        thresholds: (n,) of every sample, where a run has learned them.
    """

    unit: ClassVar[str] = "vector"
    pair_kinds: ClassVar[tuple[str, ...]] = (EXACT, NEAR, FALSE_NEGATIVE)
    notice_kinds: ClassVar[tuple[str, ...]] = (OUTLIER,)

    vectors: Vectors
    encoder: str
    splits: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    thresholds: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def training(self) -> int:
        """How many samples are trained on: those of the first split."""
        return self.splits.count(self.splits[0]) if self.splits else len(self)

    @property
    def is_verified(self) -> bool:
        """Whether `agree` decides about near duplicates; otherwise the vectors do."""
        return False

    def copies(self) -> list[tuple[int, int]]:
        """Pairs (row of the first, row of another) of equal samples."""
        return equal_rows(self.vectors.embeddings)

    def proposals(self, progress: Progress) -> Tensor | None:
        """Pairs (p, 2) of rows that `agree` is asked about, in addition to neighbours; None for none."""
        return None

    def agree(self, first: NDArray[np.int64], second: NDArray[np.int64], progress: Progress) -> NDArray[np.bool_]:
        """Whether the samples of pairs are near duplicates, (p,)."""
        raise NotImplementedError

    def search(self, options: AuditOptions, shown: bool) -> Findings:
        """Find pairs and samples: among the vectors, and by what the kind of data knows.

        Args:
            options: what to look for.
            shown: whether progress is shown.
        """
        with one_thread() if len(self) <= _FEW else nullcontext():
            with progress_bar("proposals", shown=shown) as progress:
                proposed = self.proposals(progress)
            with progress_bar("neighbours", shown=shown) as progress:
                findings = audit_vectors(
                    self.vectors,
                    options,
                    copies=self.copies(),
                    verify=(lambda first, second: self.agree(first, second, progress)) if self.is_verified else None,
                    proposed=proposed,
                    thresholds=self.thresholds,
                    progress=progress,
                )
            with progress_bar("samples", shown=shown) as progress:
                return replace(findings, notices=(*findings.notices, *self.notices(progress)))

    def notices(self, progress: Progress) -> Sequence[Notice]:
        """Samples with a fault of their own."""
        return ()

    def rank(self, row: int) -> tuple[float, ...]:
        """What decides which sample of a group represents it: the largest does, and among equals the first."""
        return ()

    def key(self, row: int) -> str:
        """The name by which a decision about a sample is found again in a later audit."""
        return self.vectors.paths[row]

    def image(self, row: int) -> Image.Image | None:
        """The picture of a sample, if it has one."""
        return None

    def thumbnails(self, rows: NDArray[np.int64]) -> Tensor | None:
        """Small square pictures (b, 3, S, S) uint8 of samples, if they have any."""
        return None

    def text(self, row: int) -> str:
        """The text of a sample, empty if it has none."""
        return ""

    def fields(self, row: int) -> dict[str, str]:
        """The parts of a sample's text by the names of their columns."""
        return {"text": self.text(row)}
