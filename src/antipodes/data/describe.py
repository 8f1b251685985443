"""What a dataset tells about itself: what was found, what was left out and why, which rows are the same."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from antipodes.files import replacing
from antipodes.plain_text import csv_cell
from antipodes.plain_text import printable as printable

if TYPE_CHECKING:
    from torch import Tensor

    from antipodes.data.dataset import Samples
    from antipodes.data.statistics import Statistics


_MANY = 200_000  # rows up to which exact duplicates are looked for unasked, where no digests are at hand


class Described:
    """The part of every dataset that speaks to people.

    Attributes:
        skipped: (path, reason) of everything that was left out.
        unused_columns: those of its table that nothing reads.
        metric: by which a classifier on this dataset is customarily judged: the share of right answers, its mean over
            classes, or the mean average precision of several labels a row.
    """

    skipped: Sequence[tuple[str, str]] = ()
    unused_columns: Sequence[str] = ()
    metric: Literal["top-1", "mean per class", "mAP"] = "top-1"

    def describe(self) -> list[str]:
        """Return a few lines for people: how many samples and classes, of which size, and what was left out."""
        data = cast("Samples", self)
        side = getattr(data, "image_size", 0)
        lines = [
            f"{len(data):,} images of {side} x {side} pixels"
            if side and set(data.modalities) == {"image"}
            else f"{len(data):,} rows of {' and '.join(data.modalities)}"
        ]
        if data.samples is not None:
            lines.append(f"{int(data.samples.unique().numel()):,} samples")
        if data.labels is not None and data.labels.ndim == 2:
            lines.append(f"{data.labels.shape[1]:,} classes, several a row")
        elif data.labels is not None:
            lines.append(f"{len(data.classes) if data.classes else int(data.labels.unique().numel()):,} classes")
        return lines + self._closing_lines()

    def groups(self) -> Tensor:
        """Return the exact duplicates among the rows as ``duplicates`` does: (n,) int64, -1 for a row alone."""
        from antipodes.data.exact_duplicates import duplicates

        return duplicates(cast("Samples", self))

    def statistics(self) -> Statistics:
        """Return the mean and standard deviation of the colours, as ``statistics`` does."""
        from antipodes.data.statistics import statistics

        return statistics(cast("Samples", self))

    def write_skipped(self, path: str | Path) -> None:
        """Write what was left out as a table of path and reason, ``skipped.csv``; it appears whole or not at all."""
        with (
            replacing(Path(path)) as partial,
            partial.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(("path", "reason"))
            writer.writerows(map(csv_cell, row) for row in self.skipped)

    def _closing_lines(self) -> list[str]:
        """What the description of every dataset ends with: exact duplicates, what was left out, and unused columns."""
        return [*self._duplicate_lines(), *self._skipped_lines(), *self._column_lines()]

    def _column_lines(self) -> list[str]:
        """One line that names the columns of the table that nothing reads."""
        names = ", ".join(map(printable, self.unused_columns))
        return [f"columns that are not used: {names}"] if names else []

    def _duplicate_lines(self) -> list[str]:
        data = cast("Samples", self)
        if "pictures" not in self.__dict__ and (not data.in_memory or len(data) > _MANY):
            return []  # every row would have to be read for it
        groups = self.groups()
        grouped = int((groups >= 0).sum())
        if not grouped:
            return ["no exact duplicates"]
        return [f"{grouped:,} rows are exact duplicates of each other, in {int(groups.max()) + 1:,} groups"]

    def _skipped_lines(self) -> list[str]:
        """One line for every reason, the most frequent first, with an example."""
        reasons = Counter(reason for _, reason in self.skipped)
        first = {reason: path for path, reason in reversed(self.skipped)}
        return [
            f"left out {count:,}: {printable(reason)} ({printable(first[reason])}{', ...' if count > 1 else ''})"
            for reason, count in reasons.most_common()
        ]
